"""How far apart two groups of runs are, with an interval which says what the test set and the seeds allow to say.

A difference of two means is uncertain for several reasons, each a standard error with its degrees of freedom: which
test samples there are, what chance did in training (the spread of seeds), and for numbers by class which classes.
Nothing is decided without a known spread of seeds on both sides: one seed gives an estimate.

Head against tail: training puts the balance somewhere, and adjusting the logits moves it. ``tradeoff`` of a run's
summary has the test accuracy of head, torso and tail for every τ of ``f − τ log π``. No τ is chosen here: each run is
read where its head is as accurate as LogAdj's as trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

import numpy as np

from ..counts import GROUPS
from ..errors import InputError
from ..runs.identity import circumstances
from ..runs.read import Run
from ..runs.schema import Numbers
from .grouping import DataSet, Group, Parts
from .table import Stat

ONE_SEED = "one seed: undecided"
LEVEL = 0.05
MOST_SEEDS = 5  # of more, a table says only how many agree
Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class Source:
    """One reason why a difference is uncertain: a standard error, and the degrees of freedom it is known with."""

    error: float
    freedom: float = math.inf


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

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the interval that misses the truth in a share ``level`` of cases; 0 where no source is known."""
        return math.hypot(*(_quantile(1 - level / 2, s.freedom) * s.error for s in self.sources))

    @property
    def interval(self) -> tuple[float, float] | None:
        half = self.half_width()
        return (self.value - half, self.value + half) if self.sources else None

    @cached_property
    def p(self) -> float | None:
        """The smallest level at which the interval is without 0; None with one seed, where nothing is decided."""
        if self.seeds < 2 or not self.sources:
            return None
        if self.value == 0:
            return 1.0
        low, high = 1e-12, 1.0
        if self.half_width(low) < abs(self.value):
            return low
        for _ in range(60):  # the half-width falls as the level rises
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.half_width(middle) > abs(self.value) else (low, middle)
        return high

    def verdict(self, p: float | None = None) -> str:
        """Whether the first is above the second; ``p`` replaces its own where several are tested."""
        own = self.p
        if own is None:
            return ONE_SEED
        if (own if p is None else p) > LEVEL:
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


def _quantile(share: float, freedom: float) -> float:
    """Of Student's distribution, which is the normal one for infinitely many degrees of freedom."""
    from scipy import special  # takes long to import

    return float(special.ndtri(share) if math.isinf(freedom) else special.stdtrit(freedom, share))


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


def training_of(group: Group) -> str:
    """What was trained: configurations of one name here share a training run, seed by seed, and are not independent.

    τ-normalisation, new heads and multi-stage DRO-LT begin with cross-entropy; ELM with λ = 0 is LogAdj.
    """
    if group.method in ("tau-norm", "crt", "lws", "dro-lt-multistage"):
        return "ce"
    if group.method == "elm" and set(group.changed) == {"lam"} and group.changed["lam"] == 0:
        return "logadj"
    knobs = ", ".join(f"{k}={v}" for k, v in sorted(group.changed.items()))
    return f"{group.method} {knobs}".strip()


def over_seeds(first: Group, second: Group, value: Value, how: str) -> Difference | None:
    """Difference of any one number of a run, with the spread of seeds; None where a run lacks it."""
    ours, theirs = ([value(run) for run in group.runs] for group in (first, second))
    a, b = [v for v in ours if v is not None], [v for v in theirs if v is not None]
    if len(a) < len(ours) or len(b) < len(theirs):
        return None
    by_seed = {run.seed: value(run) for run in second.runs if run.seed is not None}
    pairs = [(value(run), by_seed[run.seed]) for run in first.runs if run.seed in by_seed]
    gaps = tuple(x - y for x, y in pairs if x is not None and y is not None)
    if gaps and training_of(first) == training_of(second):
        source, middle, seeds = paired_source(gaps), math.fsum(gaps) / len(gaps), len(gaps)
        spread = "the spread of the seeds that both have (they share training)"
    else:
        source, seeds = seed_source(a, b), min(len(a), len(b))
        middle = math.fsum(a) / len(a) - math.fsum(b) / len(b)
        spread = "the spread of seeds"
    if source is None:
        return Difference(middle, (), gaps, seeds, how)
    return Difference(middle, (source,), gaps, seeds, f"{how}; {spread} included")


def with_source(difference: Difference | None, error: float | None, freedom: float = math.inf) -> Difference | None:
    """A difference that is uncertain for one more reason."""
    if difference is None or error is None:
        return difference
    return replace(difference, sources=(*difference.sources, Source(error, freedom)))


def accuracy_difference(first: Group, second: Group, part: str = "balanced") -> Difference | None:
    """Test accuracy of the first minus the second: ``part`` is ``"balanced"`` or a group; None where it has no classes.

    Where both tested the same samples and kept which were right, the error over test samples is that of the paired
    comparison; else it comes from the class accuracies as if the two were independent, which is wider.
    """
    error = _paired_error(first, second, part)
    how = "unpaired, from class accuracies" if error is None else "paired over test samples"
    found = over_seeds(first, second, lambda run: accuracy_of(first.parts, run, part), how)
    return with_source(found, _unpaired_error(first, second, part) if error is None else error)


def accuracy_error(group: Group, part: str = "balanced") -> float | None:
    """Half of the 95 % interval of a group's mean accuracy, over test samples and, where there are several, seeds."""
    test = _class_error(group, part)
    of_seeds = paired_source([v for run in group.runs if (v := accuracy_of(group.parts, run, part)) is not None])
    sources = ([] if of_seeds is None else [of_seeds]) + ([] if test is None else [Source(test)])
    return Difference(0.0, tuple(sources), (), len(group.runs), "").half_width() if sources else None


def rate_difference(first: Group, second: Group, value: Value, size: float, how: str) -> Difference | None:
    """Difference of a share of ``size`` test samples: binomial, as if the two were independent, and seeds' spread."""
    rates = [v for group in (first, second) if (v := value(group.first)) is not None]
    if size < 1:
        return None
    return with_source(over_seeds(first, second, value, how), math.sqrt(math.fsum(p * (1 - p) for p in rates) / size))


def class_difference(
    first: Group, second: Group, values: Callable[[Run], Numbers | None], classes: np.ndarray, how: str
) -> tuple[Difference, np.ndarray] | None:
    """Difference of a number by class, mean over the given ``classes`` that have it in every run, and that by class.

    None where a run has none, or fewer than two classes are left.
    """
    rows = [[values(run) for run in group.runs] for group in (first, second)]
    if any(row is None for side in rows for row in side):
        return None
    sides = [np.asarray(side, dtype=float) for side in rows]  # (seeds, classes); None becomes NaN
    known = classes & ~np.isnan(np.concatenate(sides)).any(0)
    if known.sum() < 2:
        return None

    def mean(run: Run) -> float | None:
        row = values(run)
        return None if row is None else float(np.asarray(row, dtype=float)[known].mean())

    gaps = (sides[0].mean(0) - sides[1].mean(0))[known]
    found = over_seeds(first, second, mean, how)
    spread = with_source(found, float(gaps.std(ddof=1)) / math.sqrt(gaps.size), gaps.size - 1)
    return None if spread is None else (spread, gaps)


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


def typical_spread(groups: Iterable[Group]) -> tuple[float, int] | None:
    """The standard deviation of balanced accuracy between seeds, and of how many configurations it is; None without.

    Configurations that share training count once. Those that vary more than thrice the median or less than a third of
    it (collapsed, or wild) do not join.
    """
    by_training: dict[str, Stat] = {}
    for group in groups:
        if group.balanced.std is not None:
            by_training.setdefault(training_of(group), group.balanced)
    stats = list(by_training.values())
    middle = median([s.std or 0.0 for s in stats]) if stats else 0.0
    kept = [s for s in stats if s.std is not None and middle / 3 <= s.std <= 3 * middle]
    if not kept:
        return None
    freedom = sum(s.n - 1 for s in kept)
    return math.sqrt(math.fsum((s.n - 1) * (s.std or 0.0) ** 2 for s in kept) / freedom), len(kept)


def accuracy_of(parts: Parts, run: Run, part: str) -> float | None:
    return run.balanced if part == "balanced" else parts.accuracy(run, part)


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
    one, two = (np.stack([right for right, _ in side]) for side in (kept[: len(first.runs)], kept[len(first.runs) :]))
    gaps = one.mean(0) - two.mean(0)
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
    from ..evaluate import packing

    test = run.summary.test
    if test.correct is None or test.labels is None or test.n is None:
        return None
    try:
        return packing.unpack_correct(test.correct, test.n).numpy(), packing.unpack_labels(test.labels, test.n).numpy()
    except InputError:
        return None


def _unpaired_error(first: Group, second: Group, part: str) -> float | None:
    one, two = (_class_error(group, part) for group in (first, second))
    return None if one is None or two is None else math.hypot(one, two)


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


def reference_head(data: DataSet) -> float | None:
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


def difference_at_equal_head(data: DataSet, first: Group, second: Group, part: str) -> Difference | None:
    """First minus second in ``part`` at equal accuracy of the head, as if unpaired."""
    head, sizes = reference_head(data), first.first.summary.test.per_class_n
    if head is None or sizes is None:
        return None
    size = math.fsum(sizes[c] for c in data.members[part])
    how = f"unpaired, binomial; logits adjusted to {100 * head:.2f} % on the head"
    return rate_difference(first, second, lambda run: at_head(run, head, part), size, how)
