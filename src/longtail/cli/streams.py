"""Standard output and error as they come: full, closed, cut short by `head`, or with no letters beyond ASCII; and the
bar that shows progress there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import typer

# One character for one, so that tables stay straight
_PLAIN = {ord(a): b for a, b in zip("−–—‖·…×✓→←“”²√≤≥≈≠", '---|*~xv><""2v<>~!', strict=True)}
_PLAIN |= {ord(a): b for a, b in zip("αβγδεθλμπστΔΣΦΩ", ["alpha", "beta", "gamma", "delta", "epsilon", "theta",
    "lambda", "mu", "pi", "sigma", "tau", "Delta", "Sum", "Phi", "Omega"], strict=True)}  # fmt: skip


class OutputError(Exception):
    """Standard output took no more; ``reader_left`` if only because whoever read it has gone."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror or error}")
        self.reader_left = isinstance(error, BrokenPipeError)


def plain(text: str) -> str:
    """The same in ASCII, as far as there is a way to say it.

    >>> plain("λ 0.01 → 51.00 ± 1.41 ✓")
    'lambda 0.01 > 51.00+/-1.41 v'
    """
    return text.replace(" ± ", "+/-").translate(_PLAIN)


class _Stream:
    """A stream that writes what its encoding can carry.

    It has no ``buffer``: typer would write UTF-8 past an encoding that says ASCII.
    """

    def __init__(self, stream: TextIO, needed: bool) -> None:
        self._stream, self._needed = stream, needed
        self._failed: OSError | None = None
        self._unicode = (stream.encoding or "utf-8").lower().startswith("utf")
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape")  # a file's name goes out as the bytes that it came in as

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not self._unicode and isinstance(text, str):
            text = plain(text)
        with self._told():
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell of a failure, then and ever after: typer tries out a stream first and takes no notice."""
        try:
            yield
        except OSError as error:
            self._failed = error
            # From here on it goes nowhere: the interpreter flushes once more as it ends
            with suppress(OSError):
                _to_nowhere(self._stream.fileno())
                self._stream.flush()
        if self._needed and self._failed is not None:
            raise OutputError(self._failed) from self._failed


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _open(number: int) -> TextIO:
    """A stream in place of one that was closed: its number would otherwise go to the next file that is opened."""
    try:
        os.fstat(number)
    except OSError:
        _to_nowhere(number)
        return open(number, "w", encoding="utf-8", closefd=False)
    return open(os.devnull, "w", encoding="utf-8")


@contextmanager
def guarded() -> Iterator[None]:
    """Make standard output raise ``OutputError`` where it fails; messages that cannot be written are dropped."""
    before = sys.stdout, sys.stderr
    out, err = (stream or _open(number) for number, stream in enumerate(before, 1))
    sys.stdout, sys.stderr = cast(TextIO, _Stream(out, True)), cast(TextIO, _Stream(err, False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say(text: str) -> None:
    """A line on standard error."""
    typer.echo(text, err=True)


@contextmanager
def bar(what: str = "embedding", unit: str = "images") -> Iterator[Callable[[int, int | None], None]]:
    """A function to be told how much is done, and of how much: a bar with the time left on a terminal, a line every ten
    seconds elsewhere; both on stderr, and nothing at all before it is told."""
    if not sys.stderr.isatty():
        start = last = time.perf_counter()

        def line(done: int, total: int | None) -> None:
            nonlocal last
            if time.perf_counter() - last > 10:
                last = time.perf_counter()
                rest = (
                    f" of {total:,} {unit}, {(last - start) * (total - done) / done:.0f} s left"
                    if total
                    else f" {unit}"
                )
                print(f"{what}: {done:,}{rest}", file=sys.stderr)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counter = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = TextColumn(what), BarColumn(), counter, TimeRemainingColumn()
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task(what, total=None)

    def update(done: int, total: int | None) -> None:
        shown.start()
        shown.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if shown.live.is_started:  # stopping one that never started prints an empty line
            shown.stop()
