"""What can be done after training, with anybody's logits and features: adjust, normalise, rescale, or drop the head.

Every function takes numpy arrays or tensors and gives back the same kind. Knobs are chosen on a validation part with
``choose``; nothing here ever looks at test labels.

>>> import numpy as np
>>> logit_adjust(np.array([[1.0, 0.9]]), counts=[90, 10]).round(2)      # log π = (−0.11, −2.30)
array([[1.11, 3.2 ]])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .counts import ClassCounts, class_counts
from .errors import InputError, one_of, real, whole
from .evaluate import accuracy, neighbours
from .evaluate.predictions import Part, Predictions
from .numeric import compute_dtype, labelled_logits, matrix, tensor
from .priors import em_prior, implied_prior, log_prior_of, mean_prior, same_kind, shift_prior

__all__ = [
    "KINDS",
    "Applied",
    "Choice",
    "Kind",
    "apply",
    "choose",
    "em_prior",
    "estimated_prior",
    "implied_prior",
    "knn",
    "knn_on_train",
    "logit_adjust",
    "lws_scales",
    "mean_prior",
    "ncm",
    "shift_prior",
    "tau_norm",
    "tau_normalise",
]


@same_kind
def logit_adjust(logits: Any, counts: ClassCounts | Any = None, tau: float = 1.0, *, prior: Any = None) -> Tensor:
    """``f_y(x) − τ log π_y`` (Menon et al. 2021): for models trained without a margin, balanced at τ = 1.

    ``prior`` takes the place of the counts where they are unknown: see ``implied_prior``.
    """
    f = matrix(logits, "logits")
    dtype = compute_dtype(f)
    shift = real("tau", tau) * log_prior_of(counts, prior, f.shape[1])
    return f.to(dtype) - shift.to(f.device, dtype)


@same_kind
def tau_normalise(weight: Any, tau: float = 1.0) -> Tensor:
    """``w_y / ‖w_y‖^τ`` (Kang et al. 2020), (C, K); the head's bias is to be dropped. A row of zeros stays.

    >>> tau_normalise(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), tau=1.0)
    tensor([[0.6000, 0.8000], [0.0000, 1.0000]])
    """
    w = matrix(weight, "weight")
    w = w.to(compute_dtype(w))
    norm = w.norm(dim=1, keepdim=True)
    return w / torch.where(norm > 0, norm, torch.ones_like(norm)) ** real("tau", tau)


@same_kind
def tau_norm(embeddings: Any, weight: Any, tau: float = 1.0) -> Tensor:
    """Logits (N, C) of the τ-normalised head without bias."""
    x = matrix(embeddings, "embeddings", squared=True)
    w = matrix(weight, "weight", x.shape[1])
    dtype = compute_dtype(x)
    normalised: Tensor = tau_normalise(w, tau)
    return x.to(dtype) @ normalised.to(x.device, dtype).T


@same_kind
def lws_scales(logits: Any, labels: Any, strength: float = 0.1, iterations: int = 100) -> Tensor:
    """Learnable weight scaling (Kang et al. 2020): one factor s_y a class, (C,) in float64, for ``s_y · f_y(x)``.

    Minimises the class-balanced cross-entropy of the scaled logits plus ``strength · mean (s_y − 1)²``: convex, so the
    answer does not depend on a seed. The penalty keeps s finite on training logits that are already perfect.
    """
    f, y = labelled_logits(logits, labels)
    strength = real("strength", strength, at_least=0)
    n = torch.bincount(y, minlength=f.shape[1])
    weight = (1 / n.clamp(min=1).double()) / (n > 0).sum()
    f = f.to(compute_dtype(f))
    sample_weight = weight[y].to(f.dtype)
    scales = torch.ones(f.shape[1], dtype=torch.float64, device=f.device, requires_grad=True)
    solver = torch.optim.LBFGS([scales], max_iter=iterations, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Tensor:
        solver.zero_grad()
        fit = (cross_entropy(f * scales.to(f.dtype), y, reduction="none") * sample_weight).sum().double()
        loss = fit + strength * (scales - 1).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return scales.detach()


@same_kind
def ncm(
    embeddings: Any, train_embeddings: Any, train_labels: Any, num_classes: int, *, normalise: bool = False
) -> Tensor:
    """Nearest class mean: scores ``−‖Φ(x) − μ_y‖²/2``, (N, C); with ``normalise``, of unit-length vectors (cosine).

    A class without training samples scores below every other.
    """
    d, present = neighbours.mean_distances(train_embeddings, train_labels, embeddings, num_classes, normalise=normalise)
    scores = -d / 2
    lowest = scores[:, present].amin(1, keepdim=True) - 1
    return torch.where(present, scores, lowest)


@same_kind
def knn(
    embeddings: Any,
    train_embeddings: Any,
    train_labels: Any,
    num_classes: int,
    k: float = 10,
    *,
    normalise: bool = False,
) -> Tensor:
    """k nearest neighbours: scores ``log((votes_y + 1/C)/(k + 1))``, (N, C), whose softmax is the smoothed vote.

    Equally many votes are settled by the nearest voter (a thousandth of a vote, so the order of others is kept).
    """
    k = whole("k", int(k) if float(k).is_integer() else k, 1)
    near = neighbours.nearest_labels(train_embeddings, train_labels, embeddings, k, num_classes, normalise=normalise)
    return _vote_scores(near, num_classes)


def knn_on_train(predictions: Predictions, k: int) -> Predictions:
    """The training part with the scores of ``knn``, no sample being its own neighbour."""
    train = predictions.train
    if train is None or train.embeddings is None or len(train) < 2:
        return predictions
    n, c = len(train), predictions.num_classes
    k = min(k, n - 1)
    _, near = neighbours.nearest(train.embeddings, train.embeddings, k + 1)
    # Of k + 1 the sample itself goes, or the farthest where equal ones hide it
    own = near == torch.arange(n)[:, None]
    own[:, -1] |= ~own.any(1)
    labels = train.labels[near[~own].reshape(n, k)]
    return replace(predictions, train=replace(train, logits=_vote_scores(labels, c)))


def _vote_scores(near: Tensor, num_classes: int) -> Tensor:
    """Scores (N, C) of the neighbours' labels (N, k), nearest first."""
    winner = neighbours.majority(near)[:, None]
    count = torch.zeros(near.shape[0], num_classes, device=near.device)
    count.scatter_add_(1, near, torch.ones_like(near, dtype=count.dtype))
    count.scatter_add_(1, winner, torch.full_like(winner, 1, dtype=count.dtype) * 1e-3)
    return ((count + 1 / num_classes) / (near.shape[1] + 1)).log()


# Choosing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The value that was best on validation data, with the balanced accuracy of every value tried."""

    value: float
    scores: Mapping[float, float]


def choose(
    make: Callable[[float], Any], grid: Sequence[float], labels: Any, counts: ClassCounts | Any = None
) -> Choice:
    """Try each value of a knob on validation data: ``make(value)`` gives validation logits (N, C).

    The highest balanced accuracy wins; of equal ones the first of the grid.

    >>> logits, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> choose(lambda t: t * logits, [-1.0, 1.0, 2.0], labels).value
    1.0
    """
    if len(grid) == 0:
        raise InputError("the grid of values to choose from is empty")
    scores: dict[float, float] = {}
    for value in grid:
        logits = tensor(make(value), "logits")
        scores[value] = accuracy.summary(logits, labels, counts_or_ones(counts, logits.shape[-1])).balanced
    return Choice(max(scores, key=lambda v: scores[v]), scores)


def counts_or_ones(counts: Any, classes: int) -> ClassCounts:
    """Counts to compute balanced accuracy with, which does not depend on them, where none are known."""
    return ClassCounts([1] * classes) if counts is None else class_counts(counts, classes)


# Whole predictions --------------------------------------------------------------------------------------------------

_TENTHS = tuple(round(0.1 * i, 1) for i in range(21))
CHANGED = ("val", "test")  # the parts that get new logits: train keeps its own
Scores = Callable[[Part, float], Any]


def _adjusted(predictions: Predictions, counts: ClassCounts | None) -> Scores:
    prior = estimated_prior(predictions) if counts is None else None
    return lambda part, tau: logit_adjust(part.logits, counts, tau, prior=prior)


def _normalised(predictions: Predictions, counts: ClassCounts | None) -> Scores:
    weight = predictions.head_weight
    if weight is None:
        raise InputError("tau-norm needs the head's weights (head_weight), and the predictions have none")
    for name, part in predictions.parts(*CHANGED).items():
        _check_head(part, weight, name)
    return lambda part, tau: tau_norm(part.embeddings, weight, tau)


def _rescaled(predictions: Predictions, counts: ClassCounts | None) -> Scores:
    fit = predictions.val if predictions.train is None else predictions.train
    if fit is None:
        raise InputError("lws learns its scales from training or validation logits, and the predictions have neither")
    scales = functools.cache(lambda strength: lws_scales(fit.logits, fit.labels, strength))
    return lambda part, v: part.logits.to(compute_dtype(part.logits)) * scales(v).to(compute_dtype(part.logits))


def _by_means(predictions: Predictions, counts: ClassCounts | None) -> Scores:
    train: Any = predictions.train
    return lambda part, _: ncm(part.embeddings, train.embeddings, train.labels, predictions.num_classes)


def _by_neighbours(predictions: Predictions, counts: ClassCounts | None) -> Scores:
    train: Any = predictions.train
    return lambda part, k: knn(part.embeddings, train.embeddings, train.labels, predictions.num_classes, k)


@dataclass(frozen=True)
class Kind:
    """A post-hoc method, as ``apply`` and the command know it.

    Attributes:
        prepare: from predictions and training counts (None if unknown) to a function of a part and the knob's value,
            which gives the part's new logits.
        knob, grid: what is chosen, and from which values; None where there is nothing to choose.
        counts_samples: the knob is a number of training samples: a whole one, and no more than there are.
        unjudged: the knob's value where the method learns from the validation part, for want of a training part: what
            it was fitted to cannot judge it too. None for a method that does not learn.
        uses: what there must be beside labels: ``"logits"``, which always are; ``"embeddings"`` too; or embeddings
            alone, those in ``"train"`` among them.
        without_counts: what is done where training counts are unknown, for a message.
    """

    prepare: Callable[[Predictions, ClassCounts | None], Scores]
    knob: str | None = None
    grid: tuple[float, ...] = ()
    counts_samples: bool = False
    unjudged: float | None = None
    uses: Literal["logits", "embeddings", "train"] = "logits"
    without_counts: str | None = None

    def check(self, name: str, predictions: Predictions) -> None:
        """Refuse predictions that lack what the method uses."""
        if self.uses == "train" and predictions.train is None:
            raise InputError(f"{name} needs the training embeddings and labels, and the predictions have none")
        parts = predictions.parts() if self.uses == "train" else predictions.parts(*CHANGED)
        if self.uses != "logits" and any(part.embeddings is None for part in parts.values()):
            raise InputError(f"{name} needs embeddings, and the predictions have none")

    def candidates(self, predictions: Predictions, grid: Sequence[float] | None) -> tuple[float, ...]:
        """The values of the grid, or of the method's own, that these predictions can choose from."""
        train = predictions.train
        if grid is None and train is None and self.unjudged is not None:
            return (self.unjudged,)
        values = tuple(self.grid if grid is None else grid)
        if self.counts_samples and train is not None:
            return tuple(k for k in values if k <= len(train)) or (1,)
        return values


KINDS = {
    "tau-norm": Kind(_normalised, "tau", _TENTHS, uses="embeddings"),
    "logit-adjust": Kind(_adjusted, "tau", _TENTHS, without_counts="the prior is estimated from the logits"),
    "lws": Kind(_rescaled, "strength", (10.0, 1.0, 0.1, 0.01, 0.001), unjudged=0.1),
    "ncm": Kind(_by_means, uses="train"),
    "knn": Kind(_by_neighbours, "k", (1, 3, 5, 10, 20, 50), counts_samples=True, uses="train"),
}


@dataclass(frozen=True, eq=False)
class Applied:
    """Predictions with the new logits in place of the old (train keeps its own), and what was chosen how."""

    predictions: Predictions
    step: dict[str, Any]


def apply(
    predictions: Predictions,
    kind: str,
    *,
    counts: ClassCounts | Any = None,
    grid: Sequence[float] | None = None,
    value: float | None = None,
) -> Applied:
    """Apply a post-hoc method, one of ``KINDS``, to the validation and test parts of predictions.

    The knob is ``value`` if given, else the value of ``grid`` that is best on the validation part. ``step`` is plain
    data for ``summary.json``: kind, knob, value and the validation scores of the grid.
    """
    method = KINDS[one_of("post-hoc method", kind, KINDS)]
    counts = predictions.counts if counts is None else class_counts(counts, predictions.num_classes)
    method.check(kind, predictions)
    scores, knob, val = method.prepare(predictions, counts), method.knob, predictions.val
    tried: dict[str, float] = {}
    if knob is None:
        if value is not None:
            raise InputError(f"{kind} has no knob to set, got value {value}")
    elif value is None:
        if val is None:
            raise InputError(
                f"choosing {knob} needs a validation part (val_logits, val_labels): give it, or {knob}'s value"
            )
        chosen = choose(lambda v: scores(val, v), method.candidates(predictions, grid), val.labels, counts)
        value, tried = chosen.value, {f"{v:g}": s for v, s in chosen.scores.items()}
    old = predictions.parts(*CHANGED)
    new: dict[str, Any] = {name: replace(part, logits=scores(part, value or 0.0)) for name, part in old.items()}
    return Applied(replace(predictions, **new), {"kind": kind, "knob": knob, "value": value, "val": tried})


def _check_head(part: Any, weight: Tensor, name: str) -> None:
    """Refuse weights that did not make the logits, up to rounding, a bias, and what is the same for all classes."""

    def centred(f: Tensor) -> Tensor:
        f = f.double()
        return f - f.mean(0) - f.mean(1, keepdim=True) + f.mean()

    given, made = centred(part.logits), centred(part.embeddings.double() @ weight.double().T)
    off = float((made - given).norm() / given.norm().clamp(min=1e-12))
    if off > 0.1 and float(made.norm()) > 1e-6:
        raise InputError(
            f"head_weight did not make {name}_logits: embeddings @ head_weight.T differ by {off:.0%} of their "
            "spread; store the last layer's weights (C, K), the embeddings that go into it, and logits as it gives them"
        )


def estimated_prior(predictions: Predictions) -> Tensor:
    """The training prior where no counts are known: the one that logits imply on the validation part, whose own prior
    is its label frequencies plus one; without such a part, on test samples taken as balanced (their labels unseen)."""
    if (val := predictions.val) is not None:
        target = torch.bincount(val.labels, minlength=predictions.num_classes).double() + 1
        prior: Tensor = implied_prior(val.logits, target)
    elif predictions.test is not None:
        prior = implied_prior(predictions.test.logits)
    else:
        raise InputError("a prior is estimated from validation or test logits, and the predictions have neither")
    return prior
