"""ELM, the paper's objective, and its own regulariser: an embedding margin that draws a class's samples together."""

from __future__ import annotations

import functools
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import margins
from ..counts import ClassCounts, class_counts
from ..errors import InputError, real, true_or_false
from ..margins import Margin, PerClass, Power
from ..numeric import compute_dtype, unit_rows
from .base import Features, Objective, Outputs, Term
from .inputs import check_ids
from .logit import MarginCrossEntropy
from .memory import ClassMemory
from .pairs import softplus
from .pull_kernel import count, log_sum


class _Pull(Term):
    """What the forms of the pull share: α, positives, and how the parts of a key set come together."""

    name: ClassVar[str] = "pull"
    takes_keys: ClassVar[bool] = True
    hard: ClassVar[bool] = False

    def __init__(
        self,
        counts: ClassCounts | Any,
        *,
        alpha: PerClass | str | float | Any = Power(0.5, of="count"),
        normalise: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__(counts)
        self.alpha = margins.parse(alpha) if isinstance(alpha, (PerClass, str, int, float)) else alpha
        self.register_vector("alpha", self.alpha)
        self.normalise = self.any_size = true_or_false("normalise", normalise)
        self.distance_scale = real("scale", scale, above=0)

    def extra_repr(self) -> str:
        shown = {"normalise": self.normalise, "scale": self.distance_scale}
        given = "".join(f", {name}={value}" for name, value in shown.items() if value not in (False, 1))
        return f"alpha={self.alpha!r}{given}"

    def alive(self, labels: Tensor, keys: Features | None = None, ids: Tensor | None = None) -> Tensor:
        """Which anchors have a positive, (B,) bool: for the others the term is 0 whatever their embeddings."""
        self.check_labels(labels)
        if ids is not None:
            check_ids("ids", ids, labels.shape)
        return self._positives(labels.long(), keys, ids) > 0

    def _positives(self, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        return count(labels, ids, keys, self.counts.num_classes)

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        return self._values(out, labels, [keys], ids)

    def values_with_extra(self, out: Outputs, labels: Tensor, extra: Features, ids: Tensor | None) -> Tensor:
        return self._values(out, labels, [None, extra], ids)

    def _values(self, out: Outputs, labels: Tensor, parts: list[Features | None], ids: Tensor | None) -> Tensor:
        """``parts`` make up the keys; None among them is the batch itself."""
        x = out.embeddings
        if self.normalise:
            x = unit_rows(x)
            parts = [None if keys is None else _normalised(keys) for keys in parts]
        scale = self.scale(x)
        found = [log_sum(x, labels, ids, keys, self.hard, scale) for keys in parts]
        joined = functools.reduce(torch.maximum if self.hard else _log_add, found)
        return self.finish(joined - self.vector("alpha", x)[labels], labels, parts, ids)

    def scale(self, x: Tensor) -> Tensor | None:
        """What squared distances are multiplied by, None for 1."""
        return None if self.distance_scale == 1 else x.new_tensor(self.distance_scale)

    def shrinkage(self, values: Tensor, labels: Tensor) -> Tensor | None:
        """``2·σ·(log Σ exp d²)`` with σ the slope of the softplus (or the hinge): an upper estimate from the values."""
        if self.normalise:
            return None
        distance = values + self.vector("alpha", values)[labels]
        if self.hard:
            return torch.where(values > 0, 2 * distance, 0.0)
        slope = -torch.expm1(-values)
        # where Ω > 0, Ω + log σ is the softplus's argument, log Σ exp d² − α
        return torch.where(values > 0, 2 * slope * (distance + slope.clamp(min=1e-30).log()).clamp(min=0), 0.0)

    def finish(self, joined: Tensor, labels: Tensor, parts: list[Features | None], ids: Tensor | None) -> Tensor:
        """From the logarithm of the sum over positives (or the maximum) to the values."""
        raise NotImplementedError


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """``log(exp a + exp b)``; where one is below the last digit of the other, second derivatives stay finite too."""
    return torch.logaddexp(torch.maximum(a, b.detach() - 40), torch.maximum(b, a.detach() - 40))


def _normalised(keys: Features) -> Features:
    return keys._replace(embeddings=unit_rows(keys.embeddings.to(compute_dtype(keys.embeddings))))


class Pull(_Pull):
    """The embedding margin of ELM: the farther a sample lies from its class, beyond α_y, the more it costs.

    ``Ω(x, y) = log[1 + Σ_{x⁺ ∈ S_y∖{x}} exp(‖Φ(x) − Φ(x⁺)‖² − α_y)]``

    S_y are the keys of label y: the batch itself, or ``keys``, or the batch and a memory together. The anchor is
    excluded by its id where anchors and keys have ids, by its position in its own batch otherwise. Without a positive
    the value and its gradient are 0.

    With ``scaled=True`` the sum is multiplied by (n_y − 1)/m, where m positives are at hand of the n_y − 1 that the
    class has. Over random batches in which the anchor has a positive the scaled sum has the mean of the full one, its
    logarithm a lower mean (Jensen); at m = n_y − 1 both forms are equal. Without a positive (m = 0) nothing can be
    scaled, and the value is 0. Classes with n_y ≤ 1 that have a positive all the same count as n_y = 2.

    Shapes: embeddings (B, K), labels (B,), keys ``Features((M, K), (M,)[, (M,)])``; values (B,). Work and memory grow
    with the pairs of equal label, not with B²; under a transform of ``torch.func`` and in a second backward pass they
    grow with B².

    Args:
        counts: the class counts.
        alpha: α, a function of the counts (or its short form such as ``"10*prior^0.5"``), a number, or C values.
        scaled: put (n_y − 1)/m inside the logarithm.
        normalise: take distances between embeddings of norm 1, so that shrinking embeddings gains nothing. Squared
            distances are then at most 4, so choose α (such as 0) and ``scale`` for that.
        scale: what squared distances are multiplied by.

    >>> import torch
    >>> pull = Pull([4, 2], alpha=1.0)
    >>> embeddings, labels = torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> pull(embeddings, labels)  # log(1 + exp(4 − 1)) twice; the third has no positive
    tensor([3.0486, 3.0486, 0.0000])
    >>> pull.alive(labels)
    tensor([ True,  True, False])
    >>> pull(embeddings, labels, keys=Features(torch.tensor([[5.5]]), torch.tensor([1])))
    tensor([0.0000, 0.0000, 0.3869])

    Reference: ELM: Embedding and Logit Margins for Long-Tail Learning, its Ω_pull.
    """

    def __init__(
        self,
        counts: ClassCounts | Any,
        *,
        alpha: PerClass | str | float | Any = Power(0.5, of="count"),
        scaled: bool = False,
        normalise: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__(counts, alpha=alpha, normalise=normalise, scale=scale)
        self.scaled = true_or_false("scaled", scaled)
        if scaled:
            self.register_vector("others", (self.counts.n - 1).clamp(min=1).double())

    def extra_repr(self) -> str:
        return super().extra_repr() + (", scaled=True" if self.scaled else "")

    def finish(self, joined: Tensor, labels: Tensor, parts: list[Features | None], ids: Tensor | None) -> Tensor:
        if self.scaled:
            at_hand = sum(self._positives(labels, keys, ids) for keys in parts)
            assert isinstance(at_hand, Tensor)
            joined = joined + (self.vector("others", joined)[labels] / at_hand.clamp(min=1)).log()
        return softplus(joined)


class RelativePull(Pull):
    """``Pull`` with distances relative to the spread of the batch, so that α and λ mean the same for every network.

    ``Ω(x, y) = log[1 + Σ_{x⁺ ∈ S_y∖{x}} exp(4‖Φ(x) − Φ(x⁺)‖²/V − α_y)]``, ``V = 1/B Σ_i ‖Φ(x_i) − mean Φ‖²``

    V is the total variance of the batch's embeddings, with its gradient: scaling all embeddings changes nothing, so
    shrinking them gains nothing, and what falls is the variance within classes relative to the whole. Two samples at
    random are at 4d²/V = 8 on average. Keys from elsewhere are measured by the same V. A batch without any spread
    (V ≤ 1e-18) has distances 0. Arguments, shapes and positives are those of ``Pull``; α is 0 by default.

    >>> import torch
    >>> x, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> pull = RelativePull([4, 2])
    >>> pull(x, labels), pull(1000 * x, labels)
    (tensor([4.5110, 4.5110, 0.0000]), tensor([4.5110, 4.5110, 0.0000]))
    """

    def __init__(
        self, counts: ClassCounts | Any, *, alpha: PerClass | str | float | Any = 0.0, scaled: bool = False
    ) -> None:
        super().__init__(counts, alpha=alpha, scaled=scaled)

    def shrinkage(self, values: Tensor, labels: Tensor) -> Tensor | None:
        return None

    def scale(self, x: Tensor) -> Tensor:
        near = x - x[:1].detach()  # a shift that costs no digits where the mean lies far from the origin
        variance = (near - near.mean(0)).square().sum() / len(x)
        # Below this the quotient's derivative, 4/V², would overflow in float32: no spread at all.
        spread = variance > 1e-18
        return torch.where(spread, 4 / torch.where(spread, variance, 1.0), 0.0)


class HardPull(_Pull):
    """The hard form of ``Pull``: the farthest positive alone, with a hinge.

    ``Ω̃(x, y) = max_{x⁺ ∈ S_y∖{x}} [‖Φ(x) − Φ(x⁺)‖² − α_y]₊``, never above ``Pull`` with the same α.

    Arguments, shapes and positives are those of ``Pull``. Of several farthest positives the first takes the gradient.

    >>> import torch
    >>> HardPull([4, 2], alpha=1.0)(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([3., 3., 0.])

    Reference: ELM: Embedding and Logit Margins for Long-Tail Learning, its Ω̃_pull.
    """

    name: ClassVar[str] = "hard_pull"
    hard: ClassVar[bool] = True

    def finish(self, joined: Tensor, labels: Tensor, parts: list[Features | None], ids: Tensor | None) -> Tensor:
        return joined.relu()


class ELM(Objective):
    """Embedding and logit margins: ``mean over samples of ℓ(y, f(x)) + λ·Ω(x, y)``.

    ℓ is ``MarginCrossEntropy`` with Δ_yy' = τ·log P(y')/P(y), the part ``"logit"``; Ω is ``Pull`` with margin α_y, the
    part ``"pull"``. With λ = 0 it is exactly the logit-adjusted cross-entropy, and needs no embeddings.

    Args:
        counts: the class counts.
        alpha: α, as ``Pull`` takes it. The paper's: √n_y on CIFAR100-LT and iNaturalist, ``Power(1)`` on CIFAR10-LT,
            ``Power(0.5, scale=10)`` on ImageNet-LT.
        lam: λ ≥ 0, or ``"auto"``: 0.01, lowered in each batch where it would shrink the logits (``Objective``'s
            ``bound`` at 0.5).
        tau: τ of the logit margin.
        memory: a ``ClassMemory``, or the number of embeddings a class to remember: positives beyond the batch, without
            which a class of the tail hardly ever has one. Then calls need ``ids``.
        scaled: ``Pull``'s scaled form, which makes up for the positives that are not at hand.
        normalise, pull_scale: ``Pull``'s ``normalise`` and ``scale``.
        head_scale: what logits are multiplied by, for those of a cosine head.
        distributed: as in ``Objective``.

    >>> import torch
    >>> criterion = ELM(ClassCounts([500, 210, 5]))
    >>> logits, embeddings, labels = torch.zeros(4, 3), torch.randn(4, 8), torch.tensor([0, 0, 1, 2])
    >>> loss, parts = criterion((logits, embeddings), labels, return_parts=True)
    >>> torch.allclose(loss, parts["logit"] + 0.01 * parts["pull"])
    True

    Reference: ELM: Embedding and Logit Margins for Long-Tail Learning.
    """

    def __init__(
        self,
        counts: ClassCounts | Any,
        *,
        alpha: PerClass | str | float | Any = Power(0.5, of="count"),
        lam: float | Literal["auto"] = 0.01,
        tau: float = 1.0,
        memory: ClassMemory | int | None = None,
        scaled: bool = False,
        normalise: bool = False,
        pull_scale: float = 1.0,
        head_scale: float = 1.0,
        distributed: bool = False,
    ) -> None:
        counts = class_counts(counts)
        most, bound = (0.01, 0.5) if isinstance(lam, str) and lam == "auto" else (real("lam", lam, at_least=0), None)
        if isinstance(memory, Integral) and not isinstance(memory, bool):
            memory = ClassMemory(counts, capacity=int(memory))
        elif memory is not None and not isinstance(memory, ClassMemory):
            raise InputError(f"memory must be a ClassMemory, a number of embeddings a class or None, got {memory!r}")
        super().__init__(
            (1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio(tau), scale=head_scale)),
            (most, Pull(counts, alpha=alpha, scaled=scaled, normalise=normalise, scale=pull_scale)),
            distributed=distributed,
            memory=memory,
            bound=bound,
        )
