"""How classes are spread: their means and variances, and neural collapse (Papyan, Han and Donoho 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..numeric import class_means, labelled, matrix, row_blocks, unit_rows
from .neighbours import nearest_mean


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


class NeuralCollapse(NamedTuple):
    """All are 0 at full collapse; NaN where there are too few classes or no spread to measure.

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
    x, y = labelled(embeddings, labels, "embeddings", num_classes)
    moments = scatter(x, y, num_classes)
    present = moments.present.nonzero().flatten()
    c = len(present)
    nan = float("nan")
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
        ncm = nearest_mean(x, y, x, moments.n.numel())
        mismatch = float((f.argmax(1).to(ncm.device) != ncm).double().mean())
    return NeuralCollapse(nc1, equinorm, equiangle, max_angle, duality, mismatch)


def _trace_ratio(within: Tensor, centred: Tensor) -> float:
    """tr(Σ_W Σ_B⁺) with Σ_B = MᵀM/C, through the singular vectors of the C×K means M."""
    _, s, v = torch.linalg.svd(centred, full_matrices=False)
    keep = s > s.max() * max(centred.shape) * torch.finfo(torch.float64).eps
    if not bool(keep.any()):
        return float("nan")
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
