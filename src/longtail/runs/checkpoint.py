"""Checkpoints: tensors as safetensors with the rest as JSON in its header, a checksum beside it, no pickle.

``checkpoints/000001200.safetensors`` is the state after 1200 steps and ``000001200.json`` its SHA-256 and size. Both
are written beside their place and renamed, the checksum last, so that a process that dies at any moment leaves the last
good ones as they were. What does not match its checksum is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .files import cannot_write, write_bytes, write_json

KEEP = 2


@dataclass(frozen=True)
class Position:
    """What comes next: step ``step`` of epoch ``epoch`` of stage ``stage``, all from 0; ``done`` steps lie behind."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    done: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, and plain data."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def encode(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """A checkpoint as the bytes of one safetensors file."""
    from safetensors.torch import save

    # One key only: the header's order of several is not fixed
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return bytes(save(plain, {"longtail": json.dumps(meta, sort_keys=True)}))


def decode(data: bytes) -> Checkpoint:
    """The inverse of ``encode``."""
    from safetensors.torch import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return Checkpoint(load(data), json.loads(header["__metadata__"]["longtail"]))


def save(folder: Path, step: int, data: bytes) -> None:
    """Write a checkpoint, then remove all but it and the one before."""
    path = folder / f"{step:09d}.safetensors"
    try:
        _save(path, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def _save(path: Path, data: bytes) -> None:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    digest = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    seal = path.with_suffix(".json")
    # A step saved again (a stage that begins) is unsealed first: never the old checksum beside new bytes
    seal.unlink(missing_ok=True)
    write_bytes(path, data)
    write_json(seal, digest)
    # Also those of later steps, left by a run that went on from before them: they were not usable
    found = _newest_first(folder)
    here = found.index(path)
    for old in found[:here] + found[here + KEEP :]:
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def latest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, bytes] | None:
    """The newest checkpoint whose bytes match their checksum; each that does not is passed over with a warning."""
    for path in _newest_first(folder):
        problem, data = _read(path)
        if data is not None:
            return path, data
        warn(f"checkpoint {path.name} is not usable ({problem}): the one before it is tried")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.safetensors"), reverse=True)


def _read(path: Path) -> tuple[str, bytes | None]:
    try:
        seal = json.loads(path.with_suffix(".json").read_bytes())
        expected, size = str(seal["sha256"]), int(seal["bytes"])
    except FileNotFoundError:
        return "its checksum was not written yet", None
    except (OSError, ValueError, KeyError, TypeError):
        return "its checksum file is damaged", None
    try:
        data = path.read_bytes()
    except OSError as error:
        return str(error.strerror), None
    if len(data) != size:
        return f"{len(data)} bytes instead of {size}", None
    if hashlib.sha256(data).hexdigest() != expected:
        return "its checksum does not match", None
    return "", data
