"""One self-contained page from run folders: ``build(paths, out)``.

The page needs no network and allows none (its own content policy says so): figures are inlined, the only script sorts
tables. Beside ``index.html`` lie ``tables/`` (Markdown and CSV) and ``figures/`` (PNG, SVG, PDF).
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from .._version import __version__
from ..errors import InputError, RunError
from ..runs import read as runs
from ..runs.read import Found
from . import claims, details, drawing, markdown, paper, tables
from .grouping import DataSet, datasets, slug
from .tables import Table

TITLE = "<title>Long-tail report</title>"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """What is shown of one data set."""

    data: DataSet
    tables: list[Table]
    drawings: list[drawing.Drawing]
    every_class: Table


@dataclass(frozen=True)
class Report:
    """All tables and figures made from a set of runs; ``index`` is the page once written."""

    found: Found
    sections: list[Section]
    general: list[Table]
    index: Path
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        return [t for s in self.sections for t in (*s.tables, s.every_class)] + self.general


def build(paths: Iterable[str | Path], out: str | Path) -> Path:
    """Read every run under ``paths`` and write the report to the folder ``out``; returns the page's path.

    Raises:
        InputError: a path does not exist, no run can be read, or ``out`` is not a folder.
    """
    return write(runs.find(paths), out).index


def write(found: Found, out: str | Path) -> Report:
    """The report of runs that were found already."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: --out must name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        _clear(out)
        report = _make(found, out)
        tables.write(report.tables, out / "tables")
        report.index.write_text(_page(report), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {out}: {error.strerror or error}") from error
    return report


def _clear(out: Path) -> None:
    """Remove what an earlier report left here, and nothing else: its tables and figures may not be made again."""
    index = out / "index.html"
    if not index.is_file() or TITLE not in index.read_text(encoding="utf-8", errors="replace"):
        return
    for pattern in ("figures/figure[1-8]-*.*", "tables/*.md", "tables/*.csv"):
        for old in out.glob(pattern):
            old.unlink()


def write_docs(report: Report, page: str | Path) -> Path:
    """The page of results in Markdown, its pictures in ``figures/`` beside it."""
    page = Path(page)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        pictures = markdown.copy_pictures([d for s in report.sections for d in s.drawings], page)
        sets = [section.data for section in report.sections]
        page.write_text(markdown.results_page(sets, report.found, pictures), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {page}: {error.strerror or error}") from error
    return page


def _make(found: Found, out: Path) -> Report:
    sets = datasets(found.runs)
    looks = drawing.looks_for(sets)
    sections = []
    for data in sets:
        shown = [tables.results(data), claims.table(data), tables.breakdown(data)]
        shown += [mistakes] if (mistakes := details.confusions(data)) is not None else []
        shown += details.optional(data)
        drawings = drawing.draw(data, out / "figures", looks)
        sections.append(Section(data, shown, drawings, tables.per_class(data)))
    general = [details.table1(), details.not_run(sets), *details.lengths(sets)]
    general += [details.inventory(sets, found.skipped), details.reproduce(sets)]
    return Report(found, sections, general, out / "index.html", [str(s) for s in found.skipped])


def _page(report: Report) -> str:
    style, script = (resources.files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    body = "".join(_section(s) for s in report.sections) + "".join(_general(t) for t in report.general)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"{TITLE}\n<style>\n{style}</style></head>\n<body>\n"
        f"<header><h1>Long-tail report</h1><p>{html.escape(_lead(report))}</p>{_navigation(report)}</header>\n"
        f"<main>{_warnings(report.notes)}{body}</main>\n"
        f"<footer><p>Made by longtail {html.escape(__version__)} from run folders alone. The paper is "
        f"{html.escape(paper.TITLE)}.</p></footer>\n<script>\n{script}</script>\n</body></html>\n"
    )


def _lead(report: Report) -> str:
    runs_read = len(report.found.runs)
    names = ", ".join(section.data.title for section in report.sections)
    groups = sum(len(section.data.groups) for section in report.sections)
    return (
        f"{runs_read} run{_s(runs_read)} of {groups} configuration{_s(groups)} on {names}. Accuracies are balanced "
        "test accuracies in per cent; ± is a standard deviation over seeds."
    )


def _navigation(report: Report) -> str:
    links = [(slug(s.data.title), s.data.title) for s in report.sections]
    links += [(f"section-{t.slug}", t.title) for t in report.general]
    items = "".join(f'<li><a href="#{anchor}">{html.escape(name)}</a></li>' for anchor, name in links)
    return f"<nav><ul>{items}</ul></nav>"


def _warnings(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<section class="warning"><h2>Left out</h2><ul>{items}</ul></section>'


def _section(section: Section) -> str:
    anchor = slug(section.data.title)
    parts = [f'<section id="{anchor}"><h2>{html.escape(section.data.title)}</h2>{_facts(section.data)}']
    parts += [f"<h3>{html.escape(table.title)}</h3>{table.html()}" for table in section.tables]
    parts.append("<h3>Figures</h3>")
    parts += [_figure(item) for item in section.drawings]
    size = len(section.every_class.rows)
    parts.append(
        f"<h3>{html.escape(section.every_class.title)}</h3><details{' open' if size <= 120 else ''}>"
        f"<summary>{size} classes</summary>{section.every_class.html()}</details></section>"
    )
    return "\n".join(parts)


def _facts(data: DataSet) -> str:
    counts = data.counts
    groups = ", ".join(f"{n} {name}" if n else f"no {name} classes" for name, n in data.sizes.items())
    text = (
        f"{counts.num_classes} classes ({groups}), {counts.total:,} training samples, {int(counts.n.max()):,} in the "
        f"largest class and {int(counts.n.min()):,} in the smallest. Head: 100 or more training samples; tail: fewer "
        "than 20."
    )
    notes = data.first.split.get("notes")
    said = [str(n) for n in notes] if isinstance(notes, list) else []
    return "".join(f"<p>{html.escape(line)}</p>" for line in [text, "; ".join(said)] if line)


def _figure(item: drawing.Drawing) -> str:
    picture = base64.b64encode(item.stem.with_name(f"{item.name}.svg").read_bytes()).decode("ascii")
    links = " · ".join(f'<a href="figures/{item.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg", "pdf"))
    caption = html.escape(item.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{caption} <small>{links}</small></figcaption></figure>"
    )


def _general(table: Table) -> str:
    return f'<section id="section-{table.slug}"><h2>{html.escape(table.title)}</h2>{table.html()}</section>\n'


def _s(count: int) -> str:
    return "" if count == 1 else "s"
