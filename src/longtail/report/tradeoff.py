"""Head against tail on equal terms: training puts the balance somewhere, and adjusting the logits moves it.

``tradeoff`` of a run's summary has the test accuracy of head, torso and tail for every τ of ``f − τ log π``. No τ is
chosen here: each run is read where its head is as accurate as LogAdj's as trained.
"""

from __future__ import annotations

import math
from statistics import fmean

from ..counts import GROUPS
from ..runs.read import Run
from .comparison import Difference, rate_difference
from .grouping import DataSet, Group


def curve(run: Run) -> dict[str, list[float]] | None:
    """Accuracies by group that has classes, in ascending order of ``"tau"``, which is with them; None without any."""
    kept = run.summary.tradeoff
    known: dict[str, list[float]] = {}
    for name in ("tau", *GROUPS):
        values = [v for v in kept.get(name) or () if v is not None]
        if values and len(values) == len(kept[name] or ()):
            known[name] = values
    return known if {"tau", "head"} <= known.keys() else None


def mean_curve(group: Group, part: str) -> dict[str, list[float]] | None:
    """A group's trade-off between head and ``part``, mean over its seeds at each τ."""
    found = [curve(run) for run in group.runs]
    known = [c for c in found if c is not None and part in c and c["tau"] == (found[0] or {}).get("tau")]
    if not known or len(known) < len(found):
        return None
    return {name: [fmean(values) for values in zip(*(c[name] for c in known))] for name in ("tau", "head", part)}


def reference(data: DataSet) -> float | None:
    """The head's accuracy at which all runs are compared: LogAdj's as trained, mean over seeds."""
    groups = data.plain("logadj") if data.parts.stored else []
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


def difference(data: DataSet, first: Group, second: Group, part: str) -> Difference | None:
    """First minus second in ``part`` at equal accuracy of the head, as if unpaired."""
    head, sizes = reference(data), first.first.summary.test.per_class_n
    if head is None or sizes is None:
        return None
    size = math.fsum(sizes[c] for c in data.members[part])
    how = f"unpaired, binomial; logits adjusted to {100 * head:.2f} % on the head"
    return rate_difference(first, second, lambda run: at_head(run, head, part), size, how)
