"""A difference and how far it is known: standard errors with their degrees of freedom, intervals, verdicts.

Nothing is decided without a known spread of seeds on both sides: one seed gives an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

ONE_SEED = "one seed: undecided"
LEVEL = 0.05
MOST_SEEDS = 5  # of more, a table says only how many agree


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
