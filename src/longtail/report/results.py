"""The table of results: our accuracies next to the paper's, and how our runs depart from the paper's recipe."""

from __future__ import annotations

import math
from typing import Any

from . import paper
from .grouping import DataSet, Group, slug
from .table import Column, Table
from .tables import METHOD, SEEDS, by_group


def results(data: DataSet) -> Table:
    """Our accuracies next to the paper's: one row a configuration, the paper's rows that were not run included."""
    published = paper.same_data(data.name, data.counts.n.tolist())

    def theirs(group: Group) -> paper.Number | None:
        return paper.number(group.method, data.name) if published and not group.changed else None

    def difference(group: Group) -> str | None:
        printed = theirs(group)
        return None if printed is None else f"{100 * group.balanced.mean - printed.value:+.2f}"

    columns = [
        METHOD,
        Column("Balanced accuracy", lambda group: group.balanced),
        *by_group(data, lambda group, part: group.accuracy(part)),
        SEEDS,
        Column("Epochs", lambda group: group.first.epochs),
    ]
    columns += [Column("Paper", theirs), Column("Ours − paper", difference)] if published else []
    note = " ".join(_results_note(data, published))
    table = Table.of(f"results-{slug(data.title)}", f"Results on {data.title}", data.groups, columns, note)
    plain = {group.method for group in data.groups if not group.changed}
    not_run = [row for row in paper.TABLE2 if published and row.method not in plain]
    table.rows.extend([row.title, *["not run"] * 4, 0, None, row.numbers[data.name], None] for row in not_run)
    return table


def _results_note(data: DataSet, published: bool) -> list[str]:
    said = [
        "Test accuracy in per cent, mean over classes; ± is the standard deviation over seeds, if there are several."
    ]
    said += _later_stages(data) + _resumed(data)
    if published:
        marks = {row.numbers[data.name].mark for row in paper.TABLE2}
        said.append(f"Paper: mean over {paper.TRIALS} trials; “multi-stage” rows are the faded ones of its Table 2.")
        said += [f"{mark} the paper quotes {source}." for mark, source in paper.MARKS.items() if mark in marks]
        return said + deviations(data)
    if data.name in paper.DATASETS:
        return [*said, "The paper's numbers are not shown: these training counts are not those of its data set."]
    return [*said, "The paper has no numbers for this data set."]


def _later_stages(data: DataSet) -> list[str]:
    """Epochs are those that were asked for, which is the first stage: what methods of several stages trained in all."""
    longer: dict[int, list[str]] = {}
    for group in data.groups:
        run = group.first
        trained = max((row.epoch for row in run.metrics if row.epoch is not None), default=0)
        if run.epochs is not None and trained > run.epochs:
            longer.setdefault(trained, []).append(group.label)
    if not longer:
        return []
    totals = "; ".join(f"{', '.join(labels)}: {trained}" for trained, labels in sorted(longer.items()))
    return [f"Epochs are those of the first stage; with the later ones trained in all: {totals}."]


def _resumed(data: DataSet) -> list[str]:
    """Which runs were interrupted: they went on from a checkpoint to the same bits, and a reader may want to know."""
    broken = [
        f"{group.label}{'' if run.seed is None else f' (seed {run.seed})'}"
        for group in data.groups
        for run in group.runs
        if run.environment.resumed
    ]
    return [f"Interrupted and resumed from a checkpoint, not restarted: {', '.join(broken)}."] if broken else []


def deviations(data: DataSet) -> list[str]:
    """How the runs depart from the paper's Table 3: a sentence for each set of configurations that do so together."""
    printed = paper.TABLE3[data.name]
    found: dict[str, list[str]] = {}
    for group in data.groups:
        recipe, run = group.first.recipe, group.first
        scale = (run.epochs or printed.epochs) / printed.epochs
        pairs: dict[str, tuple[Any, Any]] = {
            "epochs": (run.epochs, printed.epochs),
            "model": (run.model or None, printed.model),
            "batch size": (recipe.get("batch_size"), printed.batch_size),
            "learning rate": (recipe.get("lr"), printed.lr),
            "weight decay": (recipe.get("weight_decay"), printed.weight_decay),
            "schedule": (recipe.get("schedule"), "step" if printed.milestones else "cosine"),
            # warm-up and milestones in proportion to the epochs are the paper's, at another length
            "epochs of warm-up": (recipe.get("warmup_epochs"), (printed.warmup or 0) * scale),
            "milestones": (recipe.get("milestones"), [m * scale for m in printed.milestones]),
            "augmentation": (None if recipe.get("augment") == "auto" else recipe.get("augment"), "crop and flip"),
            "average of weights": (recipe.get("ema"), "none"),
        }
        for what, (ours, theirs) in pairs.items():
            if ours is not None and not _same(ours, theirs):
                found.setdefault(f"{what} {ours} (paper: {theirs})", []).append(group.label)
    by_labels: dict[tuple[str, ...], list[str]] = {}  # what the same configurations do otherwise, in one sentence
    for what, labels in found.items():
        by_labels.setdefault(tuple(labels), []).append(what)
    return [
        f"Not the paper's recipe{'' if len(labels) == len(data.groups) else ' for ' + ', '.join(labels)}: "
        f"{', '.join(whats)}."
        for labels, whats in by_labels.items()
    ]


def _same(ours: Any, theirs: Any) -> bool:
    """Equal up to the rounding of lengths that were scaled."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    both = isinstance(ours, (int, float)) and isinstance(theirs, (int, float))
    return math.isclose(ours, theirs, rel_tol=1e-6) if both else ours == theirs
