"""In which order an epoch visits the samples: pure functions of a generator.

Every sampler returns sample positions; `Loader` cuts them into batches.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

SAMPLERS = ("instance", "balanced", "sqrt", "progressive", "pairs")


class ByClass:
    """Positions sorted by class, so that a class can be drawn first and a member of it second.

    Attributes:
        label: (N,) each position's class.
        sorted: (N,) positions, class by class.
        starts, n: (C,) where each class starts in ``sorted``, and its size.
    """

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        self.label = labels
        self.sorted = labels.argsort(stable=True)
        self.n = torch.bincount(labels, minlength=num_classes)
        self.starts = self.n.cumsum(0) - self.n

    def draw(self, share: Tensor, size: int, generator: Generator) -> Tensor:
        """``size`` positions: a class by its ``share`` (C,), then any of its members, with replacement."""
        edges = share.double().cumsum(0)
        u = torch.rand(size, generator=generator, dtype=torch.float64) * edges[-1]
        # right=True: a class with share 0 has an empty interval and is never hit
        label = torch.searchsorted(edges, u, right=True).clamp(max=int(share.nonzero().max()))
        member = (torch.rand(size, generator=generator, dtype=torch.float64) * self.n[label]).long()
        return self.sorted[self.starts[label] + member.minimum(self.n[label] - 1)]


def order(kind: str, by_class: ByClass, progress: float, generator: Generator) -> Tensor:
    """An epoch: every sample once (instance), `pairs`, or as many draws as there are samples, classes drawn by

    - balanced: 1 for every class that has samples;
    - sqrt: √n;
    - progressive (Kang et al. 2020): (1 − t)·n/N + t/C, t = ``progress`` from 0 (first epoch) to 1 (last).
    """
    if kind == "instance":
        return torch.randperm(len(by_class.sorted), generator=generator)
    if kind == "pairs":
        return pairs(by_class, generator)
    n = by_class.n.double()
    there = (n > 0).double()
    uniform = there / there.sum()
    if kind == "balanced":
        share = uniform
    elif kind == "sqrt":
        share = n.sqrt()
    else:
        share = (1 - progress) * n / n.sum() + progress * uniform
    return by_class.draw(share, len(by_class.sorted), generator)


def pairs(by_class: ByClass, generator: Generator) -> Tensor:
    """Every sample next to another of its class: positions 2k and 2k + 1 are a pair.

    A class of odd size shows one random member twice (in two pairs of distinct samples) so that all are covered.
    Samples that are alone in their class are paired with each other, the last of an odd number with itself.
    """
    N = len(by_class.sorted)
    label = torch.repeat_interleave(torch.arange(len(by_class.n)), by_class.n)
    # A random order within each class: sort by (class, random key).
    order = torch.randperm(N, generator=generator)
    order = order[label[order].argsort(stable=True)]
    members = by_class.sorted[order]
    odd = ((by_class.n % 2 == 1) & (by_class.n > 1)).nonzero().flatten()
    # The first of the shuffled members again, behind the last: with n ≥ 3 these two differ.
    extra = members[by_class.starts[odd]]
    alone = members[by_class.starts[(by_class.n == 1).nonzero().flatten()]]
    alone = alone[torch.randperm(len(alone), generator=generator)]
    if len(alone) % 2:
        alone = torch.cat((alone, alone[-1:]))
    many = by_class.n[label] > 1
    keys = torch.cat((label[many], odd))
    together = torch.cat((members[many], extra))[keys.argsort(stable=True)]
    units = torch.cat((together, alone)).view(-1, 2)
    return units[torch.randperm(len(units), generator=generator)].flatten()


def length(kind: str, by_class: ByClass) -> int:
    """How many positions an epoch of this sampler has."""
    if kind != "pairs":
        return len(by_class.sorted)
    alone = int((by_class.n == 1).sum())
    return int(((by_class.n + 1) // 2 * 2)[by_class.n > 1].sum()) + alone + alone % 2
