"""The paper's propositions and lemmas as inequalities one can evaluate, and its Gaussian argument.

Everything is computed in float64. Slips of the printed text, and what is done here:

* **Proposition 1** is right as stated. The *expanded* display after it has lost a factor 1/|S_y| (it reads
  ``2|S_y|/(|S_y|−1) Σ_x ‖Φ(x) − μ_y‖²``) and is false in general; it is not offered here.
* **Proposition 2**: its proof starts with ln(4/δ), as the union bound over two classes needs, and goes on with ln(2/δ).
  ``printed`` keeps ln(2/δ), ``corrected`` has ln(4/δ). Dropping ``log(|S_y| − 1)`` needs |S_y| ≥ 2, which both ask for.
* **Lemma 3** is the empirical Bernstein inequality of Maurer and Pontil, printed as "Bennett's". Its variance divides
  by n − 1; the printed proof uses the one that divides by n, which Proposition 1's |S_y|/(|S_y|−1) makes up for.
* The **affine posterior** of the Gaussian argument, ``P(y | z) ∝ exp(z·μ_y/σ² − ‖μ_y‖²/(2σ²) + log P(y))`` where
  ``Z | y ~ N(μ_y, σ² I)``, needs one common σ: with the printed σ_y by class, ‖z‖²/(2σ_y²) does not cancel. −log N also
  carries the factor 1/(2σ²) that the text leaves out.

Proposition 2 holds for a scorer fixed *before* the sample is drawn; on data it was trained on it is indicative only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..counts import ClassCounts, class_counts
from ..errors import InputError, real
from ..numeric import class_labels, compute_dtype, labelled, matrix, row_blocks, tensor
from .diagnostics import pairs_by_class, scatter

# Both sides of Proposition 1 agree to rounding when α is far below the distances: the left one is rounded down by this
# part of its summands, far above float64's error and far below anything one would look at.
_ROUND_DOWN = 1e-12


@dataclass(frozen=True, eq=False)
class Proposition1:
    """Both sides of Proposition 1 for each class with at least two samples, float64 in the order of ``classes``.

    Attributes:
        classes: labels with |S_y| ≥ 2, int64 (M,).
        lower: ``2|S_y|/(|S_y|−1) · Σ_j V̂[Φ_j|y] − α_y + log(|S_y|−1)``, rounded down in the twelfth digit.
        pull: ``Ω̄_pull(y)``, the mean of Ω_pull over the class.
        hard: the mean of the hard form Ω̃_pull, which is never above ``pull``.
    """

    classes: Tensor
    lower: Tensor
    pull: Tensor
    hard: Tensor

    @property
    def holds(self) -> Tensor:
        """Where ``lower <= pull``, bool (M,): everywhere, or there is an error in the program."""
        return self.lower <= self.pull


def _per_class(alpha: Any, classes: int) -> Tensor:
    a = tensor(alpha, "alpha").double().cpu()
    a = a.expand(classes) if a.ndim == 0 else a
    if a.ndim != 1 or a.numel() < classes:
        raise InputError(f"alpha must have one value for each of the {classes} classes, got shape {tuple(a.shape)}")
    if not bool(torch.isfinite(a).all()):
        raise InputError(f"alpha must be finite for every class, got {a[~torch.isfinite(a)][0].item()}")
    return a


def pull_values(embeddings: Any, labels: Any, alpha: Any) -> tuple[Tensor, Tensor]:
    """``Ω_pull(x, y)`` and its hard form ``Ω̃_pull(x, y)`` over all of S_y, float64 (N,) each; 0 without a positive.

    ``Ω = log[1 + Σ_{x⁺∈S_y∖{x}} exp(‖Φ(x) − Φ(x⁺)‖² − α_y)]`` and ``Ω̃ = max_{x⁺} [‖Φ(x) − Φ(x⁺)‖² − α_y]_+``.
    """
    x, y = labelled(embeddings, labels)
    a = _per_class(alpha, int(y.max()) + 1 if y.numel() else 0)
    soft = torch.zeros(y.shape, dtype=torch.float64, device=x.device)
    hard = torch.zeros_like(soft)
    for p in pairs_by_class(x, y, torch.float64):
        if p.size < 2:
            continue
        z = p.squared.sub_(a[p.label])
        if p.rows is p.columns:
            z.fill_diagonal_(-torch.inf)
        top = z.amax(1).clamp_(min=0)  # 0 stands for the 1 in the sum
        total = z.sub_(top.unsqueeze(1)).exp_().sum(1)
        if p.first:
            peak, mass = top, total
        else:
            higher = torch.maximum(peak, top)
            mass = mass * torch.exp(peak - higher) + total * torch.exp(top - higher)
            peak = higher
        if p.last:
            # mass holds Σ exp(z − peak); log1p keeps small values exact where peak is 0
            soft[p.rows] = torch.where(peak > 0, peak + torch.log(mass + torch.exp(-peak)), torch.log1p(mass))
            hard[p.rows] = peak
    return soft, hard


def proposition1(embeddings: Any, labels: Any, alpha: Any) -> Proposition1:
    """Both sides of Proposition 1 for embeddings (N, K), labels (N,) and α, one value a class (C,) or one for all.

    >>> p = proposition1(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), alpha=[1.0, 1.0])
    >>> p.classes.tolist(), [round(v, 4) for v in p.lower.tolist()], [round(v, 4) for v in p.pull.tolist()]
    ([0], [3.0], [3.0486])
    """
    x, y = labelled(embeddings, labels)
    if y.numel() == 0:
        raise InputError("Proposition 1 needs embeddings, got none")
    c = int(y.max()) + 1
    a = _per_class(alpha, c)
    soft, hard = pull_values(x, y, a)
    moments = scatter(x, y, c)
    n = moments.n.double().cpu()
    classes = (n >= 2).nonzero().flatten()
    n, a = n[classes], a[classes]
    spread, log_others = 2 * n / (n - 1) * moments.variances.cpu()[classes], torch.log(n - 1)
    lower = spread - a + log_others - _ROUND_DOWN * (spread + a.abs() + log_others)
    means = [torch.zeros(c, dtype=torch.float64).index_add_(0, y.cpu(), v.cpu())[classes] / n for v in (soft, hard)]
    return Proposition1(classes, lower, *means)


class Inequality(NamedTuple):
    """``left <= right``."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Up to rounding in the last digits."""
        return self.left <= self.right + 1e-12 * max(abs(self.left), abs(self.right))


class Bernstein(NamedTuple):
    """The right-hand side of Lemma 3, term by term; its sum is above E[Z] with probability ≥ 1 − δ."""

    mean: float
    deviation: float
    range: float

    @property
    def total(self) -> float:
        return self.mean + self.deviation + self.range


def _check_bound(bound: float, delta: float) -> None:
    real("delta", delta, above=0, below=1)
    real("the bound B", bound, above=0)


def lemma3(values: Any, bound: float, delta: float = 0.05, *, printed: bool = False) -> Bernstein:
    """Empirical Bernstein: ``E[Z] ≤ mean + √(2 V̂ ln(2/δ)/n) + 7 B ln(2/δ)/(3(n − 1))`` for values Z in [0, B].

    V̂ divides by n − 1 (Maurer and Pontil, theorem 4); ``printed=True`` divides by n, as the paper's notation says.
    """
    z = tensor(values, "values").flatten().double()
    _check_bound(bound, delta)
    if z.numel() < 2:
        raise InputError(f"Lemma 3 needs at least two values, got {z.numel()}")
    if float(z.min()) < 0 or float(z.max()) > bound:
        raise InputError(f"Lemma 3 needs values in [0, B] = [0, {bound}], got [{float(z.min())}, {float(z.max())}]")
    n, log_term = z.numel(), math.log(2 / delta)
    variance = float(z.var(correction=0 if printed else 1))
    return Bernstein(float(z.mean()), math.sqrt(2 * variance * log_term / n), 7 * bound * log_term / (3 * (n - 1)))


def log_loss(sign: Any, scores: Any) -> Tensor:
    """``ℓ_log(y, f) = log(1 + exp(−y f))`` for y in {−1, +1}, float64."""
    return softplus(-torch.as_tensor(sign).double() * tensor(scores, "scores").double())


def lemma4(scores: Any, sign: int) -> Inequality:
    """``V[ℓ_log(y, f(x))] ≤ V[ℓ_lin(y, f(x))]`` over the given scores f(x) of one class y in {−1, +1} (N,).

    The log loss is 1-Lipschitz in the score, so it varies no more than the linear loss −y f(x) does.
    """
    f = tensor(scores, "scores").flatten().double()
    if sign not in (-1, 1):
        raise InputError(f"the class must be -1 or +1, got {sign}")
    if f.numel() == 0:
        raise InputError("Lemma 4 needs at least one score")
    return Inequality(float(log_loss(sign, f).var(correction=0)), float(f.var(correction=0)))


def lemma5(embeddings: Any, weight: Any, bias: float, sign: int, margin: float = 0.0) -> Inequality:
    """``V[ℓ_log(y, f(x) + Δ_y)] ≤ ‖w‖² tr(C_y)`` over the embeddings (N, K) of one class, f(x) = w·Φ(x) + b."""
    x = matrix(embeddings, "embeddings", squared=True).double()
    w = _weight(weight, x)
    left = lemma4(x @ w + bias + margin, sign).left
    return Inequality(left, float(w @ w) * float(x.var(0, correction=0).sum()))


def _weight(weight: Any, x: Tensor) -> Tensor:
    w = tensor(weight, "weight").double().to(x.device)
    if w.shape != x.shape[1:]:
        raise InputError(f"weight must have shape ({x.shape[1]},), got {tuple(w.shape)}")
    return w


class Bound(NamedTuple):
    """Proposition 2's right-hand side: ``total`` is the sum of its three terms.

    ``concentration = 7B ln(·)/3 · Σ_y P(y)/(|S_y|−1)``, ``empirical = Σ_y P(y)/|S_y| Σ_x ℓ_log``,
    ``pull = ‖w‖ √(ln(·) Σ_y P(y)/|S_y| [Ω̄_pull(y) + α_y])``; (·) is 2/δ as printed, 4/δ as corrected.
    """

    concentration: float
    empirical: float
    pull: float

    @property
    def total(self) -> float:
        return self.concentration + self.empirical + self.pull


class Proposition2(NamedTuple):
    """The bound as printed (ln 2/δ: not proved) and as corrected (ln 4/δ: holds with probability ≥ 1 − δ)."""

    printed: Bound
    corrected: Bound


def loss_bound(weight: Any, bias: float, radius: float, margins: tuple[float, float] = (0.0, 0.0)) -> float:
    """The least B with ``ℓ_log(y, w·z + b + Δ_y) ≤ B`` for all ‖z‖ ≤ radius and both classes; margins (Δ_−, Δ_+)."""
    radius = real("the radius of the embeddings", radius, at_least=0)
    reach = float(tensor(weight, "weight").double().norm()) * radius
    worst = max(reach + bias + margins[0], reach - bias - margins[1])
    return float(softplus(torch.tensor(worst, dtype=torch.float64)))


def proposition2(
    embeddings: Any,
    labels: Any,
    weight: Any,
    bias: float,
    *,
    alpha: Any,
    prior: float,
    bound: float,
    margins: tuple[float, float] = (0.0, 0.0),
    delta: float = 0.05,
) -> Proposition2:
    """Proposition 2's bound on the risk ``E ℓ_log(y, f(x) + Δ_y)`` of a binary scorer f(x) = w·Φ(x) + b.

    Args:
        embeddings: Φ(x) of the sample S, (N, K).
        labels: the two classes as −1/+1 or as 0/1, (N,); each needs at least two samples.
        weight, bias: w (K,) and b, fixed before S was drawn (else the value is indicative only). Of a two-class head
            it is the difference of its rows, second minus first.
        alpha: α of the pull term, one number or (α_−, α_+).
        prior: P(y = +1), the true one.
        bound: B, an upper bound of the loss over all inputs: see ``loss_bound``.
        margins: (Δ_−, Δ_+), see the paper; logit adjustment has log P(+1)/P(−1) for both.
        delta: the bound may fail with this probability.
    """
    x = matrix(embeddings, "embeddings", squared=True).double()
    sign = tensor(labels, "labels")
    y = class_labels((sign > 0).long(), rows=x.shape[0])
    if not bool(((sign == 1) | (sign == 0)).all()) and not bool(((sign == 1) | (sign == -1)).all()):
        raise InputError("Proposition 2 is for two classes: labels must be -1/+1 or 0/1")
    _check_bound(bound, delta)
    prior = real("prior, which is P(y = +1),", prior, at_least=0, at_most=1)
    n = torch.bincount(y, minlength=2).double()
    if bool((n < 2).any()):
        raise InputError(f"Proposition 2 needs at least two samples of each class, got {n.long().tolist()}")
    w = _weight(weight, x)
    losses = log_loss(2 * y - 1, x @ w + bias + torch.tensor(margins, dtype=torch.float64)[y])
    if float(losses.max()) > bound * (1 + 1e-9):
        raise InputError(f"the bound B = {bound} is no bound: a sample has loss {float(losses.max()):.6g}")
    a = _per_class(alpha, 2)
    if a.numel() != 2:
        raise InputError(f"alpha must be one number or one for each of the two classes, got {a.numel()}")
    p = torch.tensor([1 - prior, prior], dtype=torch.float64)
    pull = torch.zeros(2, dtype=torch.float64).index_add_(0, y, pull_values(x, y, a)[0]) / n
    empirical = float((p / n)[y] @ losses)
    square = float((p / n * (pull + a)).sum())

    def with_log(log_term: float) -> Bound:
        concentration = 7 * bound * log_term / 3 * float((p / (n - 1)).sum())
        return Bound(concentration, empirical, float(w.norm()) * math.sqrt(log_term * square))

    return Proposition2(with_log(math.log(2 / delta)), with_log(math.log(4 / delta)))


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
    x, y = labelled(embeddings, labels, counts.num_classes)
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
    x, y = labelled(embeddings, labels, num_classes)
    moments = scatter(x, y, num_classes)
    enough = moments.n >= 2
    k = x.shape[1]
    powers = torch.zeros(3, k, dtype=torch.float64, device=x.device)  # sums of residuals to the 2nd, 3rd, 4th
    covariance = torch.zeros(k, k, dtype=torch.float64, device=x.device)
    stretch = (moments.n.double() / (moments.n.double() - 1).clamp(min=1)).sqrt()
    for rows in row_blocks(*x.shape):
        keep = enough[y[rows]]
        block, label = x[rows][keep].double(), y[rows][keep]
        r = (block - moments.means[label]) * stretch[label].unsqueeze(1)
        powers += torch.stack([r.pow(p).sum(0) for p in (2, 3, 4)])
        covariance += r.T @ r
    m2, m3, m4 = powers / max(int(moments.n[enough].sum()), 1)
    varies = m2 > 0
    if not bool(varies.any()):
        return Gaussianity(*[math.nan] * 4)
    skew = m3[varies] / m2[varies] ** 1.5
    kurtosis = m4[varies] / m2[varies] ** 2 - 3
    isotropy = float(covariance.trace() ** 2 / (k * covariance.square().sum()))  # Σλ² = ‖Σ‖²_F: no eigenvalues needed
    variances = (moments.variances * moments.n / (moments.n - 1).clamp(min=1))[enough]
    cv = float(variances.std(correction=0) / variances.mean())
    return Gaussianity(float(skew.square().mean().sqrt()), float(kurtosis.mean()), isotropy, cv)
