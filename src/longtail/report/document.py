"""What a report is made of: sections of sentences, tables and figures; and how they are printed.

As files that is a page of HTML, which needs no network and allows none (its own content policy says so): figures are
inside, its script sorts tables. Beside ``index.html`` lie ``report.md``, ``tables/`` (Markdown, CSV, LaTeX) and
``figures/`` (PNG, SVG, PDF). Nothing is computed while printing.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from .._version import __version__
from ..errors import InputError, RunError, one_of
from ..evaluate.accuracy import Spread
from . import figures, paper
from .paper import Number

TITLE = "Long-tail report"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_TABLE = re.compile(r"(<!-- table:([\w.-]+)(?: (\{.*?\}))? -->\n).*?(<!-- /table -->)", re.S)
_FIGURE = re.compile(r"\(figures/([\w.-]+)\.png\)")
_SIGNED = re.compile(r"[+-]\d+\.\d+")
# what LaTeX would take for its own, and what it has other signs for
_TEX = str.maketrans({
    **{ch: f"\\{ch}" for ch in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$",
    "✓": r"$\checkmark$", "≥": r"$\ge$", "≤": r"$\le$",
    "λ": r"$\lambda$", "α": r"$\alpha$", "τ": r"$\tau$", "γ": r"$\gamma$", "β": r"$\beta$", "ε": r"$\epsilon$",
    "Ω": r"$\Omega$", "‡": r"$^\ddagger$", "†": r"$^\dagger$", "⋆": r"$^\star$", "⋄": r"$^\diamond$", "·": r"$\cdot$",
    "…": r"\ldots{}", "“": "``", "”": "''",
})  # fmt: skip

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
        kept = [self.columns.index(one_of("column", name, self.columns)) for name in columns or self.columns]
        by_name = {text(row[0]): row for row in self.rows}
        chosen = [by_name[one_of("row", name, by_name)] for name in rows] if rows else self.rows
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
        r"""A ``tabular`` for the package booktabs.

        >>> print(Table("slug", "Title", ["λ & α"], [[Spread(0.4577, 0.003, 3)]]).latex().splitlines()[2])
        $\lambda$ \& $\alpha$ \\
        """
        rules = "".join("r" if numeric else "l" for numeric in self.numeric())
        heads, *rows = [" & ".join(words.translate(_TEX) for words in row) + r" \\" for row in self._texts()]
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


def _kind(column: str, cell: Cell) -> str:
    if not isinstance(cell, str) or _SIGNED.fullmatch(cell):
        return "num"
    if column == "Verdict":
        return next((word for word in ("confirmed", "contradicted") if cell.startswith(word)), "muted")
    if column == "Command":
        return "code"
    return "muted" if cell in ("not run", "no classes") else ""


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

    def markdown(self) -> str:
        """The whole report; figures lie in ``figures/`` beside it."""
        left_out = [Section("left-out", "Left out", ["\n".join(f"- {note}" for note in self.left_out)])]
        whole = Section("", TITLE, [self.lead, *self.sections, *(left_out if self.left_out else [])])
        return "\n\n".join(part.strip("\n") for part in _markdown(whole, 1) if part) + "\n"


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


def write(report: Report, out: str | Path) -> Path:
    """Print the report into a folder; returns the page's path."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: --out must name a folder")
    index = out / "index.html"
    if index.exists() and not index.is_file():
        raise InputError(f"{index} is not a regular file: use another --out")
    try:
        for folder in ("tables", "figures"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        _clear(out)
        for table in report.tables:
            files = {"md": f"# {table.title}\n\n{table.markdown()}", "csv": table.csv(), "tex": table.latex()}
            for kind, content in files.items():
                (out / "tables" / f"{table.slug}.{kind}").write_text(content, encoding="utf-8")
        images = {picture.name: _draw(picture, out / "figures") for picture in report.pictures}
        (out / "report.md").write_text(report.markdown(), encoding="utf-8")
        index.write_text(html(report, images), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {out}: {error.strerror or error}") from error
    return index


def _clear(out: Path) -> None:
    """Remove what an earlier report left here, and nothing else: its tables and figures may not be made again."""
    index = out / "index.html"
    if not index.is_file() or f"<title>{TITLE}</title>" not in index.read_text(encoding="utf-8", errors="replace"):
        return
    ours = ("figure[1-8]", "classes", "sizes", "tradeoff", "training")
    for pattern in (*(f"figures/{name}-*.*" for name in ours), "tables/*.md", "tables/*.csv", "tables/*.tex"):
        for old in out.glob(pattern):
            old.unlink()


def _draw(picture: Picture, folder: Path) -> tuple[str, int]:
    """Save a figure's files; returns the address of the image for the page, and how wide it is there.

    The page has it in 128 colours, a third of its size: figures of lines and bars lose nothing one would see. Two
    pixels of the file are one of the page.
    """
    from PIL import Image

    png, *_ = figures.save(picture.make(), folder / picture.name)
    made = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(made.getvalue()).decode('ascii')}", image.width // 2


def html(report: Report, images: dict[str, tuple[str, int]]) -> str:
    """The page as text; ``images`` are the addresses of the figures and their widths by name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("longtail.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    for kind in (Section, Table, Picture, Mistakes, Said):
        environment.tests[kind.__name__.lower()] = lambda item, kind=kind: isinstance(item, kind)
    environment.globals.update(read=lambda name: Markup((Path(__file__).parent / name).read_text("utf-8")))
    environment.filters.update(text=text, raw=raw)
    known = {"title": TITLE, "policy": POLICY, "version": __version__, "paper": paper.TITLE}
    return environment.get_template("page.html.j2").render(report=report, images=images, **known)


def in_a_terminal(section: Section, alone: bool) -> Iterator[str]:
    """What is said of a data set where there is no page: the answer, unless there is but one run, and tables."""
    skipped = ("results-", "claims-", "confusions-", "per-class-", "worst-")
    first = section.items[0]
    if isinstance(first, Section) and not alone:
        said = [item for item in first.walk() if isinstance(item, str | Said)]
        yield from (item if isinstance(item, str) else item.text for item in said)
        yield ""
    for item in section.walk():
        if isinstance(item, Table) and not item.slug.startswith(skipped):
            yield f"{item.title}\n\n{item.plain()}"


def refresh(page: str, report: Report) -> str:
    """A page's text with every table between ``<!-- table:SLUG -->`` and ``<!-- /table -->`` as the report has it.

    ``<!-- table:SLUG {"columns": […], "rows": […]} -->`` takes some columns and some rows only.
    """
    known = {table.slug: table for table in report.tables}

    def replaced(found: re.Match[str]) -> str:
        table = known.get(found[2])
        if table is None:
            raise InputError(f"the page asks for the table {found[2]!r}, which these runs do not give")
        part = table.pick(**json.loads(found[3])) if found[3] else table
        return f"{found[1]}{part.markdown().strip()}\n{found[4]}"

    return _TABLE.sub(replaced, page)


def update(page: Path, report: Report, figures: Path) -> None:
    """Bring a page's tables, and the figures that it shows from ``figures/`` beside it, up to date."""
    try:
        content = refresh(page.read_text(encoding="utf-8"), report)
        known = {picture.name for picture in report.pictures}
        for name in dict.fromkeys(_FIGURE.findall(content)):
            if name in known:
                (page.parent / "figures").mkdir(exist_ok=True)
                shutil.copyfile(figures / f"{name}.png", page.parent / "figures" / f"{name}.png")
        page.write_text(content, encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{page} is no Markdown page: it is not text in UTF-8") from None
    except OSError as error:
        raise RunError(f"cannot update {page}: {error.strerror or error}") from error
