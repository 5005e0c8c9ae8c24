"""What is refused before it is read or allocated: files that are none, and sizes that cannot be held."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError

MOST_FILE_BYTES = 1 << 29  # of one image; the largest photographs have some 100 MB


def available_memory() -> int | None:
    """Bytes that could be allocated now, where the system says so."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_memory(what: str, needed: int) -> None:
    """Refuse what does not fit into memory, before it is allocated."""
    there = available_memory()
    if there is not None and needed > there:
        raise InputError(f"{what} would need {needed / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free")


def check_regular(path: Path) -> int:
    """The size of a regular file.

    Raises:
        OSError: it is not there, or cannot be looked at.
        InputError: it is a folder, a device or a pipe, which would be read for ever.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise InputError(f"it is {kind}, not a file")
    return found.st_size


def is_regular(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have (too long, with a NUL) is none."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def reason(error: Exception) -> str:
    """One line of what went wrong."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    text = text.partition(" <_io.")[0]  # Pillow names the buffer, which says nothing
    return text.splitlines()[0].rstrip(".") if text.strip() else type(error).__name__


@contextmanager
def reading(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """What goes wrong while a file is read (an OSError, or one of ``errors``) becomes a sentence that names it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or not isinstance(error, (OSError, *errors)):
            raise
        raise InputError(f"{path} cannot be read: {reason(error)}") from None


def shown(text: str, most: int = 200) -> str:
    """Text for a message: without line breaks, cut where it is endless."""
    plain = text.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n").replace("\0", "\\0")
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def text(value: object) -> str:
    """Anything as a string; bytes are read as UTF-8, and what is none stays visible."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
