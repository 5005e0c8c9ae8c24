"""A table as a value: made of columns that say where a number comes from, printed as Markdown, CSV, LaTeX or text."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import paper

NOTHING = "–"
_SIGNED = re.compile(r"[+-]\d+\.\d+")


@dataclass(frozen=True)
class Percent:
    """A fraction shown in per cent with two digits."""

    value: float


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation (n − 1; None for a single value) over seeds; of fractions, shown in per cent."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Stat | None:
        """None if any seed lacks the value: a mean over other seeds than the row says would mislead."""
        known = [v for v in values if v is not None]
        if not known or len(known) < len(values):
            return None
        mean = math.fsum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, 1)
        return cls(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)), len(known))

    def percent(self) -> str:
        return f"{100 * self.mean:.2f}" + ("" if self.std is None else f" ± {100 * self.std:.2f}")


Cell = str | int | float | Percent | Stat | paper.Number | None


def text(cell: Cell) -> str:
    """A cell as people read it.

    >>> text(Percent(0.4577)), text(Stat(0.4577, 0.003, 3)), text(None), text(0.01234567)
    ('45.77', '45.77 ± 0.30', '–', '0.01235')
    """
    match cell:
        case None:
            return NOTHING
        case Percent():
            return f"{100 * cell.value:.2f}"
        case Stat():
            return cell.percent()
        case paper.Number():
            return cell.text
        case float():
            return f"{cell:.4g}"
        case _:
            return str(cell)


def raw(cell: Cell) -> str | float | int:
    """A cell as a spreadsheet wants it: accuracies in per cent, as numbers."""
    match cell:
        case None:
            return ""
        case Percent():
            return round(100 * cell.value, 4)
        case Stat():
            return round(100 * cell.mean, 4)
        case paper.Number():
            return cell.value
        case _:
            return cell


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column's title, and the cell that it has in the row of something."""

    title: str
    cell: Callable[[Row], Cell]


@dataclass(frozen=True)
class Table:
    """Columns and rows, with a note that is printed below; ``slug`` names its files."""

    slug: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"{self.slug}: a row does not fit the columns"

    @classmethod
    def of(cls, slug: str, title: str, things: Iterable[Row], columns: Sequence[Column[Row]], note: str = "") -> Table:
        """One row a thing."""
        rows = [[column.cell(thing) for column in columns] for thing in things]
        return cls(slug, title, [column.title for column in columns], rows, note)

    def without_empty_columns(self) -> Table | None:
        """Without the columns that no row has a value in; None if only the first is left."""
        known = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        rows = [[row[i] for i in known] for row in self.rows]
        return Table(self.slug, self.title, [self.columns[i] for i in known], rows, self.note) if known[1:] else None

    def pick(self, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> Table:
        """Some columns and some rows (by their first cell) of the table, in the order given."""
        kept = [self.columns.index(name) for name in columns or self.columns]
        by_name = {text(row[0]): row for row in self.rows}
        chosen = [by_name[name] for name in rows] if rows else self.rows
        return Table(self.slug, self.title, [self.columns[i] for i in kept], [[r[i] for i in kept] for r in chosen])

    def kinds(self) -> list[list[str]]:
        """How each cell is set: the class that the page's style sheet knows."""
        return [[_kind(column, cell) for column, cell in zip(self.columns, row)] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Which columns hold numbers, so that their heads stand above the digits."""
        found = [{row[i] for row in self.kinds()} for i in range(len(self.columns))]
        return ["num" in kinds and kinds <= {"num", "muted"} for kinds in found]

    def markdown(self) -> str:
        cells = [[text(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in [self.columns, ["---"] * len(self.columns), *cells]]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def plain(self) -> str:
        """Aligned columns for a terminal."""
        rows = [self.columns, *([text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs."""
        rules = "".join("r" if numeric else "l" for numeric in self.numeric())
        lines = [
            " & ".join(map(_latex, row)) + r" \\" for row in [self.columns, *([text(c) for c in r] for r in self.rows)]
        ]
        return "\n".join(
            [f"\\begin{{tabular}}{{{rules}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
             r"\end{tabular}"]
        ) + "\n"  # fmt: skip

    def csv(self) -> str:
        """Means and deviations are separate columns; accuracies are in per cent."""
        deviates = [any(isinstance(row[i], Stat) for row in self.rows) for i in range(len(self.columns))]
        marked = [any(isinstance(row[i], paper.Number) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header: list[str] = []
        for name, deviating, marking in zip(self.columns, deviates, marked):
            header += [name] + [f"{name} std"] * deviating + [f"{name} mark"] * marking
        writer.writerow(header)
        for row in self.rows:
            line: list[Any] = []
            for cell, deviating, marking in zip(row, deviates, marked):
                std = cell.std if isinstance(cell, Stat) else None
                line += [raw(cell)] + [round(100 * std, 4) if std is not None else ""] * deviating
                line += [cell.mark if isinstance(cell, paper.Number) else ""] * marking
            writer.writerow(line)
        return out.getvalue()

    def write(self, folder: Path) -> None:
        """The table as ``slug.md``, ``slug.csv`` and ``slug.tex``."""
        files = {"md": f"# {self.title}\n\n{self.markdown()}", "csv": self.csv(), "tex": self.latex()}
        for kind, content in files.items():
            (folder / f"{self.slug}.{kind}").write_text(content, encoding="utf-8")


def _kind(column: str, cell: Cell) -> str:
    if not isinstance(cell, str) or _SIGNED.fullmatch(cell):
        return "num"
    if column == "Verdict":
        return next((word for word in ("confirmed", "contradicted") if cell.startswith(word)), "muted")
    if column == "Command":
        return "code"
    return "muted" if cell in ("not run", "no classes") else ""


_TEX = {
    **{ch: f"\\{ch}" for ch in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$",
    "✓": r"$\checkmark$", "≥": r"$\ge$", "≤": r"$\le$",
    "λ": r"$\lambda$", "α": r"$\alpha$", "τ": r"$\tau$", "γ": r"$\gamma$", "β": r"$\beta$", "ε": r"$\epsilon$",
    "Ω": r"$\Omega$", "‡": r"$^\ddagger$", "†": r"$^\dagger$", "⋆": r"$^\star$", "⋄": r"$^\diamond$", "·": r"$\cdot$",
    "…": r"\ldots{}", "“": "``", "”": "''",
}  # fmt: skip


def _latex(words: str) -> str:
    """Text with what LaTeX would take for its own escaped.

    >>> print(_latex("λ = 0.1 & 45.77 ± 0.30"))
    $\\lambda$ = 0.1 \\& 45.77 $\\pm$ 0.30
    """
    return "".join(_TEX.get(ch, ch) for ch in words)
