"""How far a run is: what an epoch adds up to, who is told of it, and how it is shown.

A live line on a terminal, one plain line an epoch elsewhere, and trackers where installed.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..counts import GROUPS, ClassCounts
from ..errors import InputError, unknown
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
        alive = getattr(objective, "alive", None)
        mask = None if alive is None else alive(labels, ids)
        if mask is None:
            return
        soft = labels.ndim == 2  # mixed samples are no anchors
        anchor = labels.amax(1) == 1 if soft else torch.ones_like(labels, dtype=torch.bool)
        member = _group_of(objective.counts).to(labels.device)[labels.argmax(1) if soft else labels]
        with_positive = torch.bincount(member[mask], minlength=len(GROUPS)).tolist()
        anchors = torch.bincount(member[anchor], minlength=len(GROUPS)).tolist()
        for name, a, b in zip(GROUPS, with_positive, anchors):
            seen = self.alive.setdefault(name, [0, 0])
            seen[0] += a
            seen[1] += b

    @torch.no_grad()
    def count_groups(self, scores: Tensor, labels: Tensor, counts: ClassCounts) -> None:
        """Add up loss and hits of a batch by group: without margins, as the trained network would decide."""
        scores = scores.detach().float()
        loss = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        values = torch.stack([loss, scores.argmax(1) == labels, torch.ones_like(loss)]).double()
        member = _group_of(counts).to(labels.device)[labels]
        found = values.new_zeros(len(values), len(GROUPS)).index_add_(1, member, values).T.tolist()
        for name, new in zip(GROUPS, found):
            self.groups[name] = [a + b for a, b in zip(self.groups.get(name, [0.0] * len(new)), new)]

    def by_group(self) -> dict[str, dict[str, float] | None] | None:
        """Mean loss and accuracy of the training batches by group, and how many samples they are of."""
        if not self.groups:
            return None
        return {
            name: {"loss": loss / n, "accuracy": hits / n, "n": int(n)} if n else None
            for name, (loss, hits, n) in self.groups.items()
        }

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
            "groups": self.by_group(),
            "images_per_second": round(self.samples / max(self.seconds, 1e-9), 1),
            "seconds": round(self.seconds, 3),
        }

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> EpochSums:
        """The inverse of ``data``; raises ValueError where it is none."""
        kinds = {f.name: type(getattr(cls(), f.name)) for f in fields(cls)}
        if not isinstance(data, dict) or not all(
            name in kinds and isinstance(value, (int, float) if kinds[name] is float else kinds[name])
            for name, value in data.items()
        ):
            raise ValueError("its sums of the epoch are damaged")
        return cls(**data)


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
    return text


class Lines(Watcher):
    """One plain line an epoch."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self.file = file or sys.stderr
        self.now: Progress | None = None
        self.clock = _Clock()

    def step(self, now: Progress) -> None:
        self.now = now
        self.clock.start(now)

    def epoch(self, row: dict[str, Any]) -> None:
        assert self.now is not None
        where = f"epoch {row['epoch']}/{self.now.epochs} {row['stage']}"
        rate = f"lr {row['lr']:.4g}, {row['images_per_second']:.0f} samples/s"
        print(f"{where}: {describe(row)}, {rate}, {self.clock.left(self.now)} left", file=self.file, flush=True)


class Live(Watcher):
    """Three lines that follow the run, on a terminal; each epoch's result stays above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        self.console = Console(stderr=True)
        self.screen = Screen(console=self.console, auto_refresh=False, transient=True)
        self.clock = _Clock()
        self.shown = 0.0

    def step(self, now: Progress) -> None:
        if self.clock.began is None:
            self.screen.start()
        self.clock.start(now)
        self.now = now
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
        bar.add_row(place, ProgressBar(1.0, now.done, width=20), f"{now.done:4.0%}, {self.clock.left(now)} left")
        speed = f"lr {now.lr:.4g}, {row['images_per_second']:.0f} samples/s"
        return Group(bar, Text(describe(row), overflow="ellipsis", no_wrap=True), Text(speed))

    def epoch(self, row: dict[str, Any]) -> None:
        text = f"epoch {row['epoch']}/{self.now.epochs} {row['stage']}: {describe(row)}"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        if self.now.done >= 1:
            self.close()

    def close(self) -> None:
        self.screen.stop()


class _Clock:
    """Time left, from the share done since this process began."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None

    def start(self, now: Progress) -> None:
        if self.began is None:
            self.began = (time.monotonic(), now.done)

    def left(self, now: Progress) -> str:
        assert self.began is not None
        when, done = self.began
        if now.done <= done:
            return "?"
        return clock((time.monotonic() - when) * (1 - now.done) / (now.done - done))


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
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
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
