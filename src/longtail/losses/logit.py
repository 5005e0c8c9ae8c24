"""Losses on logits: margin cross-entropy (the paper's Eq. 3), its hinge, sigmoid focal loss, and the hybrid term."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..counts import ClassCounts
from ..errors import InputError, real, whole
from ..margins import Margin, PerClass
from .base import Features, Outputs, Term
from .pairs import log1p_sum_exp, pair, softplus

Values = PerClass | Tensor | list[float] | tuple[float, ...]

# Rows are worked on in pieces of about this many logits: a piece stays in the cache, and its memory is used again.
PIECE = 2**18
# A label that never is: torch would take -100 for one to ignore, where nobody asked for it.
NONE = -(2**31)


class WithMargin(Term):
    """A loss on logits with a margin: keeps ``other[y']`` and ``own[y] = −target[y] − other[y]``, where not 0.

    With ``z = f + other`` and ``own[y]`` added to the label's z, Δ stands in every difference: ``z_y' − z_y`` is
    ``Δ_yy' + f_y' − f_y``. For Δ = log P(y')/P(y) ``own`` is 0: it is the plain loss on shifted logits.
    """

    name = "logit"
    needs = ("logits",)
    scope = "sample"

    def __init__(self, counts: ClassCounts | Any, *, margin: Margin | None = None) -> None:
        super().__init__(counts)
        if margin is not None and not isinstance(margin, Margin):
            raise InputError(f"margin must be a Margin such as Margin.log_ratio() or None, got {margin!r}")
        self.margin = margin
        zero = torch.zeros(self.counts.num_classes, dtype=torch.float64)
        target = zero if margin is None or margin.target is None else margin.target(self.counts)
        other = zero if margin is None or margin.other is None else margin.other(self.counts)
        for name, vector in (("other", other), ("own", -(target + other))):
            if bool((vector != 0).any()):
                self.register_vector(name, vector)

    def extra_repr(self) -> str:
        return f"margin={self.margin!r}"


class MarginCrossEntropy(WithMargin):
    r"""Softmax cross-entropy with a margin between every two labels, Eq. 3 of the paper:

    ``ℓ(y, f) = log[1 + Σ_{y'≠y} exp(Δ_yy' + s_y' f_y' − s_y f_y)]``

    with ``Δ_yy' = target[y] + other[y']`` and scale s. Without a margin it is ``F.cross_entropy``, and with
    ``Margin.log_ratio(τ)`` it is ``F.cross_entropy`` on logits + τ·log prior, to the last bit.

    Args:
        counts: the class counts.
        margin: Δ, such as ``Margin.log_ratio()`` (logit adjustment, balanced softmax) or ``Margin(target=Ldam())``.
        weights: one weight w a class, as a function of the counts or as C values: the value is ``w_y·ℓ``, and
            ``Objective`` divides by ``Σ w_y``, as ``F.cross_entropy(weight=w)`` does.
        scale: s, a number or one value a class (vector scaling); Δ is added after it.
        focal: γ of the softmax focal loss ``(1 − p_y)^γ·ℓ`` with ``p_y = exp(−ℓ)``.
        label_smoothing: ε: the target is ``(1 − ε)·onehot(y) + ε/C``.
        ignore_index: a label whose samples have value 0 and weight 0.

    Shape:
        logits (B, C); labels (B,), or a distribution q (B, C), for which the value is ``Σ_c q_c·w_c·ℓ(c, f)``;
        result (B,).

    Example:
        >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
        >>> MarginCrossEntropy([90, 10], margin=Margin.log_ratio())((logits, None), labels)
        tensor([0.0149, 4.2122])

    References:
        Menon et al., Long-tail learning via logit adjustment, 2021. Ren et al., Balanced meta-softmax, 2020.
        Cao et al., Label-distribution-aware margin loss, 2019. Kini et al., Label-imbalanced and group-sensitive
        classification under overparameterization, 2021 (scale). Lin et al., Focal loss, 2017.
    """

    soft_labels = True

    def __init__(
        self,
        counts: ClassCounts | Any,
        *,
        margin: Margin | None = None,
        weights: Values | None = None,
        scale: float | Values = 1.0,
        focal: float = 0.0,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, margin=margin)
        self.focal = real("focal", focal, at_least=0)
        self.label_smoothing = real("label_smoothing", label_smoothing, at_least=0, at_most=1)
        self.ignore_index = None if ignore_index is None else whole("ignore_index", ignore_index)
        _register_weights(self, weights)
        if not (isinstance(scale, Real) and scale == 1):
            self.register_vector("scale", scale)  # type: ignore[arg-type]
            if not bool((self.vectors["scale"] > 0).all()):
                raise InputError(f"scale must be above 0 for every class, got {float(self.vectors['scale'].min())}")

    def extra_repr(self) -> str:
        knobs = {"focal": 0, "label_smoothing": 0, "ignore_index": None}
        given = [f"{k}={getattr(self, k)!r}" for k, default in knobs.items() if getattr(self, k) != default]
        return ", ".join([super().extra_repr(), *given])

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        logits = out.logits
        labels = labels.to(logits.dtype) if labels.is_floating_point() else labels
        rows = max(PIECE // logits.shape[1], 1)
        # An accelerator or a compiler is better off with the whole.
        if len(logits) <= rows or logits.device.type != "cpu" or torch.compiler.is_compiling():
            return self._rows(logits, labels)
        return torch.cat([self._rows(f, y) for f, y in zip(logits.split(rows), labels.split(rows))])

    def _rows(self, f: Tensor, y: Tensor) -> Tensor:
        w = self.vector("weights", f) if self.has("weights") else None
        # Distributions name no label, and torch takes no ignore_index with them that could be one.
        ignored = NONE if self.ignore_index is None or y.is_floating_point() else self.ignore_index
        z = f * self.vector("scale", f) if self.has("scale") else f
        if self.has("other"):
            z = z + self.vector("other", f)
        one_label = not y.is_floating_point() and not self.label_smoothing
        if self.has("own") and one_label:
            at = self._looked_up(y)
            z = z.scatter_add(1, at[:, None], self.vector("own", f)[at][:, None])
        if not self.focal and (one_label or not self.has("own")):
            return F.cross_entropy(
                z, y, w, ignore_index=ignored, label_smoothing=self.label_smoothing, reduction="none"
            )
        if one_label:
            loss = self._focused(F.cross_entropy(z, y, ignore_index=ignored, reduction="none"))
            return loss if w is None else loss * w[self._looked_up(y)]
        q = self._distribution(y, f)
        loss = self._focused(self._of_every_label(z))
        return (q * loss if w is None else q * w * loss).sum(1)

    def _of_every_label(self, z: Tensor) -> Tensor:
        """ℓ(c, f) for every label c, (B, C), from z = s·f + other."""
        log_p = z.log_softmax(1)
        if not self.has("own"):
            return -log_p
        if z.shape[1] == 1:
            return z - z
        # ℓ(c) = log[1 + Σ_{y'≠c} p_y' / (p_c exp(own_c))]. The sum is 1 − p_c, which has no digits left where p_c is
        # near 1; that can only be the largest, and for it alone the others are summed up.
        top = log_p.argmax(1, keepdim=True)
        of_others = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
        log_rest = torch.log1p(-log_p.scatter(1, top, -1.0).exp()).scatter(1, top, of_others)
        return softplus(log_rest - log_p - self.vector("own", z))

    def _focused(self, loss: Tensor) -> Tensor:
        if not self.focal:
            return loss
        # A power below 1 has no derivative at 0, and where 1 − p is 0 the loss is too.
        return (-torch.expm1(-loss)).clamp(min=torch.finfo(loss.dtype).tiny) ** self.focal * loss

    def _distribution(self, y: Tensor, like: Tensor) -> Tensor:
        q = y if y.is_floating_point() else torch.zeros_like(like).scatter(1, self._looked_up(y)[:, None], 1.0)
        q = q * (1 - self.label_smoothing) + self.label_smoothing / like.shape[1]
        if self.ignore_index is not None and not y.is_floating_point():
            q = q * (y != self.ignore_index)[:, None]
        return q

    def _looked_up(self, y: Tensor) -> Tensor:
        """Labels that index a table; what is ignored looks up class 0."""
        return y if self.ignore_index is None else y.masked_fill(y == self.ignore_index, 0)

    def growth(self, out: Outputs, labels: Tensor) -> Tensor | None:
        """``s_y·f_y − Σ_c p_c·s_c·f_c`` with ``p = softmax(s·f + other)``; weights, focal and smoothing left aside."""
        f = out.logits
        scaled = f * self.vector("scale", f) if self.has("scale") else f
        z = scaled + self.vector("other", f) if self.has("other") else scaled
        expected = (z.softmax(1) * scaled).sum(1)
        if labels.is_floating_point():
            return (labels * scaled).sum(1) - expected
        return scaled.gather(1, self._looked_up(labels)[:, None])[:, 0] - expected

    def weights(self, labels: Tensor, like: Tensor) -> Tensor | None:
        if labels.is_floating_point():
            return labels.to(like.dtype) @ self.vector("weights", like) if self.has("weights") else None
        if not self.has("weights") and self.ignore_index is None:
            return None
        w = self.vector("weights", like)[self._looked_up(labels)] if self.has("weights") else torch.ones_like(like)
        return w if self.ignore_index is None else w * (labels != self.ignore_index)


class HardMargin(WithMargin):
    """The hinge that the margin cross-entropy is a soft form of: ``max_{y'≠y} [Δ_yy' + f_y' − f_y]_+``.

    Args:
        counts: the class counts.
        margin: Δ; none is 0.

    Shape:
        logits (B, C); labels (B,); result (B,).

    Example:
        >>> from longtail.margins import Constant
        >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
        >>> HardMargin([90, 10], margin=Margin(target=Constant(1.0)))((logits, None), labels)
        tensor([0., 3.])

    References:
        The ELM paper, below Eq. 3. Crammer and Singer, Multiclass kernel-based vector machines, 2001.
    """

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        f = out.logits
        at = labels[:, None]
        z = f + self.vector("other", f) if self.has("other") else f
        own = z.gather(1, at)
        if self.has("own"):
            own = own + self.vector("own", f)[at]
        return F.relu(z.scatter(1, at, -torch.inf).amax(1) - own[:, 0])


class SigmoidFocal(Term):
    """One sigmoid focal loss a class, summed: ``w_y · Σ_c (1 − p_c)^γ · (−log p_c)``.

    ``p_c`` is the probability given to what is true of class c: σ(f_c) if c = y, else 1 − σ(f_c). With
    ``weights=EffectiveNumber()`` it is the class-balanced focal loss; its mean is over the batch, not over weights.

    Args:
        counts: the class counts.
        gamma: γ; 0 is the sigmoid cross-entropy.
        weights: one weight a class, as a function of the counts or as C values.

    Shape:
        logits (B, C); labels (B,); result (B,).

    Example:
        >>> SigmoidFocal([90, 10])((torch.zeros(1, 2), None), torch.tensor([1]))
        tensor([0.6931])

    References:
        Cui et al., Class-balanced loss based on effective number of samples, 2019.
    """

    name = "logit"
    needs = ("logits",)
    scope = "sample"

    def __init__(self, counts: ClassCounts | Any, *, gamma: float = 1.0, weights: Values | None = None) -> None:
        super().__init__(counts)
        self.gamma = real("gamma", gamma, at_least=0)
        _register_weights(self, weights)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        f = out.logits
        at = labels[:, None]
        right = (-f).scatter(1, at, f.gather(1, at))
        log_p = F.logsigmoid(right)
        # log(1 − p) is the log-sigmoid of −right, which is log p − right
        loss = ((self.gamma * (log_p - right)).exp() * -log_p).sum(1)
        return loss * self.vector("weights", f)[at[:, 0]] if self.has("weights") else loss


class Hybrid(Term):
    """A contrast between samples in logit space: ``log[1 + Σ_{x⁻∈N(x)} exp(f_y(x⁻) − f_y(x))]``.

    N(x) are the samples of the batch with another label; without any the value is 0.

    Shape:
        logits (B, C); labels (B,); result (B,).

    Example:
        >>> Hybrid([90, 10])((torch.zeros(3, 2), None), torch.tensor([0, 0, 1]))
        tensor([0.6931, 0.6931, 1.0986])

    References:
        Liu and Abbeel, Hybrid discriminative-generative training via contrastive learning, 2020, as the ELM paper
        writes it.
    """

    name = "hybrid"
    needs = ("logits",)

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        f = out.logits
        of_label = f.T[labels]
        own = f.gather(1, labels[:, None])
        return log1p_sum_exp(of_label - own, pair(f, labels, None, ids).negatives)


def _register_weights(term: Term, weights: Values | None) -> None:
    if weights is None:
        return
    term.register_vector("weights", weights)  # type: ignore[arg-type]
    if bool((term.vectors["weights"] < 0).any()):
        raise InputError(f"weights must not be negative, got {float(term.vectors['weights'].min())}")
