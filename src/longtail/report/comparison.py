"""How far apart two groups of runs are, with an interval which says what the test set and the seeds allow to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..runs.read import Run, circumstances
from .grouping import DataSet, Group
from .table import Stat

Z95 = 1.959964
MOST_SEEDS = 5  # of more, a table says only how many agree


@dataclass(frozen=True)
class Difference:
    """First minus second, with a 95 % interval (None where nothing is known of it).

    ``by_seed`` is the difference of each pair of seeds; ``how`` says where the interval comes from.
    """

    value: float
    low: float | None
    high: float | None
    by_seed: tuple[float, ...]
    how: str

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def ahead(self) -> int:
        """How many seeds have the sign of the whole."""
        sign = math.copysign(1.0, self.value)
        return sum(d * sign > 0 for d in self.by_seed)

    @property
    def verdict(self) -> str:
        """Whether the first is above the second: confirmed, contradicted or undecided; said only as far as it goes."""
        if self.low is None or self.high is None:
            decided = self.seeds > 1 and self.ahead == self.seeds
        else:
            decided = (self.low > 0 or self.high < 0) and self.ahead == self.seeds
        if not decided:
            return "undecided"
        word = "confirmed" if self.value > 0 else "contradicted"
        return word if self.seeds > 1 else f"{word} (one seed)"

    def widened(self, spread: float | None) -> Difference:
        """With an interval that also covers ``spread``, half of the interval which training alone would have."""
        if spread is None:
            return self
        low, high = (0.0 if end is None else abs(end - self.value) for end in (self.low, self.high))
        ends = self.value - math.hypot(low, spread), self.value + math.hypot(high, spread)
        return Difference(self.value, *ends, self.by_seed, f"{self.how}; spread of seeds included")

    def points(self) -> str:
        """As percentage points."""
        return self.text(100, " points")

    def text(self, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
        said = f"{scale * self.value:+.{digits}f}{unit}"
        if self.low is not None and self.high is not None:
            said += f" [{scale * self.low:+.{digits}f}, {scale * self.high:+.{digits}f}]"
        if self.seeds < 2:
            return said
        if self.seeds > MOST_SEEDS:
            return f"{said}, same sign in {self.ahead} of {self.seeds} seeds"
        return f"{said}, by seed {', '.join(f'{scale * d:+.{digits}f}' for d in self.by_seed)}"


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


def pooled(stats: Iterable[Stat | None]) -> tuple[float, int] | None:
    """The standard deviation within groups of seeds and its degrees of freedom; None where no group has two."""
    known = [(s.std, s.n - 1) for s in stats if s is not None and s.std is not None]
    freedom = sum(n for _, n in known)
    return (math.sqrt(math.fsum(n * std**2 for std, n in known) / freedom), freedom) if freedom else None


def spread_of_training(
    data: DataSet, first: Group, second: Group, value: Callable[[Run], float | None]
) -> float | None:
    """How far apart training alone may put the means of two groups, 95 %; None where no configuration has two seeds.

    The spread of seeds is pooled over the configurations under the same circumstances. Runs count as independent: one
    seed begins two methods alike, and after some epochs that is not seen any more.
    """
    from scipy import stats  # takes long to import

    here = circumstances(first.first)
    found = pooled(group.stat(value) for group in data.groups if circumstances(group.first) == here)
    if found is None:
        return None
    return float(stats.t.ppf(0.975, found[1])) * found[0] * math.sqrt(2 / len(paired_runs(first, second)))


def accuracy_difference(first: Group, second: Group, part: str = "balanced") -> Difference | None:
    """Test accuracy of the first minus the second: ``part`` is ``"balanced"`` or a group; None where it has no classes.

    Where both tested the same samples and kept which were right, the interval is that of the paired comparison; else it
    comes from the class accuracies as if the two were independent, which is wider.
    """
    per_seed = _seed_differences(first, second, lambda run: accuracy_of(run, part))
    if per_seed is None:
        return None
    paired = _paired_interval(first, second, part)
    if paired is not None:
        return Difference(*paired, tuple(per_seed), "paired over test samples")
    value = float(np.mean(per_seed))
    half = _unpaired_half_width(first, second, part)
    low, high = (None, None) if half is None else (value - half, value + half)
    return Difference(value, low, high, tuple(per_seed), "unpaired, from class accuracies")


def _paired_interval(first: Group, second: Group, part: str) -> tuple[float, float, float] | None:
    """The paired comparison, where every run kept which of the same test samples were right."""
    from ..evaluate import accuracy

    runs = paired_runs(first, second)
    kept = [_kept(run) for both in runs for run in both]
    known = [k for k in kept if k is not None]
    prints = {run.fingerprint for both in runs for run in both}
    if len(known) < len(kept) or len(prints) > 1 or prints == {""}:
        return None
    labels = known[0][1]
    if any(not np.array_equal(labels, other) for _, other in known):
        return None
    one, two = np.stack([c for c, _ in known[::2]]), np.stack([c for c, _ in known[1::2]])
    interval = accuracy.compare(one, two, labels, first.first.counts).difference[part]
    return None if interval is None else (interval.value, interval.low, interval.high)


def value_difference(first: Group, second: Group, value: Callable[[Run], float | None]) -> Difference | None:
    """Difference of any one number of a run: no interval, the seeds are all that is known."""
    per_seed = _seed_differences(first, second, value)
    if per_seed is None:
        return None
    return Difference(float(np.mean(per_seed)), None, None, tuple(per_seed), "mean over seeds")


def rate_difference(
    data: DataSet, first: Group, second: Group, value: Callable[[Run], float | None], size: float, how: str
) -> Difference | None:
    """Difference of a share of ``size`` test samples: binomial, as if the two were independent, and seeds' spread."""
    found = value_difference(first, second, value)
    if found is None or size < 1:
        return None
    rates = [v for group in (first, second) if (v := value(group.first)) is not None]
    half = Z95 * math.sqrt(math.fsum(p * (1 - p) for p in rates) / size)
    low, high = found.value - half, found.value + half
    return Difference(found.value, low, high, found.by_seed, how).widened(
        spread_of_training(data, first, second, value)
    )


def _seed_differences(first: Group, second: Group, value: Callable[[Run], float | None]) -> list[float] | None:
    pairs = [(value(a), value(b)) for a, b in paired_runs(first, second)]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return known if known and len(known) == len(pairs) else None


def paired_runs(first: Group, second: Group) -> list[tuple[Run, Run]]:
    """Runs of the same seed; without any, the first of each."""
    theirs = {run.seed: run for run in second.runs}
    same = [(run, theirs[run.seed]) for run in first.runs if run.seed is not None and run.seed in theirs]
    return same or [(first.first, second.first)]


def accuracy_of(run: Run, part: str) -> float | None:
    return run.balanced if part == "balanced" else run.group_accuracy(part)


def _kept(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Which test samples were right, and the test labels, in test order; None where the summary did not keep them."""
    from ..evaluate import packing

    test = run.summary.test
    if test.correct is None or test.labels is None or test.n is None:
        return None
    try:
        return packing.unpack_correct(test.correct, test.n).numpy(), packing.unpack_labels(test.labels, test.n).numpy()
    except InputError:
        return None


def _class_weights(run: Run, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Recall, sample size and weight in the mean of every class that counts."""
    recall, sizes = run.summary.test.per_class, run.summary.test.per_class_n
    if sizes is None:
        return None
    members = range(len(recall)) if part == "balanced" else run.counts.groups()[part].tolist()
    kept = [(r, sizes[c]) for c in members if (r := recall[c]) is not None and sizes[c] > 0]
    if not kept:
        return None
    p, n = np.asarray([r for r, _ in kept], dtype=float), np.asarray([size for _, size in kept], dtype=float)
    return p, n, np.full(len(kept), 1 / len(kept))


def _unpaired_half_width(first: Group, second: Group, part: str) -> float | None:
    variance = 0.0
    for group in (first, second):
        known = _class_weights(group.first, part)
        if known is None:
            return None
        p, n, weight = known
        # (hits + 1)/(n + 2) keeps a class that was always right or always wrong from counting as certain
        q = (p * n + 1) / (n + 2)
        variance += float((weight**2 * q * (1 - q) / n).sum())
    return Z95 * math.sqrt(variance)
