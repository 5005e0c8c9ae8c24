"""The settings of a run. Nothing heavy is imported here: whoever only starts runs elsewhere needs no torch."""

from __future__ import annotations

import json
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
    begin_with: str | None = None
    out: str | None = None
    under: str = "runs"
    resume: bool = False
    force: bool = False
    save_seconds: float = 60.0
    save_steps: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def command(self) -> list[str]:
        """The command that does this run.

        >>> " ".join(Job("elm", seed=2, knobs={"lam": 0.1}, lr=0.2, out="here").command())
        'longtail train elm --data digits-lt --seed 2 --set lam=0.1 --lr 0.2 --out here'
        """
        words = ["longtail", "train", self.method, "--data", self.data]
        default = Job(self.method)
        for name, value in asdict(self).items():
            if name in ("method", "data", "under", "resume", "force", "save_steps") or value == getattr(default, name):
                continue
            if isinstance(value, Mapping):
                option = {"options": "--option", "knobs": "--set"}[name]
                words += [word for k, v in value.items() for word in (option, f"{k}={_text(v)}")]
            else:
                option = {"save_seconds": "--save-every"}.get(name, "--" + name.replace("_", "-"))
                words += [option] if value is True else [option, str(value)]
        return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
