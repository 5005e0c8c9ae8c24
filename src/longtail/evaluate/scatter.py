"""Means and variances by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .checks import labelled, row_blocks
from .neighbours import class_means


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
        return self.intra / self.inter if self.inter > 0 else float("nan")


def scatter(embeddings: Any, labels: Any, num_classes: int | None = None) -> Scatter:
    """Class means and variances in two passes (the second about the means, so nothing cancels)."""
    x, y = labelled(embeddings, labels, "embeddings", num_classes)
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
