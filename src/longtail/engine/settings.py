"""The settings of a run. Nothing heavy is imported here: whoever only starts runs elsewhere needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """The settings of one run, as the command takes them; None stands for the default of data, method or recipe."""

    method: str
    data: str = "digits-lt"
    root: str = "data"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    model: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    clip: float | None = None
    ema: float | None = None
    augment: str | None = None
    precision: str | None = None
    device: str | None = None
    threads: int | None = None
    workers: int = 0
    compile: bool = False
    out: str | None = None
    under: str = "runs"
    resume: bool = False
    force: bool = False
    save_seconds: float = 60.0
    save_steps: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
