"""How far apart two groups of runs are, with an interval which says what the test set and the seeds allow to say.

A difference of two means is uncertain for several reasons, each a standard error with its degrees of freedom: which
test samples there are, what chance did in training (the spread of seeds), and for numbers by class which classes.
Nothing is decided without a known spread of seeds on both sides: one seed gives an estimate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

import numpy as np

from ..counts import GROUPS
from ..errors import InputError
from ..evaluate import packing
from ..runs.read import Run, circumstances
from ..runs.schema import Numbers
from .grouping import DataSet, Group

ONE_SEED = "one seed: undecided"
LEVEL = 0.05
MOST_SEEDS = 5  # of more, a table says only how many agree
Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class Source:
    """One reason why a difference is uncertain: a standard error, and the degrees of freedom it is known with."""

    error: float
    freedom: float = math.inf


def half_width(sources: Iterable[Source], level: float = LEVEL) -> float:
    """Half of the interval that misses the truth in a share ``level`` of cases; 0 where no source is known."""
    from scipy import special  # takes long to import

    share = 1 - level / 2
    known = [(special.ndtri(share) if math.isinf(s.freedom) else special.stdtrit(s.freedom, share), s) for s in sources]
    return math.hypot(*(float(quantile) * source.error for quantile, source in known))


@dataclass(frozen=True)
class Difference:
    """First minus second; ``by_seed`` is that of each seed that both have, ``how`` says what the interval covers.

    ``seeds`` is the smaller number of seeds that the two sides have.
    """

    value: float
    sources: tuple[Source, ...]
    by_seed: tuple[float, ...]
    seeds: int
    how: str

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        half = half_width(self.sources)
        return (self.value - half, self.value + half) if self.sources else None

    @cached_property
    def p(self) -> float | None:
        """The smallest level at which the interval is without 0; None with one seed, where nothing is decided."""
        if self.seeds < 2 or not self.sources:
            return None
        if self.value == 0:
            return 1.0
        low, high = 1e-12, 1.0
        if half_width(self.sources, low) < abs(self.value):
            return low
        for _ in range(60):  # the half-width falls as the level rises
            middle = math.sqrt(low * high)
            low, high = (middle, high) if half_width(self.sources, middle) > abs(self.value) else (low, middle)
        return high

    def verdict(self, p: float | None = None) -> str:
        """Whether the first is above the second; ``p`` replaces its own where several are tested."""
        if self.p is None:
            return ONE_SEED
        if (self.p if p is None else p) > LEVEL:
            return "undecided"
        return "confirmed" if self.value > 0 else "contradicted"

    def points(self) -> str:
        """As percentage points."""
        return self.text(100, " points")

    def text(self, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
        said = f"{scale * self.value:+.{digits}f}{unit}"
        if self.interval is not None:
            low, high = self.interval
            said += f" [{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"
        if len(self.by_seed) < 2:
            return said
        if len(self.by_seed) > MOST_SEEDS:
            ahead = sum(d * self.value > 0 for d in self.by_seed)
            return f"{said}, same sign in {ahead} of {len(self.by_seed)} seeds"
        return f"{said}, by seed {', '.join(f'{scale * d:+.{digits}f}' for d in self.by_seed)}"


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down: values such that a verdict at 5 % on each leaves a chance of 5 % of any false one.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    adjusted = list(values)
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = highest
    return adjusted


def seed_source(first: Sequence[float], second: Sequence[float]) -> Source | None:
    """What the spread of independent seeds does to a difference of means (Welch); None where a side has one seed.

    Welch's degrees of freedom are rounded down, and at most the smaller number of seeds (one where that is two): with
    so few seeds the formula is too sure of itself where one side varies more.
    """
    fewest = min(len(first), len(second))
    if fewest < 2:
        return None
    parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in (first, second)]
    whole = math.fsum(v for v, _ in parts)
    cap = fewest if fewest > 2 else 1
    freedom = cap if whole == 0 else min(math.floor(whole**2 / math.fsum(v**2 / n for v, n in parts)), cap)
    return Source(math.sqrt(whole), max(freedom, 1))


def paired_source(gaps: Sequence[float]) -> Source | None:
    """The same for pairs that are not independent, from their differences; None for one pair."""
    if len(gaps) < 2:
        return None
    return Source(float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps)), len(gaps) - 1)


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


def mean(differences: Sequence[Difference]) -> Difference | None:
    """The mean of differences whose trainings are independent and whose test samples are the same.

    Errors of seeds add up in squares, with Satterthwaite's degrees of freedom; those of test samples, as if all were
    wrong in the same direction, do not cancel at all. None where the spread of seeds is not known of every one.
    """
    seeds = [s for d in differences for s in d.sources if not math.isinf(s.freedom)]
    if len(seeds) < len(differences) or not seeds:
        return None
    squares = [(s.error**2, s.freedom) for s in seeds]
    whole = math.fsum(v for v, _ in squares)
    freedom = min(f for _, f in squares) if whole == 0 else whole**2 / math.fsum(v**2 / f for v, f in squares)
    n = len(differences)
    test = math.fsum(s.error for d in differences for s in d.sources if math.isinf(s.freedom)) / n
    by_seed = tuple(gap for d in differences for gap in d.by_seed)
    sources = (Source(math.sqrt(whole) / n, freedom), Source(test))
    return Difference(fmean(d.value for d in differences), sources, by_seed, len(by_seed), "the mean of several")


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
