"""How far apart two groups of runs are, with an interval which says what the test set and the seeds allow to say.

A difference of two means is uncertain for several reasons, each a standard error with its degrees of freedom: which
test samples there are, what chance did in training (the spread of seeds), and for numbers by class which classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

import numpy as np

from ..counts import GROUPS
from ..errors import InputError
from ..evaluate import packing
from ..runs.read import Run, circumstances
from ..runs.schema import Numbers
from .grouping import DataSet, Group
from .uncertainty import Difference, Source, half_width, paired_source, seed_source

Value = Callable[[Run], float | None]


def share_training(first: Group, second: Group) -> bool:
    """Whether runs of one seed began as the same training, and so are not independent: their first losses are equal.

    τ-normalisation and new heads begin with cross-entropy; ELM with λ = 0 is LogAdj.
    """
    theirs = {run.seed: run.metrics[0].loss for run in second.runs if run.metrics}
    pairs = [(run.metrics[0].loss, theirs[run.seed]) for run in first.runs if run.metrics and run.seed in theirs]
    return bool(pairs) and all(a is not None and a == b for a, b in pairs)


def difference(first: Group, second: Group, value: Value, how: str, *sources: Source) -> Difference | None:
    """Difference of any one number of a run, with the spread of seeds before other sources; None where a run lacks it.

    Where both sides share training, only the seeds that both have count, by pairs.
    """
    ours, theirs = ([value(run) for run in group.runs] for group in (first, second))
    a, b = [v for v in ours if v is not None], [v for v in theirs if v is not None]
    if len(a) < len(ours) or len(b) < len(theirs):
        return None
    by_seed = {run.seed: v for run, v in zip(second.runs, b) if run.seed is not None}
    gaps = tuple(v - by_seed[run.seed] for run, v in zip(first.runs, a) if run.seed in by_seed)
    if gaps and share_training(first, second):
        source, middle, seeds = paired_source(gaps), math.fsum(gaps) / len(gaps), len(gaps)
        spread = "the spread of the seeds that both have (they share training)"
    else:
        source, seeds = seed_source(a, b), min(len(a), len(b))
        middle = math.fsum(a) / len(a) - math.fsum(b) / len(b)
        spread = "the spread of seeds"
    if source is None:
        return Difference(middle, sources, gaps, seeds, how)
    return Difference(middle, (source, *sources), gaps, seeds, f"{how}; {spread} included")


def accuracy_difference(first: Group, second: Group, part: str = "balanced") -> Difference | None:
    """Test accuracy of the first minus the second: ``part`` is ``"balanced"`` or a group; None where it has no classes.

    Where both tested the same samples and kept which were right, the error over test samples is that of the paired
    comparison; else it comes from the class accuracies as if the two were independent, which is wider.
    """
    error, how = _paired_error(first, second, part), "paired over test samples"
    if error is None:
        each = [e for group in (first, second) if (e := _class_error(group, part)) is not None]
        error, how = math.hypot(*each) if len(each) == 2 else None, "unpaired, from class accuracies"
    sources = () if error is None else (Source(error),)
    return difference(first, second, lambda run: first.parts.accuracy(run, part), how, *sources)


def accuracy_error(group: Group, part: str = "balanced") -> float | None:
    """Half of the 95 % interval of a group's mean accuracy, over test samples and, where there are several, seeds."""
    test = _class_error(group, part)
    of_seeds = paired_source([v for run in group.runs if (v := group.parts.accuracy(run, part)) is not None])
    sources = [source for source in (of_seeds, None if test is None else Source(test)) if source is not None]
    return half_width(sources) if sources else None


def rate_difference(first: Group, second: Group, value: Value, size: float, how: str) -> Difference | None:
    """Difference of a share of ``size`` test samples: binomial, as if the two were independent, and seeds' spread."""
    if size < 1:
        return None
    rates = [v for group in (first, second) if (v := value(group.first)) is not None]
    return difference(first, second, value, how, Source(math.sqrt(math.fsum(p * (1 - p) for p in rates) / size)))


def class_difference(
    first: Group, second: Group, values: Callable[[Run], Numbers | None], classes: np.ndarray, how: str
) -> tuple[Difference, np.ndarray] | None:
    """Difference of a number by class, mean over the given ``classes`` that have it in every run, and that by class.

    None where a run has none, or fewer than two classes are left.
    """
    rows = {id(run): values(run) for group in (first, second) for run in group.runs}
    if any(row is None for row in rows.values()):
        return None
    known = classes & ~np.isnan(np.asarray(list(rows.values()), dtype=float)).any(0)  # None becomes NaN
    if known.sum() < 2:
        return None
    kept = {run: np.asarray(row, dtype=float)[known] for run, row in rows.items()}
    sides = [np.mean([kept[id(run)] for run in group.runs], 0) for group in (first, second)]
    gaps = sides[0] - sides[1]
    spread = Source(float(gaps.std(ddof=1)) / math.sqrt(gaps.size), gaps.size - 1)
    found = difference(first, second, lambda run: float(kept[id(run)].mean()), how, spread)
    return None if found is None else (found, gaps)


def pair(data: DataSet, first: str, second: str) -> tuple[Group, Group] | str:
    """Groups of two methods at their default knobs, run under the same circumstances; else why there are none."""
    ours, theirs = data.plain(first), data.plain(second)
    missing = [name for name, groups in ((first, ours), (second, theirs)) if not groups]
    if missing:
        return f"needs runs of {' and '.join(missing)}"
    for a in ours:
        if (b := partner(a, theirs)) is not None:
            return a, b
    return f"needs runs of {first} and {second} with the same model, epochs and recipe"


def partner(group: Group, others: list[Group]) -> Group | None:
    """The first of the others that was run under the same circumstances."""
    mine = circumstances(group.first)
    return next((g for g in others if circumstances(g.first) == mine), None)


def choose(groups: Sequence[Group]) -> tuple[Group, Run, bool]:
    """The best of some groups and its best run, by validation data where every run has them (True), else by test."""
    by_val = all(run.summary.val.balanced is not None for group in groups for run in group.runs)

    def score(run: Run) -> float:
        on_val = run.summary.val.balanced
        return run.balanced if on_val is None or not by_val else on_val

    found = max(groups, key=lambda group: group.mean(score) or 0.0)
    return found, max(found.runs, key=score), by_val


def typical_spread(groups: Iterable[Group]) -> float | None:
    """The standard deviation of balanced accuracy between seeds; None where no configuration has several.

    Configurations that share training count once. Those that vary more than thrice the median or less than a third of
    it (collapsed, or wild) do not join.
    """
    counted: list[Group] = []
    for group in groups:
        if len(group.runs) > 1 and not any(share_training(group, other) for other in counted):
            counted.append(group)
    spreads = [(std, n - 1) for _, std, n in (group.balanced for group in counted) if std is not None]
    middle = median([std for std, _ in spreads]) if spreads else 0.0
    kept = [(std, freedom) for std, freedom in spreads if middle / 3 <= std <= 3 * middle]
    if not kept:
        return None
    return math.sqrt(math.fsum(n * std**2 for std, n in kept) / sum(n for _, n in kept))


def noise(data: DataSet) -> str:
    """What difference between two methods these runs cannot tell from chance, in words."""
    intervals = [run.summary.test.balanced_ci for run in data.runs]
    widths = [(ends[1] - ends[0]) / 2 for ends in intervals if ends is not None]
    size, spread = data.first.summary.test.n, typical_spread(data.comparable)
    if not widths or size is None:
        return ""
    half = f"±{100 * median(widths):.2f} points (95 %)"
    known = f"With {size:,} test samples one model's balanced accuracy is known to {half}"
    if spread is None:
        return f"{known}; what chance does in training is not known from one seed."
    most = max(len(group.runs) for group in data.comparable)
    several = [group for group in data.comparable if len(group.runs) == most]
    said = f"{known}, and seeds of one configuration differ with a standard deviation of {100 * spread:.2f} points"
    pairs = [accuracy_difference(one, two) for one, two in itertools.pairwise(several)]
    halves = [half_width(pair.sources) for pair in pairs if pair is not None]
    if not halves:
        return f"{said}."
    if (apart := 100 * median(halves)) > 50:
        return f"{said}: {most} seeds each tell hardly any two methods apart; run more."
    return f"{said}: with {most} seeds each, two methods can be told apart if they are about {apart:.1f} points apart."


def _members(group: Group, part: str) -> list[int]:
    counts = group.first.counts
    return list(range(counts.num_classes)) if part == "balanced" else group.parts.classes(counts)[part]


def _paired_error(first: Group, second: Group, part: str) -> float | None:
    """The error over test samples, where every run kept which of the same test samples were right."""
    runs = [*first.runs, *second.runs]
    kept = [found for run in runs if (found := right_and_labels(run)) is not None]
    prints = {run.fingerprint for run in runs}
    if len(kept) < len(runs) or len(prints) > 1 or prints == {""}:
        return None
    labels = kept[0][1]
    if any(not np.array_equal(labels, other) for _, other in kept):
        return None
    right = np.stack([right for right, _ in kept])
    gaps = right[: len(first.runs)].mean(0) - right[len(first.runs) :].mean(0)
    return mean_error([gaps[labels == c] for c in _members(first, part)])


def mean_error(gaps: Sequence[np.ndarray]) -> float | None:
    """The standard error of a mean over classes, from each class's test samples.

    Of one to four samples nobody knows a variance, and two that agree seem certain: such classes share what their
    samples' squares come to, with one more as uncertain as a coin on either side.
    """
    tested = [d for d in gaps if d.size]
    few = [d for d in tested if d.size < 5]
    shared = (math.fsum(float(np.square(d).sum()) for d in few) + 0.5) / (sum(d.size for d in few) + 1)
    variance = math.fsum((shared if d.size < 5 else float(d.var(ddof=1))) / d.size for d in tested)
    return math.sqrt(variance) / len(tested) if tested else None


def right_and_labels(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Which test samples were right, and the test labels, in test order; None where the summary did not keep them."""
    test = run.summary.test
    if test.correct is None or test.labels is None or test.n is None:
        return None
    try:
        return packing.unpack_correct(test.correct, test.n).numpy(), packing.unpack_labels(test.labels, test.n).numpy()
    except InputError:
        return None


def _class_error(group: Group, part: str) -> float | None:
    """The error of a group's accuracy over test samples, from its class accuracies."""
    test = group.first.summary.test
    if test.per_class_n is None:
        return None
    kept = [
        (r, n) for c in _members(group, part) if (r := test.per_class[c]) is not None and (n := test.per_class_n[c])
    ]
    # (hits + 1)/(n + 2) keeps a class that was always right or always wrong from counting as certain
    shares = [((p * n + 1) / (n + 2), n) for p, n in kept]
    return math.sqrt(math.fsum(q * (1 - q) / n for q, n in shares)) / len(kept) if kept else None


def curve(run: Run) -> dict[str, list[float]] | None:
    """Test accuracies by group that has classes as τ·log π is taken off the logits, ``"tau"`` ascending; or None."""
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


def reference_head(data: DataSet) -> float | None:
    """The head's accuracy at which all runs are compared, whatever τ that takes: LogAdj's as trained, over seeds."""
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
