"""Features of any unit as a network likes them: a first layer that is fitted to the training data, then stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# What the length of a standardised sample is about, however many features there are.
NORM = 2.0
_ROWS = 1 << 16


class Standardise(nn.Module):
    """``(x − mean)·factor``, computed in float64 and given in the input's own dtype: both are buffers, so they are part
    of a run's model, of its checkpoints and of what is exported.

    >>> x = torch.tensor([[1000.0, 7.0], [3000.0, 7.0]])
    >>> Standardise.fitted(x, torch.tensor([0, 1]))(x)
    tensor([[-2.,  0.],
            [ 2.,  0.]])
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, features: int) -> None:
        """Does nothing until buffers are loaded; ``fitted`` makes one from data."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("factor", torch.ones(features, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * self.factor).to(x.dtype)

    @classmethod
    def fitted(cls, x: Tensor, labels: Tensor, weights: Tensor | None = None, alike: bool = False) -> Standardise:
        """Mean 0 and ‖x‖ ≈ 2, features weighed by how much of their variance lies between classes: the fourth root of
        the ratio of between- to within-class variance, held in [0.32, 1]. ``weights`` count samples more than once.

        ``alike`` is one factor for all: in embeddings of a network, what varies more tells more."""
        w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
        n = torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, w)
        sums = torch.zeros(len(n), x.shape[1], dtype=torch.float64)
        for rows in _blocks(x):
            sums.index_add_(0, labels[rows], x[rows].double() * w[rows, None])
        mean = sums.sum(0) / n.sum()
        total = torch.zeros_like(mean)
        for rows in _blocks(x):
            total += w[rows] @ (x[rows].double() - mean).square_()
        total /= n.sum()
        if alike:
            return cls._of(mean, torch.full_like(mean, NORM / math.sqrt(max(float(total.sum()), 1e-300))))
        between = n @ (sums / n.clamp(min=1e-300)[:, None] - mean).square() / n.sum()
        varies = total > 1e-24 * mean.square().clamp(min=1e-300)  # times of day in seconds since 1970 do vary
        total = torch.where(varies, total, 1.0)
        share = (between / total).clamp(0, 0.99)
        weight = (share / (1 - share)).clamp(0.01, 1).pow(0.25) * varies
        size = math.sqrt(max(float(weight.square().sum()), 1e-12))
        return cls._of(mean, NORM / size * weight / total.sqrt())

    @classmethod
    def fitted_to_sparse(cls, x: Any, weights: np.ndarray) -> Standardise:
        """For a scipy matrix, whose zeros must stay zeros: no shift, columns divided by the root of their root mean
        square (half-way between leaving and equalising them, the best on words, counted or TF-IDF), ‖x‖ ≈ 2."""
        square = np.asarray((x.multiply(x)).T @ (weights / weights.sum())).ravel()
        factor = np.where(square > 0, np.maximum(square, 1e-300) ** -0.25, 0.0)
        factor *= NORM / math.sqrt(max(float((square * factor**2).sum()), 1e-300))
        return cls._of(torch.zeros(len(factor), dtype=torch.float64), torch.from_numpy(factor))

    @classmethod
    def _of(cls, mean: Tensor, factor: Tensor) -> Standardise:
        layer = cls(len(mean))
        layer.mean, layer.factor = mean, factor
        return layer


def _blocks(x: Tensor) -> Iterator[slice]:
    """Rows a few at a time: a copy of all of them in float64 would be twice the data."""
    for start in range(0, len(x), _ROWS):
        yield slice(start, start + _ROWS)
