// Sorts tables by a click on a heading: numbers by value, words by alphabet, empty cells always last.
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
// Copies tables and commands; where the browser has no clipboard for a local file, an invisible field helps.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    await copy(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1500);
  });
}
// A link into a closed section opens it; on a narrow screen the table of contents begins closed.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let place = target; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
if (matchMedia("(max-width: 63.99rem)").matches) document.querySelector(".contents").open = false;
