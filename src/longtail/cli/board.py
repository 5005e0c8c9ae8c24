"""How far the runs of a comparison are: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..engine.progress import clock
from .streams import say

if TYPE_CHECKING:
    from ..engine.pool import Outcome

SILENCE = 30.0  # seconds after which a pipe hears that something is going on


class Board:
    """Plain lines: one a run, and one where nothing was said for a while.

    Args:
        names: of the configurations; runs go through them seed after seed.
    """

    def __init__(self, names: Sequence[str], seeds: int, at_a_time: int) -> None:
        self.names, self.seeds, self.at_a_time = names, seeds, at_a_time
        self.total = len(names) * seeds
        self.share: dict[int, float] = {}  # of runs that a worker took up
        self.begun: dict[int, tuple[float, float]] = {}  # when the first step was heard of, and the share done by then
        self.seconds: dict[int, float] = {}  # that finished runs took
        self.ends: dict[int, Outcome] = {}
        self.balanced: dict[int, float] = {}
        self.warned: set[tuple[int, str]] = set()
        self.told = time.monotonic()
        self.expected = False
        self.screen: AbstractContextManager[Any] = nullcontext()

    def name(self, index: int) -> str:
        return f"{self.names[index % len(self.names)]} seed {index // len(self.names)}"

    def step(self, index: int, share: float) -> None:
        self.share[index] = share
        if share:
            self.begun.setdefault(index, (time.monotonic(), share))

    def done(self, index: int, outcome: Outcome) -> None:
        from ..runs.read import read

        self.ends[index] = outcome
        head = f"[{len(self.ends)}/{self.total}] {self.name(index)}: "
        if outcome.path is None:
            self.say(f"{head}failed: {outcome.error}")
            return
        if index in self.begun:
            self.seconds[index] = time.monotonic() - self.begun[index][0]
        run = read(outcome.path)
        self.balanced[index] = run.balanced
        self.finished(f"{head}{100 * run.balanced:.2f} %  {outcome.path}")
        for concern in run.summary.concerns:
            kind = (index % len(self.names), concern.partition(":")[0])
            if kind not in self.warned:  # once a configuration: its other seeds are much the same
                self.warned.add(kind)
                self.say(f"  warning: {self.name(index)}: {concern}")

    def finished(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        self.told = time.monotonic()
        say(text)

    def tick(self, signal: int) -> None:
        left = self.left()
        if left is not None and not self.expected:
            self.expected = True
            self.say(f"about {clock(left)} to go")
        elif time.monotonic() - self.told > SILENCE:
            under_way = ", ".join(f"{self.name(i)} at {self.state(i)}" for i in self.running())
            self.say(f"{self.sum(signal)}; under way: {under_way}" if under_way else self.sum(signal))

    def running(self) -> list[int]:
        return sorted(index for index in self.share if index not in self.ends)

    def state(self, index: int) -> str:
        """A run in one word: its accuracy, or how far it is."""
        if index in self.ends:
            return f"{100 * self.balanced[index]:.2f}" if index in self.balanced else "failed"
        if index not in self.share:
            return "·"
        return "the end" if self.share[index] >= 1 else f"{100 * self.share[index]:.0f} %"

    def sum(self, signal: int) -> str:
        if signal:
            return "stopping: what is under way is being saved"
        if not self.share:
            return "starting"
        left = self.left()
        return f"{len(self.ends)} of {self.total} runs done" + ("" if left is None else f", about {clock(left)} to go")

    def left(self) -> float | None:
        """Seconds, from what runs took so far: those of the same configuration, or of all; None until it is known."""
        now = time.monotonic()
        took = {i: self.seconds.get(i, now - when) for i, (when, _) in self.begun.items()}
        gained = {i: self.share[i] - share for i, (_, share) in self.begun.items()}
        if sum(took.values()) < 2 or sum(gained.values()) <= 0:
            return None

        def pace(same: list[int]) -> float | None:
            gain = sum(gained[i] for i in same)
            return sum(took[i] for i in same) / gain if gain > 0 else None

        paces = [pace([i for i in gained if i % len(self.names) == row]) for row in range(len(self.names))]
        overall = pace(list(gained)) or 0.0
        rest = [
            (1 - self.share.get(i, 0.0)) * (paces[i % len(self.names)] or overall)
            for i in range(self.total)
            if i not in self.ends
        ]
        return max(sum(rest) / self.at_a_time, max(rest, default=0.0))

    def saved(self) -> str:
        """What there is after an interruption."""
        under_way = [f"{self.name(i)} at {self.state(i)}" for i in self.running() if i in self.begun]
        parts = [f"{len(self.balanced)} of {self.total} runs are finished"]
        if under_way:
            parts.append(f"{len(under_way)} saved on the way ({', '.join(under_way)})")
        return " and ".join(parts)


class LiveBoard(Board):
    """The same as a table that stays in place; only failures and warnings go by above it."""

    def __init__(self, names: Sequence[str], seeds: int, at_a_time: int) -> None:
        super().__init__(names, seeds, at_a_time)
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        # Streams stay as they are: what a second Ctrl-C leaves to say must not go to a screen that is gone
        self.screen = self.live = Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self.shown = 0.0

    def finished(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.console.print(text)

    def tick(self, signal: int) -> None:
        if time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            self.live.update(self.picture(signal), refresh=True)

    def picture(self, signal: int = 0) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table
        from rich.text import Text

        done = sum(1.0 if i in self.ends else self.share.get(i, 0.0) for i in range(self.total)) / self.total
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(1.0, done, width=20), f"{done:4.0%}", Text(self.sum(signal)))
        width = min(max(map(len, self.names)), max(12, self.console.width // 3))
        cells = max(1, (self.console.width - width - 6) // 8)  # of 7 letters and a space each
        first = Column("", width=width, overflow="fold")
        seeds = _lines((f"seed {seed}" for seed in range(self.seeds)), cells)
        table = Table(first, Column(Text(seeds)), box=SIMPLE_HEAD, pad_edge=False)
        rows = list(range(len(self.names)))
        if len(rows) > self.console.height - 6:
            rows = sorted({i % len(self.names) for i in self.running()})
        for row in rows:
            states = (self.state(row + seed * len(self.names)) for seed in range(self.seeds))
            table.add_row(Text(self.names[row]), Text(_lines(states, cells)))
        return Group(bar, table)


def _lines(words: Any, a_line: int) -> str:
    padded = [f"{word:>7}" for word in words]
    return "\n".join(" ".join(padded[i : i + a_line]) for i in range(0, len(padded), a_line))


def board(names: Sequence[str], seeds: int, at_a_time: int) -> Board:
    """The one that fits where messages go."""
    return (LiveBoard if sys.stderr.isatty() else Board)(names, seeds, at_a_time)
