"""What a report is made of: sections of sentences, commands, tables and figures, to be printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .gallery import Picture
from .mistakes import Mistakes
from .table import Table


@dataclass(frozen=True)
class Warned:
    """A sentence that one should not overlook."""

    text: str


@dataclass(frozen=True)
class Command:
    """A command to copy."""

    text: str


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
