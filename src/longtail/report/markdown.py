"""A report as Markdown, and pages of the documentation whose tables are those of a report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from ..errors import InputError, RunError
from .document import Command, Report, Section
from .gallery import Picture
from .mistakes import Mistakes
from .table import Table

_TABLE = re.compile(r"(<!-- table:([\w.-]+)(?: (\{.*?\}))? -->\n).*?(<!-- /table -->)", re.S)
_FIGURE = re.compile(r"\(figures/([\w.-]+)\.png\)")


def text(report: Report, title: str) -> str:
    """The whole report; figures lie in ``figures/`` beside it."""
    parts = [f"# {title}", report.lead]
    for section in report.sections:
        parts += _section(section, 2)
    if report.left_out:
        parts += ["## Left out", "\n".join(f"- {note}" for note in report.left_out)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _section(section: Section, level: int) -> list[str]:
    parts = [f"{'#' * level} {section.title}"]
    for item in section.items:
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, Table):
            parts.append(item.markdown())
        elif isinstance(item, Picture):
            parts.append(f"![{item.caption}](figures/{item.name}.png)\n\n*{item.caption}*")
        elif isinstance(item, Mistakes):
            parts.append(item.said)
        elif isinstance(item, Section):
            parts += _section(item, level + 1)
        else:
            parts.append(f"    {item.text}" if isinstance(item, Command) else f"**{item.text}**")
    return parts


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
    except OSError as error:
        raise RunError(f"cannot update {page}: {error.strerror or error}") from error
