"""Where a run is, what those who look on are told, and how it stops."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

from .sums import EpochSums


@dataclass(frozen=True)
class Position:
    """What comes next: step ``step`` of epoch ``epoch`` of stage ``stage``, all from 0; ``done`` steps lie behind."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    done: int = 0


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every step."""

    stage: str
    epoch: int  # from 1, over the whole run
    epochs: int
    step: int  # of this epoch, from 1
    steps: int
    lr: float
    sums: EpochSums
    done: float  # share of all epochs


class Watcher(Protocol):
    """Whoever looks on: a display, a tracker."""

    def step(self, now: Progress) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None: ...


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; its state is saved where there is a place for it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


def derive(seed: int, *where: int) -> int:
    """A seed for one place of a run, from the run's seed: 63 bits of a hash.

    >>> derive(0, 1, 2) == derive(0, 1, 2) != derive(0, 2, 1)
    True
    """
    digest = hashlib.sha256(repr((seed, *where)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
