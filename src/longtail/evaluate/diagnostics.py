"""What the embeddings and logits look like, class by class: margins, distances, variances, collapse, neighbours.

Everything runs in blocks of rows, so memory above the data stays bounded: the embeddings are never copied or sorted as
a whole. Distances are taken after subtracting the class mean, which keeps float32 accurate; sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..errors import InputError, whole
from ..numeric import class_labels, compute_dtype, labelled, logit_margins, matrix, row_blocks, tensor
from . import accuracy, neighbours
from .collapse import NeuralCollapse, Scatter, class_variances, neural_collapse, scatter

__all__ = [
    "NeuralCollapse",
    "Pairs",
    "Scatter",
    "cdf",
    "class_variances",
    "expected_positives",
    "has_positive",
    "knn_accuracy",
    "margins",
    "max_intra_distance",
    "max_norm",
    "ncm_accuracy",
    "neural_collapse",
    "pairs_by_class",
    "scatter",
]

PAIR_ROWS = 2048  # a block of distances is at most PAIR_ROWS × PAIR_ROWS


def margins(logits: Any, labels: Any) -> Tensor:
    """Logit margins ``γ(x, y) = f_y(x) − max_{y'≠y} f_y'(x)``, (N,): positive where the prediction is right.

    >>> margins(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2]))
    tensor([ 2., -3.])
    """
    f, y = labelled(logits, labels, "logits", squared=False)
    if f.shape[1] < 2:
        raise InputError("a margin needs logits of at least two classes, got one")
    y = class_labels(y, num_classes=f.shape[1])
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
    x, y = labelled(embeddings, labels, "embeddings")
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
