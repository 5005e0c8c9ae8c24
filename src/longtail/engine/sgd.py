"""SGD with momentum: the updates of ``torch.optim.SGD``, to the bit.

The first of torch's optimisers that a process makes imports torch's compiler, which takes seconds: more than training
on small data does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


class SGD:
    """``v ← momentum·v + g``, ``w ← w − lr·v`` with ``g`` the gradient plus ``weight_decay · w``; Nesterov takes
    ``g + momentum·v`` in place of ``v``.

    Attributes:
        groups: as ``parameter_groups`` makes them; ``share`` is what a group's learning rate is multiplied with.
        momenta: ``v`` of the weights that have had a step, where there is momentum.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], momentum: float, nesterov: bool) -> None:
        self.groups, self.momentum, self.nesterov = groups, momentum, nesterov
        self.momenta: dict[Tensor, Tensor] = {}

    @property
    def parameters(self) -> list[Tensor]:
        return [p for group in self.groups for p in group["params"]]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of all weights that have a gradient."""
        for group in self.groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                updates = self._updates(weights, [p.grad for p in weights], group["weight_decay"])
                torch._foreach_add_(weights, updates, alpha=-lr * group["share"])

    def _updates(self, weights: list[Tensor], grads: Tensors, decay: float) -> Tensors:
        if decay:
            grads = torch._foreach_add(grads, weights, alpha=decay)
        if not self.momentum:
            return grads
        for p in weights:
            if p not in self.momenta:
                self.momenta[p] = torch.zeros_like(p)
        momenta = [self.momenta[p] for p in weights]
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, grads)
        return torch._foreach_add(grads, momenta, alpha=self.momentum) if self.nesterov else momenta
