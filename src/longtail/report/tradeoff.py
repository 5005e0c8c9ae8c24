"""Head against tail on equal terms: training puts the balance somewhere, and adjusting the logits moves it.

``tradeoff`` of a run's summary has the test accuracy of head, torso and tail for every τ of ``f − τ log π``. No τ is
chosen here: each run is read where its head is as accurate as LogAdj's as trained.
"""

from __future__ import annotations

import math
from typing import Any

from ..counts import GROUPS
from ..runs.read import Run, as_number
from .differences import Difference, rate_difference
from .grouping import DataSet, Group, slug
from .tables import Cell, Table


def curve(run: Run) -> dict[str, list[float]] | None:
    """Accuracies by group that has classes, in ascending order of ``"tau"``, which is beside them; None without any."""
    kept: Any = run.get("tradeoff")
    columns = {name: kept.get(name) for name in ("tau", *GROUPS)} if isinstance(kept, dict) else {}
    known = {
        name: [float(v) for v in column]
        for name, column in columns.items()
        if isinstance(column, list) and column and all(as_number(v) is not None for v in column)
    }
    return known if {"tau", "head"} <= known.keys() and len({len(c) for c in known.values()}) == 1 else None


def reference(data: DataSet) -> float | None:
    """The head's accuracy at which all runs are compared: LogAdj's as trained, mean over seeds."""
    groups = data.plain("logadj")
    stat = groups[0].accuracy("head") if groups else None
    return None if stat is None else stat.mean


def at_head(run: Run, head: float, part: str) -> float | None:
    """Accuracy of ``part`` at the largest τ which leaves the head as accurate as ``head``, between τ linearly.

    None where the run kept no curve or its curve does not cross that accuracy.
    """
    known = curve(run)
    if known is None or part not in known:
        return None
    heads, values = known["head"], known[part]
    for i in range(len(heads) - 1, 0, -1):
        if heads[i] < head <= heads[i - 1]:
            share = (heads[i - 1] - head) / (heads[i - 1] - heads[i])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return None


def table(data: DataSet) -> Table | None:
    """Torso and tail of every configuration at one accuracy of the head; None where runs do not allow it."""
    head = reference(data)
    parts = [g for g in ("torso", "tail") if data.sizes[g]]
    if head is None or not parts:
        return None
    rows: list[list[Cell]] = []
    for group in data.groups:
        stats = [group.stat(lambda run, part=part: at_head(run, head, part)) for part in parts]  # type: ignore[misc]
        if any(stat is not None for stat in stats):
            rows.append([group.label, *stats, len(group.runs)])
    if not rows:
        return None
    note = (
        f"Test accuracy in per cent of logits less τ·log π, at the τ where the head's is {100 * head:.2f}, which is "
        "LogAdj's as trained: nothing is chosen, all stand at the same point between head and tail."
    )
    columns = ["Method", *(p.capitalize() for p in parts), "Seeds"]
    return Table(f"equal-head-{slug(data.title)}", "At equal accuracy of the head", columns, rows, note)


def difference(data: DataSet, first: Group, second: Group, part: str) -> Difference | None:
    """First minus second in ``part`` at equal accuracy of the head, as if unpaired."""
    head = reference(data)
    sizes: Any = first.first.get("test", "per_class_n")
    if head is None or not isinstance(sizes, list) or len(sizes) != data.counts.num_classes:
        return None
    size = math.fsum(as_number(sizes[c]) or 0.0 for c in data.counts.groups()[part].tolist())
    how = f"unpaired, binomial; logits adjusted to {100 * head:.2f} % on the head"
    return rate_difference(data, first, second, lambda run: at_head(run, head, part), size, how)
