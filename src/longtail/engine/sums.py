"""What an epoch adds up to: loss, its parts, and how many anchors had a positive."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..counts import GROUPS, ClassCounts
from ..losses.base import Objective


@dataclass
class EpochSums:
    """Sums over the steps of an epoch so far, as plain numbers: a checkpoint carries them."""

    steps: int = 0
    samples: int = 0
    loss: float = 0.0
    last: float = 0.0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    # Per group: anchors with a positive, and anchors; empty where no term looks for positives
    alive: dict[str, list[int]] = field(default_factory=dict)

    def add(self, samples: int, loss: Tensor, parts: dict[str, Tensor]) -> None:
        """Take in one step."""
        self.last = float(loss.detach())
        self.steps += 1
        self.samples += samples
        self.loss += self.last
        for name, value in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + float(value)

    def count_alive(self, objective: Objective, labels: Tensor, ids: Tensor) -> None:
        """Count the anchors that have a positive; before the objective is called, whose memory then holds the batch."""
        alive = getattr(objective, "alive", None)
        mask = None if alive is None else alive(labels, ids)
        if mask is None:
            return
        member = _group_of(objective.counts).to(labels.device)[labels]
        with_positive = torch.bincount(member[mask], minlength=len(GROUPS)).tolist()
        anchors = torch.bincount(member, minlength=len(GROUPS)).tolist()
        for name, a, b in zip(GROUPS, with_positive, anchors):
            seen = self.alive.setdefault(name, [0, 0])
            seen[0] += a
            seen[1] += b

    def fractions(self) -> dict[str, float | None] | None:
        """The fraction of anchors with a positive, of all and by group; None where nothing was counted."""
        if not self.alive:
            return None
        total = [sum(pair[i] for pair in self.alive.values()) for i in (0, 1)]
        pairs = {"all": total, **self.alive}
        return {name: pair[0] / pair[1] if pair[1] else None for name, pair in pairs.items()}

    def means(self) -> dict[str, float]:
        """The mean of each part over the steps."""
        return {name: value / max(self.steps, 1) for name, value in self.parts.items()}

    def row(self) -> dict[str, Any]:
        """The epoch's line in metrics.jsonl, without its place."""
        return {
            "loss": self.loss / max(self.steps, 1),
            "parts": self.means(),
            "alive": self.fractions(),
            "images_per_second": round(self.samples / max(self.seconds, 1e-9), 1),
            "seconds": round(self.seconds, 3),
        }

    def data(self) -> dict[str, Any]:
        return asdict(self)


@functools.lru_cache(maxsize=8)
def _group_of(counts: ClassCounts) -> Tensor:
    """Each class's group as 0, 1, 2."""
    member = counts.n.new_zeros(counts.num_classes)
    for i, index in enumerate(counts.groups().values()):
        member[index] = i
    return member
