"""The report: built once from runs as a value, then printed as a page of HTML, as Markdown, and as files of tables.

The page needs no network and allows none (its own content policy says so): figures are inside, its script sorts tables.
Beside ``index.html`` lie ``report.md``, ``tables/`` (Markdown, CSV, LaTeX) and ``figures/`` (PNG, SVG, PDF).
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from .._version import __version__
from ..errors import InputError, RunError
from ..runs.read import Found, find
from . import claims, figures, gallery, inventory, paper, tables
from .answer import answer, mistakes, worst
from .comparison import noise
from .document import Item, Mistakes, Picture, Report, Said, Section, Table, raw, text
from .grouping import DataSet, datasets

TITLE = "Long-tail report"
_TABLE = re.compile(r"(<!-- table:([\w.-]+)(?: (\{.*?\}))? -->\n).*?(<!-- /table -->)", re.S)
_FIGURE = re.compile(r"\(figures/([\w.-]+)\.png\)")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def build(paths: Iterable[str | Path], out: str | Path) -> Path:
    """Read every run under ``paths`` and write the report to the folder ``out``; returns the page's path.

    Raises:
        InputError: a path does not exist, no run can be read, or ``out`` is not a folder.
    """
    return write(make(find(paths)), out)


def make(found: Found, *, limits: tuple[int, int] | None = None, paper_claims: bool = False) -> Report:
    """The report of runs: every table and claim is computed here, and once.

    Args:
        limits: of head and tail, if they are not to follow the data.
        paper_claims: whether the paper's claims are checked on data that are not the paper's, too.
    """
    sets = datasets(found.runs, limits)
    looks = gallery.looks_for(sets)
    sections = [_data_section(data, gallery.pictures(data, looks), paper_claims or data.published) for data in sets]
    of_the_paper = paper_claims or any(data.published for data in sets)
    general = [_closed(table) for table in inventory.tables(sets, found.skipped, of_the_paper)]
    runs, groups = len(found.runs), sum(len(data.groups) for data in sets)
    lead = (
        f"{runs} run{'' if runs == 1 else 's'} of {groups} configuration{'' if groups == 1 else 's'} on "
        f"{', '.join(data.title for data in sets)}. "
        "Accuracies are balanced test accuracies in per cent; ± is a standard deviation over seeds."
    )
    return Report(lead, sections, general, [str(skipped) for skipped in found.skipped])


def _closed(table: Table, *before: str) -> Section:
    """A section of one table that opens on a click."""
    return Section(f"section-{table.slug}", table.title, [*before, table], "closed")


def _data_section(data: DataSet, pictures: Sequence[Picture], paper_claims: bool) -> Section:
    """First the answer, then what one looks at, then the laboratory."""
    name, found, uncertain = data.slug, answer(data), noise(data)
    drawn = {picture.name.removesuffix(f"-{name}"): picture for picture in pictures}
    warned = [Said("warning", found.warning)] if found.warning else []
    items: list[Item | Section] = [
        Section(f"answer-{name}", data.title, [*found.sentences, *warned, drawn.pop("classes")], "answer"),
        Section(
            f"head-tail-{name}", "Head, torso and tail",
            [drawn.pop("figure2-groups"), tables.results(data), *_facts(data, uncertain)],
        ),
    ]  # fmt: skip
    for kind, title in (("tradeoff", "Head against tail"), ("training", "Training")):
        items += [Section(f"{kind}-{name}", title, [drawn.pop(kind)])] if kind in drawn else []
    failing = worst(data, found.best)
    if failing is not None:
        pictured = mistakes(data, found.best, found.run)
        items.append(Section(f"section-{failing.slug}", failing.title, [failing, pictured]))
    if found.commands:
        items.append(Section(f"next-{name}", "What next", [Said("command", command) for command in found.commands]))
    inner = [_closed(table) for table in tables.laboratory(data, uncertain)]
    if paper_claims:
        checked = claims.check(data)
        inner.append(_closed(claims.table(data, checked), claims.in_words(data, checked)))
    if drawn:
        title = "Margins, distances and maps of embeddings"
        inner.append(Section(f"figures-{name}", title, list(drawn.values()), "closed"))
    items.append(Section(f"laboratory-{name}", "Laboratory", inner))
    return Section(name, data.title, items)


def _facts(data: DataSet, uncertain: str) -> list[str]:
    counts, parts = data.counts, data.parts
    groups = ", ".join(f"{n} {name}" if n else f"no {name} classes" for name, n in data.sizes.items())
    text = (
        f"{counts.num_classes} classes ({groups}), {counts.total:,} training samples, {int(counts.n.max()):,} in the "
        f"largest class and {int(counts.n.min()):,} in the smallest. Head: {parts.head} or more training samples; "
        f"tail: fewer than {parts.tail}. {parts.why}"
    )
    # a rule of thumb on noise is for the terminal: here the computed sentence stands in its place
    kept = [note for note in data.first.split.notes if "are noise" not in note and "may be chance" not in note]
    notes = " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in kept)
    return [line for line in (text.strip(), uncertain, notes) if line]


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
            table.write(out / "tables")
        images = {picture.name: _draw(picture, out / "figures") for picture in report.pictures}
        (out / "report.md").write_text(report.markdown(TITLE), encoding="utf-8")
        index.write_text(html(report, images), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {out}: {error.strerror or error}") from error
    return index


def _clear(out: Path) -> None:
    """Remove what an earlier report left here, and nothing else: its tables and figures may not be made again."""
    index = out / "index.html"
    if not index.is_file() or f"<title>{TITLE}</title>" not in index.read_text(encoding="utf-8", errors="replace"):
        return
    ours = ("figure[1-8]", "classes", "tradeoff", "training")
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
    template = environment.get_template("page.html.j2")
    return template.render(
        report=report, images=images, title=TITLE, policy=POLICY, version=__version__, paper=paper.TITLE
    )


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
