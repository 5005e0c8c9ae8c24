"""How far a run is: what an epoch adds up to, who is told of it, and how it is shown.

A live line on a terminal, one plain line an epoch elsewhere, and trackers where installed.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..counts import GROUPS, ClassCounts
from ..errors import InputError, one_of
from ..losses.base import Objective
from . import recipe

if TYPE_CHECKING:
    from .job import Prepared

TRACKERS = ("tensorboard", "wandb")


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
    # Per group: cross-entropy, samples predicted right, samples; empty where the objective reads no logits
    groups: dict[str, list[float]] = field(default_factory=dict)

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
        mask = objective.alive(labels, ids)
        if mask is None:
            return
        soft = labels.ndim == 2  # mixed samples are no anchors
        anchor = labels.amax(1) == 1 if soft else torch.ones_like(labels, dtype=torch.bool)
        member = _group_of(objective.counts).to(labels.device)[labels.argmax(1) if soft else labels]
        with_positive = torch.bincount(member[mask], minlength=len(GROUPS)).tolist()
        anchors = torch.bincount(member[anchor], minlength=len(GROUPS)).tolist()
        _add(self.alive, zip(with_positive, anchors))

    @torch.no_grad()
    def count_groups(self, scores: Tensor, labels: Tensor, counts: ClassCounts) -> None:
        """Add up loss and hits of a batch by group: without margins, as the trained network would decide."""
        scores = scores.detach().float()
        loss = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        values = torch.stack([loss, scores.argmax(1) == labels, torch.ones_like(loss)]).double()
        member = _group_of(counts).to(labels.device)[labels]
        _add(self.groups, values.new_zeros(len(values), len(GROUPS)).index_add_(1, member, values).T.tolist())

    def row(self) -> dict[str, Any]:
        """The epoch's line in metrics.jsonl, without its place: means over the steps; by group of classes the fraction
        of anchors with a positive, and loss, accuracy and number of samples; None where nothing was counted."""
        steps = max(self.steps, 1)
        total = [sum(pair[i] for pair in self.alive.values()) for i in (0, 1)]
        alive = {name: some / of if of else None for name, (some, of) in {"all": total, **self.alive}.items()}
        groups = {
            name: {"loss": loss / n, "accuracy": hits / n, "n": int(n)} if n else None
            for name, (loss, hits, n) in self.groups.items()
        }
        return {
            "loss": self.loss / steps,
            "parts": {name: value / steps for name, value in self.parts.items()},
            "alive": alive if self.alive else None,
            "groups": groups or None,
            "images_per_second": round(self.samples / max(self.seconds, 1e-9), 1),
            "seconds": round(self.seconds, 3),
        }


def _add(sums: dict[str, list[Any]], by_group: Iterable[Sequence[float]]) -> None:
    for name, new in zip(GROUPS, by_group):
        sums[name] = [a + b for a, b in zip(sums.get(name, [0] * len(new)), new)]


@functools.lru_cache(maxsize=8)
def _group_of(counts: ClassCounts) -> Tensor:
    """Each class's group as 0, 1, 2."""
    member = counts.n.new_zeros(counts.num_classes)
    for i, index in enumerate(counts.groups().values()):
        member[index] = i
    return member


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


class Watcher:
    """Whoever looks on: a display, a tracker; told of every step, and of every epoch's row."""

    def step(self, now: Progress) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        pass


def introduce(ready: Prepared, say: Callable[[str], None], methods: Sequence[str] = ()) -> None:
    """What is about to run, and for a single run what was decided where the paper leaves it open."""
    from .. import models
    from ..margins import from_data

    data, how, model = ready.data, ready.recipe, ready.model
    val = f", {len(data.val)} val" if data.val is not None else ", no val"
    say(f"{data.name}: {data.num_classes} classes, {len(data.train)} train{val}, {len(data.test)} test")
    for note in data.notes:
        say(f"  {note}")
    epochs = how.epochs if methods else sum(ready.plan.epochs(how.epochs))
    say(
        f"{', '.join(methods) or ready.plan.method} with {how.model} ({models.parameter_count(model):,} parameters), "
        f"recipe {how.name}: {epochs} epochs, batch {how.batch_size}, lr {how.lr:g}, {how.precision} on {ready.device}"
        + ("" if methods else f", {torch.get_num_threads()} thread(s)")
    )
    if methods:
        return
    if ready.plan.knobs:
        shown = {k: from_data(v) if isinstance(v, dict) else v for k, v in ready.plan.knobs.items()}
        say("  " + ", ".join(f"{k} = {v}" for k, v in shown.items()))
    for decision in ready.config["decisions"]:
        say(f"  {decision}")
    if attained := recipe.attained(how.name):
        say(f"  What {how.name} attained: {attained}")


def describe(row: dict[str, Any]) -> str:
    """Loss, its parts, the share of anchors with a positive, and accuracy on the training batches, of an epoch's row.

    >>> describe({"loss": 1.5, "parts": {"logit": 1.4, "pull": 10.0}, "alive": None})
    'loss 1.5000 (logit 1.4000, pull 10.0000)'
    """
    text = f"loss {row['loss']:.4f}"
    if len(row["parts"]) > 1:
        text += f" ({', '.join(f'{name} {value:.4f}' for name, value in row['parts'].items())})"
    if row["alive"]:
        shares = [f"{name} {value:.2f}" for name, value in row["alive"].items() if value is not None]
        text += f", with a positive: {', '.join(shares)}"
    if row.get("groups"):
        shares = [f"{name} {100 * g['accuracy']:.0f}" for name, g in row["groups"].items() if g is not None]
        text += f", training accuracy: {', '.join(shares)} %"
    if row.get("val"):
        shares = [f"{name} {100 * value:.0f}" for name, value in row["val"]["groups"].items() if value is not None]
        text += f", validation: {', '.join(shares)} %"
    return text


class Lines(Watcher):
    """One plain line an epoch."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None  # when the first step was heard of, and the share done by then

    def step(self, now: Progress) -> None:
        self.now = now
        self.began = self.began or (time.monotonic(), now.done)

    def left(self) -> str:
        """Time left, from the share done since this process began."""
        assert self.began is not None
        when, done = self.began
        if self.now.done <= done:
            return "?"
        return clock((time.monotonic() - when) * (1 - self.now.done) / (self.now.done - done))

    def result(self, row: dict[str, Any]) -> str:
        return f"epoch {row['epoch']}/{self.now.epochs} {row['stage']}: {describe(row)}"

    def epoch(self, row: dict[str, Any]) -> None:
        rate = f"lr {row['lr']:.4g}, {row['images_per_second']:.0f} samples/s"
        print(f"{self.result(row)}, {rate}, {self.left()} left", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Live(Lines):
    """Three lines that follow the run, on a terminal; each epoch's result stays above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__()
        self.console = Console(stderr=True)
        self.screen = Screen(console=self.console, auto_refresh=False, transient=True)
        self.shown = 0.0

    def step(self, now: Progress) -> None:
        if self.began is None:
            self.screen.start()
        super().step(now)
        # Ten times a second is as fast as anyone reads; more would cost a small network its speed
        if time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            self.screen.update(self._lines(now), refresh=True)

    def _lines(self, now: Progress) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = now.sums.row()
        place = f"{now.stage} {now.epoch}/{now.epochs}, step {now.step}/{now.steps}"
        bar = Table.grid(padding=(0, 1))
        bar.add_row(place, ProgressBar(1.0, now.done, width=20), f"{now.done:4.0%}, {self.left()} left")
        speed = f"lr {now.lr:.4g}, {row['images_per_second']:.0f} samples/s"
        return Group(bar, Text(describe(row), overflow="ellipsis", no_wrap=True), Text(speed))

    def epoch(self, row: dict[str, Any]) -> None:
        self.console.print(self.result(row), highlight=False, markup=False, soft_wrap=True)
        if self.now.done >= 1:
            self.close()

    def close(self) -> None:
        self.screen.stop()


def clock(seconds: float) -> str:
    """A stretch of time.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def check_tracker(name: str) -> None:
    """Refuse a tracker that there is not, before anything is trained."""
    one_of("tracker", name, TRACKERS)
    try:
        importlib.import_module({"tensorboard": "torch.utils.tensorboard"}.get(name, name))
    except (ImportError, RuntimeError, OSError) as error:
        raise InputError(f"{name} cannot be used here ({error}): pip install 'longtail[track]'") from error


def tracker(name: str, folder: Path, config: dict[str, Any]) -> Watcher:
    """A tracker by name; it writes beside the run and is never read again."""
    return _TensorBoard(folder) if name == "tensorboard" else _WandB(folder, config)


def _scalars(row: dict[str, Any]) -> dict[str, float]:
    named = {"loss": row["loss"], "lr": row["lr"], "images_per_second": row["images_per_second"]}
    named |= {f"parts/{k}": v for k, v in row["parts"].items()}
    named |= {f"alive/{k}": v for k, v in (row["alive"] or {}).items() if v is not None}
    named |= {f"val/{k}": v for k, v in row.get("val", {}).get("groups", {}).items() if v is not None}
    return named | {
        f"{what}/{k}": g[what] for k, g in (row["groups"] or {}).items() if g for what in ("loss", "accuracy")
    }


class _TensorBoard(Watcher):
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def epoch(self, row: dict[str, Any]) -> None:
        for name, value in _scalars(row).items():
            self.writer.add_scalar(name, value, row["epoch"])
        self.writer.flush()


class _WandB(Watcher):
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        # A worker of compare does several runs, each of which is one there, too
        about: dict[str, Any] = {"project": "longtail", "name": folder.name, "dir": str(folder), "config": config}
        self.run: Any = wandb.init(**about, resume="allow", reinit="finish_previous")

    def epoch(self, row: dict[str, Any]) -> None:
        self.run.log(_scalars(row), step=row["epoch"])
