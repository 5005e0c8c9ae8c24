"""SIGINT and SIGTERM as a question that the loop asks between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; its state is saved where there is a place for it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


class StopOnSignal:
    """While active, the first SIGINT or SIGTERM, or of ``numbers``, is only noted: a call gives its number, or 0.

    A second one acts at once, as if nobody listened. Outside the main thread, where Python takes no handlers, it does
    nothing.
    """

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers or (signal.SIGINT, signal.SIGTERM)
        self.number = 0
        self._before: dict[int, object] = {}

    def __call__(self) -> int:
        return self.number

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
