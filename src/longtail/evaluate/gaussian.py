"""The paper's Gaussian argument: the affine head it implies, against the trained one, and how Gaussian classes are.

With ``Z | y ~ N(μ_y, σ² I)`` and *one* σ for all classes, ``P(y | z) ∝ exp(z·μ_y/σ² − ‖μ_y‖²/(2σ²) + log P(y))``: a
softmax of an affine function. (The paper writes σ_y; then ‖z‖²/(2σ_y²) would not cancel.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..errors import InputError
from ..numeric import compute_dtype, labelled, matrix, row_blocks
from .collapse import scatter


@dataclass(frozen=True, eq=False)
class GaussianHead:
    """``weight = μ/σ²`` (C, K), ``bias = −‖μ‖²/(2σ²) + log P`` (C,), float64, and the common ``sigma2``."""

    weight: Tensor
    bias: Tensor
    sigma2: float

    def logits(self, embeddings: Any) -> Tensor:
        """(N, C), in the dtype that the embeddings are computed in."""
        x = matrix(embeddings, "embeddings", self.weight.shape[1], squared=True)
        dtype = compute_dtype(x)
        return torch.addmm(self.bias.to(dtype), x.to(dtype), self.weight.to(dtype).T)


def gaussian_head(embeddings: Any, labels: Any, counts: ClassCounts | Any, *, balanced: bool = False) -> GaussianHead:
    """The head that class means and one pooled variance imply; ``balanced`` leaves out log P(y) (a uniform prior).

    ``σ² = Σ_x ‖Φ(x) − μ_y‖² / (K (N − C))``, C the classes that have samples. A class without samples keeps weight 0
    and the bias of the rarest class there could be (a count of 0 is computed as 1).
    """
    counts = class_counts(counts)
    x, y = labelled(embeddings, labels, "embeddings", counts.num_classes)
    moments = scatter(x, y, counts.num_classes)
    free = int(moments.n.sum()) - int(moments.present.sum())
    within = float((moments.variances * moments.n)[moments.present].sum())
    if free < 1 or within <= 0:
        raise InputError("a common variance needs embeddings that differ within a class: every class is a single point")
    sigma2 = within / (x.shape[1] * free)
    bias = -moments.means.square().sum(1) / (2 * sigma2)
    if not balanced:
        bias = bias + counts.safe_prior.log().to(bias.device)
    return GaussianHead(moments.means / sigma2, bias, sigma2)


class HeadComparison(NamedTuple):
    """How near a trained head is to the Gaussian one.

    Attributes:
        cosine: mean cosine between their rows after subtracting each head's mean row (softmax ignores it).
        agreement: fraction of the given embeddings on which both predict the same class.
        correlation: of their logits, each sample's own mean subtracted.
    """

    cosine: float
    agreement: float
    correlation: float


def compare_heads(head: GaussianHead, weight: Any, bias: Any, embeddings: Any) -> HeadComparison:
    """Set the Gaussian head beside a trained one: weight (C, K), bias (C,) or None."""
    w = matrix(weight, "weight", head.weight.shape[1]).double()
    if w.shape != head.weight.shape:
        raise InputError(f"weight must have shape {tuple(head.weight.shape)}, got {tuple(w.shape)}")
    b = w.new_zeros(w.shape[0]) if bias is None else torch.as_tensor(bias).detach().double()
    x = matrix(embeddings, "embeddings", w.shape[1], squared=True)
    rows_a, rows_b = (m - m.mean(0) for m in (head.weight, w))
    cosine = torch.nn.functional.cosine_similarity(rows_a, rows_b, dim=1).mean()
    same, products = 0, torch.zeros(3, dtype=torch.float64)
    for rows in row_blocks(x.shape[0], max(x.shape[1], w.shape[0])):
        block = x[rows].double()
        ours, theirs = block @ head.weight.T + head.bias, block @ w.T + b
        same += int((ours.argmax(1) == theirs.argmax(1)).sum())
        ours, theirs = ours - ours.mean(1, keepdim=True), theirs - theirs.mean(1, keepdim=True)
        products += torch.stack([(ours * theirs).sum(), ours.square().sum(), theirs.square().sum()])
    correlation = products[0] / (products[1] * products[2]).sqrt()
    return HeadComparison(float(cosine), same / max(x.shape[0], 1), float(correlation))


class Gaussianity(NamedTuple):
    """How far class embeddings are from Gaussians with one common variance; (0, 0, 1, 0) for such Gaussians.

    Attributes:
        skewness: root mean square over coordinates of the skewness of within-class residuals.
        kurtosis: mean over coordinates of their excess kurtosis (negative: lighter tails than a Gaussian's).
        isotropy: ``(Σλ)² / (K Σλ²)`` of the pooled within-class covariance: 1 if a sphere, 1/K if a line.
        variance_cv: standard deviation over mean of the class variances: 0 if all classes have the same.
    """

    skewness: float
    kurtosis: float
    isotropy: float
    variance_cv: float


def gaussianity(embeddings: Any, labels: Any, num_classes: int | None = None) -> Gaussianity:
    """Measure of fit over the classes with at least two samples.

    Residuals of a class of n are stretched by √(n/(n−1)), because its mean was estimated from the same samples.
    Coordinates that do not vary are left out. NaN where nothing varies.
    """
    x, y = labelled(embeddings, labels, "embeddings", num_classes)
    moments = scatter(x, y, num_classes)
    enough = moments.n >= 2
    k = x.shape[1]
    powers = torch.zeros(3, k, dtype=torch.float64, device=x.device)  # sums of residuals to the 2nd, 3rd, 4th
    covariance = torch.zeros(k, k, dtype=torch.float64, device=x.device)
    total = 0
    stretch = (moments.n.double() / (moments.n.double() - 1).clamp(min=1)).sqrt()
    for rows in row_blocks(*x.shape):
        keep = enough[y[rows]]
        block, label = x[rows][keep].double(), y[rows][keep]
        r = (block - moments.means[label]) * stretch[label].unsqueeze(1)
        total += r.shape[0]
        powers += torch.stack([r.pow(p).sum(0) for p in (2, 3, 4)])
        covariance += r.T @ r
    nan = float("nan")
    m2, m3, m4 = powers / max(total, 1)
    varies = m2 > 0
    if not bool(varies.any()):
        return Gaussianity(nan, nan, nan, nan)
    skew = m3[varies] / m2[varies] ** 1.5
    kurtosis = m4[varies] / m2[varies] ** 2 - 3
    isotropy = float(covariance.trace() ** 2 / (k * covariance.square().sum()))  # Σλ² = ‖Σ‖²_F: no eigenvalues needed
    variances = (moments.variances * moments.n / (moments.n - 1).clamp(min=1))[enough]
    cv = float(variances.std(correction=0) / variances.mean())
    return Gaussianity(float(skew.square().mean().sqrt()), float(kurtosis.mean()), isotropy, cv)
