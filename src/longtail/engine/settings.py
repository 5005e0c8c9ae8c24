"""What a run is to do, as the command takes it; torch is not needed to say so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InputError, real, whole
from . import recipe

if TYPE_CHECKING:
    from ..plan import Plan

MOST_THREADS = 1024


@dataclass(frozen=True)
class Job:
    """The settings of one run; None stands for the default of data, method or recipe."""

    method: str
    data: str = "digits-lt"
    root: str = "data"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    set_recipe: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    train: str | None = None
    # Fields of the recipe that have an option of their own
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
    validate_every: int = 0
    compile: bool = False
    track: Sequence[str] = ()
    begin_with: str | None = None
    out: str | None = None
    under: str = "runs"
    resume: bool = False
    force: bool = False
    save_seconds: float = 60.0
    save_steps: int | None = None

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
                pairs = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in value.items()]
            else:
                pairs = list(value) if name == "track" else [str(value)]
            words += [option(name)] if value is True else [word for pair in pairs for word in (option(name), pair)]
        return words

    def recipe_fields(self) -> dict[str, Any]:
        """The fields of the recipe that are set, by ``set_recipe`` or by an option of their own."""
        short = {name: value for name in recipe.settable() if (value := getattr(self, name, None)) is not None}
        for name in short:
            once([name], self.set_recipe, (option(name), "--set-recipe"))
        return {**short, **self.set_recipe}

    def check(self) -> Plan:
        """Refuse what is wrong in the settings whatever the data, before any is read; the plan of two classes."""
        from .. import methods
        from ..counts import ClassCounts
        from .process import pick_device
        from .progress import check_tracker

        # scikit-learn, which draws the t-SNE at the end, takes 32 bits
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number in [0, 2^32), got {self.seed!r}")
        whole("workers", self.workers, at_least=0, at_most=MOST_THREADS)
        whole("validate-every", self.validate_every, at_least=0, at_most=recipe.MOST_EPOCHS)
        real("save-every", self.save_seconds, at_least=0)
        if self.threads is not None:
            whole("threads", self.threads, at_least=1, at_most=MOST_THREADS)
        pick_device(self.device)
        # Which recipe the data calls for is not known yet: any, so long that no warm-up is longer
        base = recipe.get(self.recipe or "features")
        base = base if self.recipe else base.replace(epochs=recipe.MOST_EPOCHS)
        base.set(self.recipe_fields())
        plan = methods.build(self.method, ClassCounts([2, 1]), **self.knobs)
        for name in self.track:
            check_tracker(name)
        return plan


def option(name: str) -> str:
    """The option that gives a setting of a job."""
    others = {"options": "--option", "knobs": "--set", "save_seconds": "--save-every"}
    return others.get(name, "--" + name.replace("_", "-"))


def once(given: Iterable[str], and_given: Mapping[str, Any], options: tuple[str, str]) -> None:
    """Refuse a name that two options give."""
    if both := [name for name in given if name in and_given]:
        raise InputError(f"{both[0]} is given by {options[0]} and by {options[1]}: give it once")
