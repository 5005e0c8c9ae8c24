"""Nearest neighbours and nearest class means in blocks: no matrix of all distances is ever held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..numeric import class_means, compute_dtype, labelled, matrix, row_blocks, unit_rows

_KEY_ROWS = 1 << 14


def _prepared(x: Tensor, centre: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A block ready for a matrix product: unit rows for cosine (no centre), or shifted so that norms are small and
    ‖a‖² + ‖b‖² − 2ab loses few digits."""
    return unit_rows(x.to(dtype)) if centre is None else x.to(dtype) - centre.to(dtype)


def nearest(keys: Tensor, queries: Tensor, k: int, *, normalise: bool = False) -> tuple[Tensor, Tensor]:
    """The k nearest keys of each query: squared distances (Q, k), ascending, and their positions (Q, k)."""
    if not 1 <= k <= keys.shape[0]:
        raise InputError(f"k must be between 1 and the number of training samples ({keys.shape[0]}), got {k}")
    dtype = torch.promote_types(compute_dtype(keys), compute_dtype(queries))
    centre = None if normalise else class_means(keys, keys.new_zeros(keys.shape[0], dtype=torch.long), 1)[0][0]
    distances = torch.empty(queries.shape[0], k, dtype=dtype, device=queries.device)
    positions = torch.empty(queries.shape[0], k, dtype=torch.long, device=queries.device)
    for rows in row_blocks(queries.shape[0], max(queries.shape[1], min(keys.shape[0], _KEY_ROWS))):
        q = _prepared(queries[rows], centre, dtype)
        best = torch.empty(q.shape[0], 0, dtype=dtype, device=q.device)
        where = torch.empty(q.shape[0], 0, dtype=torch.long, device=q.device)
        for start in range(0, keys.shape[0], _KEY_ROWS):
            x = _prepared(keys[start : start + _KEY_ROWS], centre, dtype)
            d = torch.addmm(x.square().sum(1).expand(q.shape[0], -1), q, x.T, alpha=-2)  # ‖q‖² changes no order
            near, at = d.topk(min(k, x.shape[0]), largest=False)
            # Earlier keys come first in the concatenation, so that a stable sort settles ties by position.
            best, where = torch.cat([best, near], 1), torch.cat([where, at + start], 1)
            order = best.argsort(dim=1, stable=True)[:, :k]
            best, where = best.gather(1, order), where.gather(1, order)
        distances[rows], positions[rows] = (best + q.square().sum(1, keepdim=True)).clamp(min=0), where
    return distances, positions


def nearest_labels(
    train_embeddings: Any, train_labels: Any, embeddings: Any, k: int, num_classes: int, *, normalise: bool = False
) -> Tensor:
    """Labels (Q, k) of the k nearest training samples, nearest first."""
    x, y = labelled(train_embeddings, train_labels, num_classes, "training embeddings")
    q = matrix(embeddings, "embeddings", x.shape[1], squared=True).to(x.device)
    return y[nearest(x, q, k, normalise=normalise)[1]]


def majority(labels: Tensor) -> Tensor:
    """The class that most neighbours (Q, k) have, (Q,); among equally many votes the one with the nearest voter."""
    k = labels.shape[1]
    same = torch.zeros(labels.shape, dtype=torch.long, device=labels.device)
    for i in range(k):
        same += labels == labels[:, i : i + 1]
    # argmax may return any of several maxima: the rank, as a fraction of a vote, makes it unique.
    rank = torch.arange(k, device=labels.device).double() / (k + 1)
    winner = (same.double() - rank).argmax(1)
    return labels.gather(1, winner.unsqueeze(1)).squeeze(1)


def _mean_blocks(
    train_embeddings: Any, train_labels: Any, embeddings: Any, num_classes: int, normalise: bool
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows with their squared distances to the class means, and which classes have a mean at all."""
    x, y = labelled(train_embeddings, train_labels, num_classes, "training embeddings")
    q = matrix(embeddings, "embeddings", x.shape[1], squared=True).to(x.device)
    means, n = class_means(x, y, num_classes)
    present = n > 0
    if not bool(present.any()):
        raise InputError("there are no training samples to take class means of")
    dtype = torch.promote_types(compute_dtype(x), compute_dtype(q))
    centre = None if normalise else means[present].mean(0)
    m = _prepared(means, centre, torch.float64).to(dtype)
    for rows in row_blocks(q.shape[0], max(q.shape[1], num_classes)):
        block = _prepared(q[rows], centre, dtype)
        d = torch.addmm(m.square().sum(1).expand(block.shape[0], -1), block, m.T, alpha=-2)
        yield rows, d.add_(block.square().sum(1, keepdim=True)).clamp_(min=0), present


def mean_distances(
    train_embeddings: Any, train_labels: Any, embeddings: Any, num_classes: int, *, normalise: bool = False
) -> tuple[Tensor, Tensor]:
    """Squared distances (Q, C) to the class means, and which classes have a mean at all, bool (C,)."""
    blocks = list(_mean_blocks(train_embeddings, train_labels, embeddings, num_classes, normalise))
    if not blocks:
        raise InputError("there are no embeddings to classify")
    return torch.cat([d for _, d, _ in blocks]), blocks[0][2]


def nearest_mean(train_embeddings: Any, train_labels: Any, embeddings: Any, num_classes: int) -> Tensor:
    """The class with the nearest mean (Q,), without the matrix of all distances."""
    blocks = _mean_blocks(train_embeddings, train_labels, embeddings, num_classes, False)
    found = [d.masked_fill_(~present, torch.inf).argmin(1) for _, d, present in blocks]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.long)
