"""What a report is made of: sections of sentences, tables and figures; and how a table looks in each format."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

from ..evaluate.accuracy import Spread
from .paper import Number

_SIGNED = re.compile(r"[+-]\d+\.\d+")
_TEX = {
    **{ch: f"\\{ch}" for ch in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$",
    "✓": r"$\checkmark$", "≥": r"$\ge$", "≤": r"$\le$",
    "λ": r"$\lambda$", "α": r"$\alpha$", "τ": r"$\tau$", "γ": r"$\gamma$", "β": r"$\beta$", "ε": r"$\epsilon$",
    "Ω": r"$\Omega$", "‡": r"$^\ddagger$", "†": r"$^\dagger$", "⋆": r"$^\star$", "⋄": r"$^\diamond$", "·": r"$\cdot$",
    "…": r"\ldots{}", "“": "``", "”": "''",
}  # fmt: skip


Cell = str | int | float | Spread | Number | None
Cells = dict[str, Cell]


def text(cell: Cell) -> str:
    """A cell as people read it; a ``Spread`` is one of fractions, shown in per cent.

    >>> text(Number(45.77, "†")), text(Spread(0.4577, 0.003, 3)), text(None), text(0.01234567)
    ('45.77†', '45.77 ± 0.30', '–', '0.01235')
    """
    match cell:
        case None:
            return "–"
        case Spread():
            return f"{100 * cell.mean:.2f}" + ("" if cell.std is None else f" ± {100 * cell.std:.2f}")
        case Number():
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
        case Spread():
            return round(100 * cell.mean, 4)
        case Number():
            return round(cell.value, 4)
        case _:
            return cell


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
    def of(cls, slug: str, title: str, rows: Iterable[Cells], note: str = "") -> Table:
        """From the cells of each row by the title of their column; all have the titles of the first."""
        first, *others = rows
        return cls(slug, title, list(first), [[row[name] for name in first] for row in (first, *others)], note)

    def pick(self, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> Table:
        """Some columns and some rows (by their first cell) of the table, in the order given, without its note."""
        kept = [self.columns.index(name) for name in columns or self.columns]
        by_name = {text(row[0]): row for row in self.rows}
        chosen = [by_name[name] for name in rows] if rows else self.rows
        picked = [[row[i] for i in kept] for row in chosen]
        return replace(self, columns=[self.columns[i] for i in kept], rows=picked, note="")

    def kinds(self) -> list[list[str]]:
        """How each cell is set: the class that the page's style sheet knows."""
        return [[_kind(column, cell) for column, cell in zip(self.columns, row)] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Which columns hold numbers, so that their heads stand above the digits."""
        found = [{row[i] for row in self.kinds()} for i in range(len(self.columns))]
        return ["num" in kinds and kinds <= {"num", "muted"} for kinds in found]

    def _texts(self) -> list[list[str]]:
        return [self.columns, *([text(cell) for cell in row] for row in self.rows)]

    def _with_note(self, lines: Iterable[str]) -> str:
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def markdown(self) -> str:
        heads, *rows = [[words.replace("|", "\\|").replace("\n", " ") for words in row] for row in self._texts()]
        return self._with_note("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows))

    def plain(self) -> str:
        """Aligned columns for a terminal."""
        rows = self._texts()
        widths = [max(map(len, column)) for column in zip(*rows)]
        return self._with_note("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs."""
        rules = "".join("r" if numeric else "l" for numeric in self.numeric())
        heads, *rows = [" & ".join(map(latex, row)) + r" \\" for row in self._texts()]
        lines = [f"\\begin{{tabular}}{{{rules}}}", r"\toprule", heads, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """Deviations and marks are columns of their own; accuracies are in per cent."""
        columns: list[list[Any]] = []
        for i, name in enumerate(self.columns):
            cells = [row[i] for row in self.rows]
            columns.append([name, *map(raw, cells)])
            if any(isinstance(cell, Spread) for cell in cells):
                stds = [cell.std if isinstance(cell, Spread) else None for cell in cells]
                columns.append([f"{name} std", *("" if std is None else round(100 * std, 4) for std in stds)])
            if any(isinstance(cell, Number) and cell.mark for cell in cells):
                columns.append([f"{name} mark", *(cell.mark if isinstance(cell, Number) else "" for cell in cells)])
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(zip(*columns))
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


def latex(words: str) -> str:
    """Text with what LaTeX would take for its own escaped.

    >>> print(latex("λ = 0.1 & 45.77 ± 0.30"))
    $\\lambda$ = 0.1 \\& 45.77 $\\pm$ 0.30
    """
    return "".join(_TEX.get(ch, ch) for ch in words)


@dataclass(frozen=True)
class Said:
    """A line of its own look: something that one should not overlook, or a command to copy."""

    kind: Literal["warning", "command"]
    text: str


class Thumbnail(NamedTuple):
    """A mistaken test image as the address of a small picture, and what it was taken for (None: not known)."""

    image: str
    predicted: str | None


@dataclass(frozen=True)
class Mistakes:
    """Thumbnails by class, and a sentence that says what they are, or why there are none."""

    said: str
    rows: list[tuple[str, list[Thumbnail]]]


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is printed; ``name`` is that of its files."""

    name: str
    caption: str
    make: Callable[[], Figure]


Item = str | Said | Table | Picture | Mistakes


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: ``kind`` is ``"answer"`` (the first screen), ``"closed"`` or nothing."""

    slug: str
    title: str
    items: Sequence[Item | Section]
    kind: Literal["", "answer", "closed"] = ""

    def walk(self) -> Iterator[Item]:
        """Everything in it, however deep."""
        for item in self.items:
            if isinstance(item, Section):
                yield from item.walk()
            else:
                yield item


@dataclass(frozen=True)
class Report:
    """All that is said of a set of runs: a section for each data set, then those about all of them."""

    lead: str
    data_sections: list[Section]
    general: list[Section]
    left_out: list[str]

    @property
    def sections(self) -> list[Section]:
        return [*self.data_sections, *self.general]

    @property
    def tables(self) -> list[Table]:
        return [item for section in self.sections for item in section.walk() if isinstance(item, Table)]

    @property
    def pictures(self) -> list[Picture]:
        return [item for section in self.sections for item in section.walk() if isinstance(item, Picture)]

    def markdown(self, title: str) -> str:
        """The whole report; figures lie in ``figures/`` beside it."""
        parts = [f"# {title}", self.lead]
        for section in self.sections:
            parts += _markdown(section, 2)
        if self.left_out:
            parts += ["## Left out", "\n".join(f"- {note}" for note in self.left_out)]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _markdown(item: Item | Section, level: int) -> list[str]:
    match item:
        case Section():
            inner = [part for below in item.items for part in _markdown(below, level + 1)]
            return [f"{'#' * level} {item.title}", *inner]
        case Table():
            return [item.markdown()]
        case Picture():
            return [f"![{item.caption}](figures/{item.name}.png)\n\n*{item.caption}*"]
        case Mistakes():
            return [item.said]
        case Said():
            return [f"    {item.text}" if item.kind == "command" else f"**{item.text}**"]
        case _:
            return [item]
