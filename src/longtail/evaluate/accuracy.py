"""How good predictions are when every class matters alike.

All values are fractions in [0, 1]. Classes without test samples have no recall: they are NaN in ``per_class`` and left
out of every mean. Groups are by *training* count: head ≥ 100, torso [20, 100), tail < 20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..errors import InputError, real, whole
from ..numeric import class_labels, labelled_logits, row_blocks, tensor


class Worst(NamedTuple):
    """The class of lowest recall (the first of them)."""

    label: int
    accuracy: float


class Interval(NamedTuple):
    """A value with a confidence interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Summary:
    """What ``summary`` computes.

    Attributes:
        n: number of test samples.
        balanced: mean recall over the classes that have test samples; ``error`` is 1 − balanced.
        accuracy: plain fraction of right predictions.
        per_class: recalls, float64 (C,), NaN for classes without test samples.
        per_class_n: test samples a class, int64 (C,).
        evaluated: number of classes that have test samples.
        groups: ``{"head": (mean recall or None, number of classes), "torso": …, "tail": …}``; the number is that of
            classes in the group, the mean runs over those of them that have test samples.
        worst: class of lowest recall.
        geometric_mean, harmonic_mean: of the recalls; 0 as soon as one class is never recognised.
        ece: expected calibration error (15 equal bins), None where there are no probabilities.
        ece_groups: the same over the samples of each group's classes, None for a group without samples.
        labels, predicted: int64 (N,).
    """

    n: int
    balanced: float
    accuracy: float
    per_class: Tensor
    per_class_n: Tensor
    groups: dict[str, tuple[float | None, int]]
    worst: Worst
    geometric_mean: float
    harmonic_mean: float
    ece: float | None
    ece_groups: dict[str, float | None]
    counts: ClassCounts = field(repr=False)
    labels: Tensor = field(repr=False)
    predicted: Tensor = field(repr=False)

    @property
    def error(self) -> float:
        """Balanced error."""
        return 1.0 - self.balanced

    @property
    def evaluated(self) -> int:
        return int((self.per_class_n > 0).sum())

    @property
    def correct(self) -> Tensor:
        """Whether each prediction is right, bool (N,)."""
        return self.labels == self.predicted

    @cached_property
    def confusion(self) -> Tensor:
        """``confusion[y, y']``: samples of class y predicted as y', int64 (C, C); made when first asked for."""
        c = self.counts.num_classes
        return torch.bincount(self.labels * c + self.predicted, minlength=c * c).reshape(c, c)

    def top_confusions(self, most: int = 50) -> list[tuple[int, int, int]]:
        """The commonest mistakes as (label, predicted, samples), without a C×C matrix."""
        wrong, c = ~self.correct, self.counts.num_classes
        pairs, n = torch.unique(self.labels[wrong] * c + self.predicted[wrong], return_counts=True)
        order = torch.argsort(n, descending=True, stable=True)[:most]
        return [(p // c, p % c, m) for p, m in zip(pairs[order].tolist(), n[order].tolist())]

    def interval(self, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
        """Bootstrap interval of ``balanced`` over test samples, see ``bootstrap``."""
        found = bootstrap(self.correct, self.labels, self.counts, resamples=resamples, level=level, seed=seed)
        balanced = found["balanced"]
        assert balanced is not None  # a summary has samples
        return balanced


def summary(logits: Any, labels: Any, counts: ClassCounts | Any) -> Summary:
    """Every measure of accuracy and calibration of logits (N, C) against labels (N,).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 1, 0], [2, 1, 0], [0, 1, 0]])
    >>> s = summary(logits, torch.tensor([0, 1, 1]), ClassCounts([500, 50, 5]))
    >>> s.balanced, s.per_class.tolist(), s.groups
    (0.75, [1.0, 0.5, nan], {'head': (1.0, 1), 'torso': (0.5, 1), 'tail': (None, 1)})
    """
    scores, y = labelled_logits(logits, labels)
    counts = class_counts(counts, scores.shape[1])
    predicted = torch.empty_like(y)
    confidence = torch.empty(y.shape, dtype=torch.float64)
    for rows in row_blocks(*scores.shape):
        block = scores[rows].double()
        top, predicted[rows] = block.max(1)
        confidence[rows] = torch.exp(top - block.logsumexp(1)).cpu()
    return _summarise(predicted.cpu(), y.cpu(), counts, confidence)


def of_labels(predicted: Any, labels: Any, counts: ClassCounts | Any) -> Summary:
    """The same for predicted classes (N,), where there are no probabilities to calibrate."""
    counts = class_counts(counts)
    p = class_labels(predicted, "predicted labels", num_classes=counts.num_classes).cpu()
    y = class_labels(labels, rows=p.shape[0], num_classes=counts.num_classes).cpu()
    return _summarise(p, y, counts, None)


def _summarise(predicted: Tensor, y: Tensor, counts: ClassCounts, confidence: Tensor | None) -> Summary:
    if y.numel() == 0:
        raise InputError("there are no samples to evaluate")
    c = counts.num_classes
    n = torch.bincount(y, minlength=c)
    correct = predicted == y
    recall = torch.bincount(y[correct], minlength=c).double() / n  # 0/0 is NaN: no recall without samples
    present = recall[n > 0]
    in_group, means = counts.groups(), group_means(recall, counts)
    worst = int(torch.where(n > 0, recall, torch.inf).argmin())
    ece_groups: dict[str, float | None] = dict.fromkeys(in_group)
    if confidence is not None:
        for name, classes in in_group.items():
            member = torch.zeros(c, dtype=torch.bool).index_fill_(0, classes, True)[y]
            ece_groups[name] = calibration_error(confidence[member], correct[member]) if bool(member.any()) else None
    return Summary(
        n=y.numel(),
        balanced=float(present.mean()),
        accuracy=float(correct.double().mean()),
        per_class=recall,
        per_class_n=n,
        groups={name: (means[name], len(classes)) for name, classes in in_group.items()},
        worst=Worst(worst, float(recall[worst])),
        geometric_mean=float(present.log().mean().exp()),
        harmonic_mean=float(1 / (1 / present).mean()),
        ece=None if confidence is None else calibration_error(confidence, correct),
        ece_groups=ece_groups,
        counts=counts,
        labels=y,
        predicted=predicted,
    )


def group_means(values: Tensor, counts: ClassCounts) -> dict[str, float | None]:
    """Means of per-class values (C,) over the classes of a group that have one; NaN is none."""
    members = {name: values.cpu()[classes] for name, classes in counts.groups().items()}
    known = {name: mine[~mine.isnan()] for name, mine in members.items()}
    return {name: float(mine.mean()) if mine.numel() else None for name, mine in known.items()}


def calibration_error(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Expected calibration error ``Σ_b n_b/n · |accuracy_b − confidence_b|`` over equal bins [i/bins, (i+1)/bins).

    A confidence of exactly 1 belongs to the last bin.
    """
    p, right = (tensor(x, what).double() for x, what in ((confidence, "confidence"), (correct, "correct")))
    if p.ndim != 1 or p.shape != right.shape:
        raise InputError(f"confidence and correct must be one a sample, got shapes {[*p.shape]} and {[*right.shape]}")
    if p.numel() == 0:
        raise InputError("there are no samples to calibrate")
    for what, values in (("confidence", p), ("correct", right)):
        if not bool(((values >= 0) & (values <= 1 + 1e-6)).all()):  # a softmax in float32 may round above 1
            raise InputError(f"{what} must be in [0, 1] for every sample")
    bins = whole("bins", bins, 1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    index = (torch.bucketize(p, edges, right=True) - 1).clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, right - p)
    return float(gap.abs().sum() / p.numel())


def bootstrap(
    values: Any,
    labels: Any,
    counts: ClassCounts | Any,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval | None]:
    """Percentile intervals of class-balanced means of ``values`` (N,), over test samples.

    Samples are drawn with replacement *within* each class: the size of a class's test set is part of the protocol, not
    of chance, and a class that vanished from a resample would leave its recall undefined. What varies is which samples
    of a class were tested; the training run does not (that is what several seeds are for).

    Returns ``{"balanced": …, "head": …, "torso": …, "tail": …}``, None for a group without test samples. Values are
    correctness (bool) for an accuracy, or differences of two of them for a comparison.

    >>> bootstrap([True, True, False, True], [0, 0, 1, 1], [9, 1], resamples=200)["balanced"]
    Interval(value=0.75, low=0.5, high=1.0)
    """
    level = real("the level of an interval", level, above=0, below=1)
    resamples = whole("resamples", resamples, 1)
    counts = class_counts(counts)
    y = class_labels(labels, num_classes=counts.num_classes).cpu().numpy()
    v = torch.as_tensor(values).detach().cpu().double().numpy()
    if v.shape != y.shape:
        raise InputError(f"values must be one a sample, shape {y.shape}, got {v.shape}")
    if not np.isfinite(v).all():
        raise InputError(f"values must be finite, but row {int(np.flatnonzero(~np.isfinite(v))[0])} is not")
    if not y.size:
        raise InputError("there are no samples to evaluate")
    rng = np.random.default_rng(seed)
    order = np.argsort(y, kind="stable")
    classes, starts, sizes = np.unique(y[order], return_index=True, return_counts=True)
    true, drawn = np.empty(len(classes)), np.empty((resamples, len(classes)), dtype=np.float32)
    for i, (start, size) in enumerate(zip(starts, sizes)):
        mine = v[order[start : start + size]]
        true[i] = mine.mean()
        # For few distinct values (correctness) the counts of each are multinomial: the same law, far fewer draws.
        distinct, times = np.unique(mine, return_counts=True)
        if len(distinct) <= 3:
            drawn[:, i] = rng.multinomial(size, times / size, size=resamples) @ distinct / size
        else:
            drawn[:, i] = mine[rng.integers(size, size=(resamples, size))].mean(1)
    tails = [50 * (1 - level), 50 * (1 + level)]
    result: dict[str, Interval | None] = {}
    groups = {"balanced": np.arange(counts.num_classes), **{k: g.numpy() for k, g in counts.groups().items()}}
    for name, members in groups.items():
        chosen = np.isin(classes, members)
        if not chosen.any():
            result[name] = None
            continue
        low, high = np.percentile(drawn[:, chosen].mean(1, dtype=np.float64), tails)
        result[name] = Interval(float(true[chosen].mean()), float(low), float(high))
    return result


class Spread(NamedTuple):
    """Mean and sample standard deviation (divides by n − 1) over seeds; None for a single seed."""

    mean: float
    std: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.std is None else f"{self.mean:.4f} ± {self.std:.4f}"


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean ± standard deviation over runs that differ in their seed only.

    >>> print(over_seeds([0.75, 0.77]))
    0.7600 ± 0.0141
    """
    if len(values) == 0:
        raise InputError("there are no runs to average")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Spread(mean, None, 1)
    return Spread(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), len(values))


class Comparison(NamedTuple):
    """Paired difference of two methods, first minus second, overall and by group; ``seeds`` where runs pair up."""

    difference: dict[str, Interval | None]
    seeds: Spread | None

    @property
    def decided(self) -> bool:
        """Whether the interval of the balanced difference leaves out 0."""
        d = self.difference["balanced"]
        assert d is not None
        return d.low > 0 or d.high < 0


def compare(
    first: Any,
    second: Any,
    labels: Any,
    counts: ClassCounts | Any,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two methods on the same test samples, in the same order.

    ``first`` and ``second`` say whether each sample is right: (N,) of one run, or (S, N) of S runs, paired by seed if
    both have S > 1. The interval of the difference is over test samples (see ``bootstrap``), each sample counted with
    its mean over runs; ``seeds`` is mean ± std of the balanced difference over paired seeds.
    """
    a, b = (torch.atleast_2d(torch.as_tensor(x).detach().cpu().double()) for x in (first, second))
    counts = class_counts(counts)
    y = class_labels(labels, rows=a.shape[-1], num_classes=counts.num_classes).cpu()
    if a.shape[-1] != b.shape[-1]:
        raise InputError(f"both methods must be tested on the same samples, got {a.shape[-1]} and {b.shape[-1]}")
    for correct in (a, b):
        if not bool(((correct >= 0) & (correct <= 1)).all()):
            raise InputError("a comparison needs whether each sample is right (True or False), not logits or labels")
    difference = bootstrap(a.mean(0) - b.mean(0), y, counts, resamples=resamples, level=level, seed=seed)
    seeds = None
    if a.shape[0] == b.shape[0] and a.shape[0] > 1:
        n = torch.bincount(y, minlength=counts.num_classes)
        weight = 1 / (n[y] * (n > 0).sum())
        seeds = over_seeds(((a - b) @ weight.double()).tolist())
    return Comparison(difference, seeds)
