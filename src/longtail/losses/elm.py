"""ELM, the paper's objective: a logit margin and an embedding margin."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..counts import ClassCounts
from ..errors import InputError
from ..margins import Margin, PerClass, Power
from . import memory as memories
from .base import Objective
from .inputs import number
from .logit import MarginCrossEntropy
from .pull import Pull


class ELM(Objective):
    """Embedding and logit margins: ``mean over samples of ℓ(y, f(x)) + λ·Ω(x, y)``.

    ℓ is ``MarginCrossEntropy`` with Δ_yy' = τ·log P(y')/P(y), the part ``"logit"``; Ω is ``Pull`` with margin α_y, the
    part ``"pull"``. With λ = 0 it is exactly the logit-adjusted cross-entropy, and needs no embeddings.

    Args:
        counts: the class counts.
        alpha: α, as ``Pull`` takes it. The paper's: √n_y on CIFAR100-LT and iNaturalist, ``Power(1)`` on CIFAR10-LT,
            ``Power(0.5, scale=10)`` on ImageNet-LT.
        lam: λ ≥ 0.
        tau: τ of the logit margin.
        memory: a ``ClassMemory``, or the number of embeddings a class to remember: positives beyond the batch, without
            which a class of the tail hardly ever has one. Then calls need ``ids``.
        scaled: ``Pull``'s scaled form, which makes up for the positives that are not at hand.
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
        lam: float = 0.01,
        tau: float = 1.0,
        memory: memories.ClassMemory | int | None = None,
        scaled: bool = False,
        distributed: bool = False,
    ) -> None:
        counts = counts if isinstance(counts, ClassCounts) else ClassCounts(counts)
        lam = number("lam", lam)
        if isinstance(memory, Integral) and not isinstance(memory, bool):
            memory = memories.ClassMemory(counts, capacity=int(memory))
        elif memory is not None and not isinstance(memory, memories.ClassMemory):
            raise InputError(f"memory must be a ClassMemory, a number of embeddings a class or None, got {memory!r}")
        super().__init__(
            (1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio(tau))),
            (lam, Pull(counts, alpha=alpha, scaled=scaled)),
            distributed=distributed,
            memory=memory,
        )
