// Sorts the tables that have buttons in their head: numbers by value, words by alphabet, empty cells always last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [row.cells[column].dataset.v, row]);
      const numeric = keyed.every(([value]) => value === "" || !Number.isNaN(Number(value)));
      keyed.sort(([a], [b]) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        const order = numeric ? Number(a) - Number(b) : a.localeCompare(b);
        return descending ? -order : order;
      });
      body.append(...keyed.map(([, row]) => row));
    });
  });
}
