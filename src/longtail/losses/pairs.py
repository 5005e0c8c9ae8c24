"""What terms that look at pairs of samples share: who pairs with whom, and sums of exponentials that never overflow."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs import Features


class Pairs(NamedTuple):
    """Anchors (B) against keys (M).

    Attributes:
        keys: the keys' embeddings (M, K).
        same: whether labels agree, (B, M).
        itself: whether the key is the anchor, (B, M).
    """

    keys: Tensor
    same: Tensor
    itself: Tensor

    @property
    def positives(self) -> Tensor:
        return self.same & ~self.itself

    @property
    def negatives(self) -> Tensor:
        return ~self.same & ~self.itself


def pair(embeddings: Tensor, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Pairs:
    """Pair every sample of the batch with the keys, which are the batch itself by default.

    A key is the anchor if it has the anchor's id; where ids are missing, if it is the anchor's own row of the batch.
    """
    other = keys if keys is not None else Features(embeddings, labels, ids)
    same = labels[:, None] == other.labels[None, :]
    if ids is not None and other.ids is not None:
        itself = ids[:, None] == other.ids[None, :]
    elif keys is None:
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    else:
        itself = torch.zeros_like(same)
    return Pairs(other.embeddings, same, itself)


def log1p_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """``log[1 + Σ_{j ∈ among} exp(scores_j)]`` along the last dimension; 0 with gradient 0 where nothing is among."""
    if scores.shape[-1] == 0:
        return scores.sum(-1)
    scores = scores.masked_fill(~among, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=0)
    # The 1 is exp(−top) after scaling; through expm1 a small sum keeps its digits when top is 0.
    rest = (scores - top).exp().sum(-1) + torch.expm1(-top).squeeze(-1)
    return top.squeeze(-1) + torch.log1p(rest)


def log_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """``log Σ_{j ∈ among} exp(scores_j)`` along the last dimension; where nothing is among, 0 with gradient 0."""
    if scores.shape[-1] == 0:
        return scores.sum(-1)
    some = among.any(-1, keepdim=True)
    # A row of nothing but −inf would have the gradient NaN.
    return torch.where(some, scores.masked_fill(some & ~among, -torch.inf), 0.0).logsumexp(-1) * some.squeeze(-1)


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))`` to full precision in float64 too (the default threshold of torch is 20)."""
    return F.softplus(x, threshold=40)


def near_origin(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """All points moved by one constant vector that brings ``x`` near the origin.

    Distances do not change, but squared norms lose the digits they share: first the first row goes (so identical rows
    are exactly 0), then the mean of what is left.
    """
    with torch.no_grad():
        first = x[:1]
        mean = (x - first).mean(0, keepdim=True)
    return tuple(p - first.detach() - mean for p in (x, *others))


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``‖x_i − y_j‖²`` (B, M), never negative, by one matrix product; bring both near the origin first."""
    squares = x.square().sum(1)[:, None] + y.square().sum(1)[None, :]
    return torch.addmm(squares, x, y.T, alpha=-2).clamp(min=0)
