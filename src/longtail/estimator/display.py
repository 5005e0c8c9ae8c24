"""What ``verbose`` shows: a progress bar with the loss."""

from __future__ import annotations

from typing import Any

from ..engine.progress import Progress, Watcher


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
