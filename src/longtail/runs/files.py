"""Files that are written as a whole or not at all, whenever the process dies; text and JSON read with its mistakes."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

# How Python holds a byte of a file's name that is no UTF-8; JSON has it as an escape
_BYTE = re.compile("[\ud800-\udfff]")
MOST_BYTES = 1 << 30


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file beside ``path``, flush it to the disk, and rename it into place."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write plain data as JSON; a NaN is refused, since it is not JSON."""
    text = _BYTE.sub(
        lambda c: f"\\u{ord(c[0]):04x}", json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    )
    write_bytes(path, (text + "\n").encode())


def read_text(path: Path, errors: str = "strict") -> str:
    """A file of text as UTF-8.

    Raises:
        OSError: it cannot be read; a device or a pipe, which would be read for ever, is not opened at all.
        ValueError: it is no UTF-8, or larger than such a file can be.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MB")
    return path.read_text(encoding="utf-8", errors=errors)


def parse_mapping(text: str) -> dict[str, Any]:
    """A mapping from JSON; a ValueError says what else it is."""

    def refuse(name: str) -> None:
        raise ValueError(f"it holds {name}, which is not JSON")

    try:
        data = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it holds no mapping")
    return data


def mapping_or_none(text: str) -> dict[str, Any] | None:
    """A mapping from JSON, None where it is damaged."""
    try:
        return parse_mapping(text)
    except ValueError:
        return None


def read_mapping(path: Path) -> dict[str, Any]:
    """What a file holds as a JSON mapping; an empty one where there is none, however it is damaged."""
    try:
        return parse_mapping(read_text(path))
    except (OSError, ValueError):
        return {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON mappings; without it none, and a damaged line is left out."""
    text = read_text(path, "replace") if path.is_file() else ""
    return [row for line in text.splitlines() if (row := mapping_or_none(line)) is not None]


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as the bytes of one safetensors file."""
    from safetensors.torch import save

    return bytes(save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, metadata))


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder outlive a power cut; file systems that cannot are left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> RunError:
    """One sentence for a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"the disk of {path.parent} is full: {path.name} was not written; free some space, then --resume"
        )
    return RunError(f"cannot write {path}: {error.strerror or error}")
