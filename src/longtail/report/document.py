"""What a report is made of: sections of sentences, commands, tables and figures; and how that looks as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure

from .table import Table


@dataclass(frozen=True)
class Warned:
    """A sentence that one should not overlook."""

    text: str


@dataclass(frozen=True)
class Command:
    """A command to copy."""

    text: str


@dataclass(frozen=True)
class Thumbnail:
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
    place: Literal["answer", "look", "laboratory"] = "laboratory"


Item = str | Warned | Command | Table | Picture | Mistakes


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: sentences, tables, figures and further sections, in this order.

    ``kind`` is ``"answer"`` (the first screen), ``"closed"`` (opens on a click) or nothing.
    """

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


def markdown(report: Report, title: str) -> str:
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
