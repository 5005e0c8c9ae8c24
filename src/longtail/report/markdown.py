"""The page of results for the documentation: generated from committed runs, never typed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..runs.read import Found
from . import claims, details, paper, tables
from .drawing import Drawing
from .grouping import DataSet


def results_page(sets: Sequence[DataSet], found: Found, pictures: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Markdown: for each data set our table beside the paper's, figures, and what came of the paper's claims.

    Args:
        pictures: by title of a data set, (caption, address of the image) pairs.
    """
    parts = [
        "# Results",
        "This page is generated from run folders by `longtail report … --docs`; edit nothing here. The paper is "
        f"{paper.TITLE}. What a verdict on a claim rests on is said below each table of claims.",
        "## What was run and what was not",
        details.not_run(sets).markdown(),
    ]
    for table in details.lengths(sets):
        parts += [f"## {table.title}", table.markdown()]
    for data in sets:
        parts += [f"## {data.title}", tables.results(data).markdown(), tables.noise(data), "### The paper's claims"]
        parts += [paragraph(data), claims.table(data).markdown()]
        for table in (tables.breakdown(data), *details.optional(data)):
            parts += [f"### {table.title}", table.markdown()]
        if pictures.get(data.title):
            parts.append("### Figures")
            parts += [f"![{caption}]({address})\n\n*{caption}*" for caption, address in pictures[data.title]]
    if found.skipped:
        parts += ["## Left out", "\n".join(f"- {note}" for note in found.skipped)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def paragraph(data: DataSet) -> str:
    """In plain words: which claims the runs confirm, which not, which they cannot decide, and at what scale."""
    by_verdict: dict[str, list[str]] = {}
    beyond = []
    for claim in claims.check(data):
        if claim.where == claims.OURS:
            beyond.append(f"{claim.text}: {claim.verdict}")
        else:
            by_verdict.setdefault(claim.verdict.split(" (")[0], []).append(claim.text)
    seeds = sorted({len(group.runs) for group in data.alike})
    epochs = sorted({group.first.epochs for group in data.alike if group.first.epochs is not None})
    scale = f"{_span(epochs)} epochs" if epochs else "an unknown number of epochs"
    if data.name in paper.TABLE3:
        scale += f" (the paper: {paper.TABLE3[data.name].epochs})"
    several = "" if seeds == [1] else "s"
    said = [f"The runs compared had {scale} and {_span(seeds)} seed{several} a configuration."]
    words = {
        "confirmed": "Confirmed",
        "consistent": "Consistent with the runs",
        claims.HOLDS: "Theorem",
        "contradicted": "Contradicted",
        "undecided": "Undecided",
        claims.NOT_TESTED: "Not tested",
    }
    said += [
        f"**{word}:** {'; '.join(by_verdict[verdict])}." for verdict, word in words.items() if verdict in by_verdict
    ]
    if beyond:
        said.append(f"**Beyond the paper:** {'; '.join(beyond)}.")
    return " ".join(said)


def _span(values: Sequence[int]) -> str:
    if not values:
        return "no"
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def copy_pictures(drawings: Sequence[Drawing], page: Path) -> dict[str, list[tuple[str, str]]]:
    """Put PNGs into ``figures/`` beside the page; returns what ``results_page`` wants to know of them."""
    folder = page.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, list[tuple[str, str]]] = {}
    for item in drawings:
        shutil.copyfile(item.stem.with_name(f"{item.name}.png"), folder / f"{item.name}.png")
        pictures.setdefault(item.data, []).append((item.caption, f"figures/{item.name}.png"))
    return pictures
