"""Who is told how training goes: the bar that ``verbose`` shows, and stopping where validation data no longer gains.

Runs never stop early: they always take the last epoch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import posthoc
from ..counts import ClassCounts
from ..data.dataset import Split
from ..engine.forward import outputs
from ..engine.progress import Progress, Watcher
from ..engine.stage import needs_logits
from ..evaluate import accuracy
from ..plan import Plan


class Display(Watcher):
    """A bar on stderr between ``with`` and its end, told of steps as a watcher is; nothing at all unless verbose."""

    def __init__(self, verbose: bool | int) -> None:
        self.bar: Any = None
        if verbose:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            text = TextColumn("{task.description}")
            columns = (text, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self.bar = Bar(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task("training", total=1.0)

    def __enter__(self) -> Display:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, stage: str, loss: float, share: float) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=f"{stage}: loss {loss:.4f}", completed=share)

    def step(self, now: Progress) -> None:
        self.show(now.stage, now.sums.last, now.done)


class EarlyStopping(Watcher):
    """Keeps the rows of training and, with validation data, watches balanced accuracy there in the last stage."""

    def __init__(self, module: nn.Module, plan: Plan, train: Split, val: Split | None, before: int, wait: int) -> None:
        self.module, self.train, self.val, self.before, self.wait = module, train, val, before, wait
        self.counts = ClassCounts.from_labels(train.labels)
        self.rows: list[dict[str, Any]] = []
        last = plan.stages[-1]
        self.has_logits = needs_logits(last.objective)
        # The factors of a "scale" stage reach the model only at its end: it runs in full.
        self.active = val is not None and last.trains != "scale"
        self.best, self.waited = -1.0, 0
        self.state: dict[str, Tensor] = {}

    def epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if not self.active or row["epoch"] <= self.before:
            return
        score = row["validation"] = self._score()
        self.waited += 1
        if score > self.best:
            self.best, self.waited = score, 0
            self.state = {name: t.clone() for name, t in self.module.state_dict().items()}

    def _score(self) -> float:
        assert self.val is not None
        device = next(self.module.parameters()).device
        logits, embeddings = outputs(self.module, self.val, device)
        if not self.has_logits:
            _, known = outputs(self.module, self.train, device)
            logits = posthoc.ncm(embeddings, known, self.train.labels, logits.shape[1])
        return accuracy.of_labels(logits.argmax(1), self.val.labels, self.counts).balanced

    def stop(self) -> int:
        return int(self.active and self.waited >= self.wait)

    def restore(self) -> None:
        if self.state:
            self.module.load_state_dict(self.state)
