"""What the embeddings and logits look like, class by class: margins, distances, variances, collapse, neighbours.

Everything runs in blocks of rows, so memory above the data stays bounded: the embeddings are never copied or sorted as
a whole. Distances are taken after subtracting the class mean, which keeps float32 accurate; sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..errors import InputError, whole
from ..numeric import (
    class_labels,
    class_means,
    compute_dtype,
    labelled,
    labelled_logits,
    logit_margins,
    matrix,
    row_blocks,
    tensor,
    unit_rows,
)
from . import accuracy, neighbours

PAIR_ROWS = 2048  # a block of distances is at most PAIR_ROWS × PAIR_ROWS


def margins(logits: Any, labels: Any) -> Tensor:
    """Logit margins ``γ(x, y) = f_y(x) − max_{y'≠y} f_y'(x)``, (N,): positive where the prediction is right.

    >>> margins(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2]))
    tensor([ 2., -3.])
    """
    f, y = labelled_logits(logits, labels)
    if f.shape[1] < 2:
        raise InputError("a margin needs logits of at least two classes, got one")
    out = torch.empty(y.shape, dtype=compute_dtype(f), device=f.device)
    for rows in row_blocks(*f.shape):
        out[rows] = logit_margins(f[rows].to(out.dtype), y[rows])
    return out


def cdf(values: Any, points: int | None = None) -> tuple[Tensor, Tensor]:
    """Empirical distribution function: sorted values x and F(x) = fraction of values ≤ x, both (N,).

    With ``points``, the quantiles at that many evenly spaced fractions instead: what is drawn of a large sample.

    >>> cdf([3.0, 1.0])
    (tensor([1., 3.], dtype=torch.float64), tensor([0.5000, 1.0000], dtype=torch.float64))
    """
    v = tensor(values, "values").flatten().double()
    if v.numel() == 0:
        raise InputError("there are no values to take the distribution of")
    x = v.sort().values
    if points is None:
        return x, torch.arange(1, x.numel() + 1, dtype=torch.float64, device=x.device) / x.numel()
    points = whole("points", points, 2)
    fractions = torch.linspace(0, 1, points, dtype=torch.float64, device=x.device)
    # torch.quantile refuses more than 16 million values; interpolation in the sorted sample does not
    position = fractions * (x.numel() - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=x.numel() - 1)
    return torch.lerp(x[low], x[high], position - low), fractions


class Pairs(NamedTuple):
    """A block of squared distances within class ``label``: ``squared[i, j] = ‖Φ(rows[i]) − Φ(columns[j])‖²``."""

    label: int
    size: int
    rows: Tensor
    columns: Tensor
    squared: Tensor
    first: bool
    last: bool


def pairs_by_class(embeddings: Tensor, labels: Tensor, dtype: torch.dtype, block: int = PAIR_ROWS) -> Iterator[Pairs]:
    """All distances within classes, a block at a time; ``first`` and ``last`` mark a block of rows' column blocks.

    A sample's distance to itself is exactly 0. Memory: a few blocks of block × max(block, K) numbers.
    """
    order = labels.argsort(stable=True)
    present, sizes = torch.unique_consecutive(labels[order], return_counts=True)
    for label, members in zip(present.tolist(), order.split(sizes.tolist())):
        chunks = members.split(block)
        first_chunk = embeddings[chunks[0]]
        total = first_chunk.sum(0, dtype=torch.float64)
        for chunk in chunks[1:]:
            total += embeddings[chunk].sum(0, dtype=torch.float64)
        centre = (total / len(members)).to(dtype)
        for i, rows in enumerate(chunks):
            a = (first_chunk if i == 0 else embeddings[rows]).to(dtype) - centre
            a_squared = a.square().sum(1)
            for j, columns in enumerate(chunks):
                b = a if i == j else embeddings[columns].to(dtype) - centre
                b_squared = a_squared if i == j else b.square().sum(1)
                d = torch.addmm(b_squared.unsqueeze(0), a, b.T, alpha=-2).add_(a_squared.unsqueeze(1)).clamp_(min=0)
                if i == j:
                    d.fill_diagonal_(0)
                yield Pairs(label, len(members), rows, columns, d, j == 0, j == len(chunks) - 1)


def max_intra_distance(embeddings: Any, labels: Any, normalise: bool = False) -> Tensor:
    """``d_max(x) = max_{x⁺∈S_y} ‖Φ(x) − Φ(x⁺)‖₂``, (N,): the distance to the farthest sample of the same class.

    0 for the only sample of a class. With ``normalise``, divided by the largest embedding norm, as in the paper.

    >>> max_intra_distance(torch.tensor([[0.0, 0], [3, 4], [9, 9]]), torch.tensor([0, 0, 1]))
    tensor([5., 5., 0.])
    """
    x, y = labelled(embeddings, labels)
    out = torch.empty(y.shape, dtype=compute_dtype(x), device=x.device)
    for p in pairs_by_class(x, y, out.dtype):
        value, at = p.squared.max(1)
        if p.first:
            best, where = value, p.columns[at]
        else:
            better = value > best
            best, where = torch.where(better, value, best), torch.where(better, p.columns[at], where)
        if p.last:
            # The product form finds the farthest sample; its distance is then taken without cancellation.
            out[p.rows] = (x[p.rows].to(out.dtype) - x[where].to(out.dtype)).norm(dim=1)
    if normalise:
        out /= max_norm(x).clamp(min=torch.finfo(out.dtype).tiny).to(out.dtype)
    return out


def max_norm(embeddings: Any) -> Tensor:
    """``max_x ‖Φ(x)‖₂``, what the paper normalises distances by."""
    x = matrix(embeddings, "embeddings", squared=True)
    norms = [x[rows].double().norm(dim=1).amax() for rows in row_blocks(*x.shape)]
    return torch.stack(norms).amax() if norms else x.new_zeros((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Scatter:
    """First and second moments by class.

    Attributes:
        n: class sizes, int64 (C,).
        means: class means, float64 (C, K); rows of empty classes are 0.
        variances: ``Σ_j V̂[Φ_j | y]`` (divides by n_y), float64 (C,); NaN for empty classes.
    """

    n: Tensor
    means: Tensor
    variances: Tensor

    @property
    def present(self) -> Tensor:
        return self.n > 0

    @property
    def intra(self) -> float:
        """Mean class variance over the classes that have samples."""
        return float(self.variances[self.present].mean())

    @property
    def inter(self) -> float:
        """Mean squared distance of the class means from their own mean."""
        m = self.means[self.present]
        return float((m - m.mean(0)).square().sum(1).mean())

    @property
    def ratio(self) -> float:
        """Intra over inter: small when classes are tight for how far apart they lie; NaN for a single class."""
        return self.intra / self.inter if self.inter > 0 else nan


def scatter(embeddings: Any, labels: Any, num_classes: int | None = None) -> Scatter:
    """Class means and variances in two passes (the second about the means, so nothing cancels)."""
    x, y = labelled(embeddings, labels, num_classes)
    c = num_classes if num_classes is not None else int(y.max()) + 1 if y.numel() else 0
    if c == 0 or y.numel() == 0:
        raise InputError("there are no embeddings to take means of")
    means, n = class_means(x, y, c)
    squares = torch.zeros(c, dtype=torch.float64, device=x.device)
    for rows in row_blocks(*x.shape):
        squares.index_add_(0, y[rows], (x[rows].double() - means[y[rows]]).square().sum(1))
    return Scatter(n, means, squares / n)


def class_variances(embeddings: Any, labels: Any, num_classes: int | None = None) -> Tensor:
    """``Σ_j V̂[Φ_j | y]`` for each class, float64 (C,), NaN for classes without samples."""
    return scatter(embeddings, labels, num_classes).variances


class NeuralCollapse(NamedTuple):
    """All are 0 at full collapse (Papyan, Han and Donoho 2020); NaN where there are too few classes or no spread.

    The centre of the class means is their plain mean, so that rare classes weigh as much as frequent ones.

    Attributes:
        nc1: variability, ``tr(Σ_W Σ_B⁺)/C``, within- against between-class covariance (Σ_W the mean over classes).
        equinorm: std/mean of ‖μ_y − μ‖.
        equiangle: standard deviation of cos(μ_y − μ, μ_y' − μ) over pairs of classes.
        max_angle: mean of |cos + 1/(C−1)| over pairs: distance from the simplex.
        self_duality: ``‖W/‖W‖ − M/‖M‖‖`` (Frobenius), None without a head.
        ncm_mismatch: fraction of samples where the head and the nearest class mean disagree, None without logits.
    """

    nc1: float
    equinorm: float
    equiangle: float
    max_angle: float
    self_duality: float | None
    ncm_mismatch: float | None


def neural_collapse(
    embeddings: Any,
    labels: Any,
    num_classes: int | None = None,
    *,
    head_weight: Any = None,
    logits: Any = None,
) -> NeuralCollapse:
    """Measures of neural collapse of training embeddings (N, K), over the classes that have samples."""
    x, y = labelled(embeddings, labels, num_classes)
    moments = scatter(x, y, num_classes)
    present = moments.present.nonzero().flatten()
    c = len(present)
    if c < 2:
        return NeuralCollapse(nan, nan, nan, nan, None, None)
    means = moments.means[present]
    centred = means - means.mean(0)
    within = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for rows in row_blocks(*x.shape):
        # 1/(C n_y) for each sample makes this the mean of the class covariances
        r = (x[rows].double() - moments.means[y[rows]]) / (c * moments.n[y[rows]]).sqrt().unsqueeze(1)
        within += r.T @ r
    nc1 = _trace_ratio(within, centred) / c
    norms = centred.norm(dim=1)
    equinorm = float(norms.std(correction=0) / norms.mean()) if float(norms.mean()) > 0 else nan
    # a class mean at the centre of all has no direction
    equiangle, max_angle = _angles(centred) if bool((norms > 0).all()) else (nan, nan)
    duality = None
    if head_weight is not None:
        w = matrix(head_weight, "head_weight", x.shape[1]).double().to(x.device)
        if w.shape[0] != moments.n.numel():
            raise InputError(f"head_weight must have a row for each of {moments.n.numel()} classes, got {w.shape[0]}")
        w = w[present]
        duality = float((w / w.norm() - centred / centred.norm()).norm())
    mismatch = None
    if logits is not None:
        f = matrix(logits, "logits", moments.n.numel())
        ncm = neighbours.nearest_mean(x, y, x, moments.n.numel())
        mismatch = float((f.argmax(1).to(ncm.device) != ncm).double().mean())
    return NeuralCollapse(nc1, equinorm, equiangle, max_angle, duality, mismatch)


def _trace_ratio(within: Tensor, centred: Tensor) -> float:
    """tr(Σ_W Σ_B⁺) with Σ_B = MᵀM/C, through the singular vectors of the C×K means M."""
    _, s, v = torch.linalg.svd(centred, full_matrices=False)
    keep = s > s.max() * max(centred.shape) * torch.finfo(torch.float64).eps
    if not bool(keep.any()):
        return nan
    v, s = v[keep], s[keep]
    return float((((v @ within) * v).sum(1) / (s.square() / centred.shape[0])).sum())


def _angles(centred: Tensor) -> tuple[float, float]:
    """Standard deviation of the cosines between different rows, and mean |cos + 1/(C−1)|, a block of rows at a time."""
    u, c = unit_rows(centred), centred.shape[0]
    total, squares, distance = 0.0, 0.0, 0.0
    for rows in row_blocks(c, c):
        cos = u[rows] @ u.T
        others = torch.ones_like(cos, dtype=torch.bool)
        others[torch.arange(cos.shape[0]), torch.arange(rows.start, rows.stop)] = False
        cos = cos[others]
        total, squares = total + float(cos.sum()), squares + float(cos.square().sum())
        distance += float((cos + 1 / (c - 1)).abs().sum())
    pairs = c * (c - 1)
    return max(squares / pairs - (total / pairs) ** 2, 0.0) ** 0.5, distance / pairs


def knn_accuracy(
    train_embeddings: Any, train_labels: Any, embeddings: Any, labels: Any, counts: ClassCounts | Any, k: int = 10
) -> accuracy.Summary:
    """Accuracy of the majority among the k nearest training embeddings (fewer if there are not so many)."""
    counts = class_counts(counts)
    k = min(k, len(train_labels))
    near = neighbours.nearest_labels(train_embeddings, train_labels, embeddings, k, counts.num_classes)
    return accuracy.of_labels(neighbours.majority(near), labels, counts)


def ncm_accuracy(
    train_embeddings: Any, train_labels: Any, embeddings: Any, labels: Any, counts: ClassCounts | Any
) -> accuracy.Summary:
    """Accuracy of the class with the nearest mean of training embeddings."""
    counts = class_counts(counts)
    winner = neighbours.nearest_mean(train_embeddings, train_labels, embeddings, counts.num_classes)
    return accuracy.of_labels(winner, labels, counts)


def has_positive(labels: Any) -> Tensor:
    """Which anchors of a batch share their label with another sample of it, bool (B,).

    >>> has_positive([3, 1, 3]).tolist()
    [True, False, True]
    """
    y = class_labels(labels)
    n: Tensor
    _, inverse, n = torch.unique(y, return_inverse=True, return_counts=True)
    return n[inverse] > 1


def expected_positives(counts: ClassCounts | Any, batch_size: int) -> Tensor:
    """Chance that an anchor of each class has a positive in its batch, float64 (C,), in closed form.

    A batch is drawn without replacement from all N training samples, so the B − 1 others of an anchor's batch are all
    of other classes with probability ``binom(N − n_y, B − 1) / binom(N − 1, B − 1)``. NaN for empty classes.

    >>> counts = ClassCounts([int(500 * 100 ** (-i / 99)) for i in range(100)])       # CIFAR100-LT
    >>> chance = expected_positives(counts, 128)
    >>> {name: round(float(chance[g].mean()), 2) for name, g in counts.groups().items()}
    {'head': 0.9, 'torso': 0.41, 'tail': 0.1}
    """
    batch_size = whole("batch_size", batch_size, 1)
    counts = class_counts(counts)
    n, total = counts.n.double(), counts.total
    others = min(batch_size, total) - 1
    free = total - n  # samples of other classes
    log_none = (
        torch.lgamma(free + 1)
        - torch.lgamma((free - others).clamp(min=0) + 1)
        - torch.lgamma(torch.tensor(float(total), dtype=torch.float64))
        + torch.lgamma(torch.tensor(float(total - others), dtype=torch.float64))
    )
    chance = torch.where(free < others, 1.0, -torch.expm1(log_none))
    return torch.where(counts.n > 0, chance.clamp(0, 1), torch.nan)
