"""The report: built once from runs as a value, then printed as a page of HTML, as Markdown, and as files of tables.

The page needs no network and allows none (its own content policy says so): figures are inside, its script sorts tables.
Beside ``index.html`` lie ``report.md``, ``tables/`` (Markdown, CSV, LaTeX) and ``figures/`` (PNG, SVG, PDF).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from markupsafe import Markup

from .._version import __version__
from ..errors import InputError, RunError
from ..runs.read import Found, find
from . import claims, figures, gallery, inventory, markdown, paper, tables
from .gallery import Picture
from .grouping import DataSet, datasets, slug
from .table import Table

TITLE = "Long-tail report"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: sentences, tables, figures and further sections, in this order."""

    slug: str
    title: str
    items: list[str | Table | Picture | Section] = field(default_factory=list)
    closed: bool = False

    def walk(self) -> Iterator[str | Table | Picture]:
        """Everything in it, however deep."""
        for item in self.items:
            if isinstance(item, Section):
                yield from item.walk()
            else:
                yield item


@dataclass(frozen=True)
class Report:
    """All that is said of a set of runs."""

    lead: str
    sections: list[Section]
    left_out: list[str]

    @property
    def tables(self) -> list[Table]:
        return [item for section in self.sections for item in section.walk() if isinstance(item, Table)]

    @property
    def pictures(self) -> list[Picture]:
        return [item for section in self.sections for item in section.walk() if isinstance(item, Picture)]


def build(paths: Iterable[str | Path], out: str | Path) -> Path:
    """Read every run under ``paths`` and write the report to the folder ``out``; returns the page's path.

    Raises:
        InputError: a path does not exist, no run can be read, or ``out`` is not a folder.
    """
    return write(make(find(paths)), out)


def make(found: Found) -> Report:
    """The report of runs: every table and claim is computed here, and once."""
    sets = datasets(found.runs)
    looks = gallery.looks_for(sets)
    sections = [_data_section(data, gallery.pictures(data, looks)) for data in sets]
    general = [inventory.table1(), inventory.coverage(sets), *inventory.lengths(sets)]
    general += [inventory.runs(sets, found.skipped), inventory.reproduce(sets)]
    sections += [Section(f"section-{table.slug}", table.title, [table]) for table in general]
    return Report(_lead(found, sets), sections, [str(skipped) for skipped in found.skipped])


def _lead(found: Found, sets: Sequence[DataSet]) -> str:
    runs, groups = len(found.runs), sum(len(data.groups) for data in sets)
    return (
        f"{runs} run{_s(runs)} of {groups} configuration{_s(groups)} on {', '.join(data.title for data in sets)}. "
        "Accuracies are balanced test accuracies in per cent; ± is a standard deviation over seeds."
    )


def _data_section(data: DataSet, pictures: list[Picture]) -> Section:
    checked = claims.check(data)
    shown = [tables.results(data), claims.table(data, checked), tables.breakdown(data), tables.confusions(data)]
    shown += [tables.by_seed(data), tables.adjusted(data), tables.equal_head(data), tables.embeddings(data)]
    shown += [tables.alive(data), tables.embedding_term(data), tables.theory(data)]
    name = slug(data.title)
    items: list[str | Table | Picture | Section] = [*_facts(data)]
    for table in shown:
        if table is not None:
            words = [claims.in_words(data, checked)] if table.slug.startswith("claims") else []
            items.append(Section(f"section-{table.slug}", table.title, [*words, table]))
    items.append(Section(f"figures-{name}", "Figures", list(pictures)))
    every = tables.per_class(data)
    items.append(Section(f"section-{every.slug}", every.title, [every], closed=len(every.rows) > 120))
    return Section(name, data.title, items)


def _facts(data: DataSet) -> list[str]:
    counts = data.counts
    groups = ", ".join(f"{n} {name}" if n else f"no {name} classes" for name, n in data.sizes.items())
    text = (
        f"{counts.num_classes} classes ({groups}), {counts.total:,} training samples, {int(counts.n.max()):,} in the "
        f"largest class and {int(counts.n.min()):,} in the smallest. Head: 100 or more training samples; tail: fewer "
        "than 20."
    )
    return [line for line in (text, "; ".join(data.first.split.notes)) if line]


def write(report: Report, out: str | Path) -> Path:
    """Print the report into a folder; returns the page's path."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: --out must name a folder")
    index = out / "index.html"
    try:
        for folder in ("tables", "figures"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        _clear(out)
        for table in report.tables:
            table.write(out / "tables")
        images = {picture.name: _draw(picture, out / "figures") for picture in report.pictures}
        (out / "report.md").write_text(markdown.text(report, TITLE), encoding="utf-8")
        index.write_text(html(report, images), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {out}: {error.strerror or error}") from error
    return index


def _clear(out: Path) -> None:
    """Remove what an earlier report left here, and nothing else: its tables and figures may not be made again."""
    index = out / "index.html"
    if not index.is_file() or f"<title>{TITLE}</title>" not in index.read_text(encoding="utf-8", errors="replace"):
        return
    for pattern in ("figures/figure[1-8]-*.*", "tables/*.md", "tables/*.csv", "tables/*.tex"):
        for old in out.glob(pattern):
            old.unlink()


def _draw(picture: Picture, folder: Path) -> str:
    """Save a figure's files; returns the address of the image for the page."""
    png, *_ = figures.save(picture.make(), folder / picture.name)
    return f"data:image/png;base64,{base64.b64encode(_smaller(png)).decode('ascii')}"


def _smaller(png: Path) -> bytes:
    """The picture in 128 colours, a third of its size: figures of lines and bars lose nothing one would see."""
    from PIL import Image

    made = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()


def html(report: Report, images: dict[str, str]) -> str:
    """The page as text; ``images`` are the addresses of the figures by name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("longtail.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests.update(
        table=lambda item: isinstance(item, Table), picture=lambda item: isinstance(item, Picture),
        section=lambda item: isinstance(item, Section),
    )  # fmt: skip
    environment.globals.update(read=lambda name: Markup((Path(__file__).parent / name).read_text("utf-8")))
    from .table import raw, text

    environment.filters.update(text=text, raw=raw)
    template = environment.get_template("page.html.j2")
    return template.render(
        report=report, images=images, title=TITLE, policy=POLICY, version=__version__, paper=paper.TITLE
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def of_one_run(report: Report) -> list[Table]:
    """The tables that say something of a single run, for a terminal."""
    skipped = ("results-", "claims-", "confusions-", "per-class-")
    return [table for section in report.sections[:1] for table in section.walk() if isinstance(table, Table)
            and not table.slug.startswith(skipped)]  # fmt: skip
