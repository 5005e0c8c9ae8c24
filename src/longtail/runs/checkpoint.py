"""Checkpoints: tensors as safetensors with the rest as JSON in its header, a checksum beside it, no pickle.

``checkpoints/000001200.safetensors`` is the state after 1200 steps and ``000001200.json`` its SHA-256 and size. Both
are written beside their place and renamed, the checksum last, so that a process that dies at any moment leaves the last
good ones as they were. What does not match its checksum is not read, and what cannot be a state of the run is passed
over for the one before it; a checkpoint of a newer format is refused, since its run went further than it looks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .files import cannot_write, read_mapping, tensor_bytes, write_bytes, write_json

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 2
FORMAT = 1


class DamagedError(Exception):
    """Why a checkpoint cannot be used, as the end of a sentence."""


@dataclass(frozen=True)
class Position:
    """What comes next: step ``step`` of epoch ``epoch`` of stage ``stage``, all from 0; ``done`` steps lie behind."""

    stage: int
    epoch: int
    step: int
    done: int

    def problem(self, lengths: Sequence[tuple[int, int]]) -> str | None:
        """Why no run of these stages, given as epochs and steps an epoch, can be here; None where one can.

        >>> Position(1, 0, 0, 10).problem([(2, 5), (1, 5)]), Position(99, 0, 0, 10).problem([(2, 5), (1, 5)])
        (None, 'it says stage 99 of 2')
        """
        if not 0 <= self.stage <= len(lengths):
            return f"it says stage {self.stage} of {len(lengths)}"
        epochs, steps = (1, 1) if self.stage == len(lengths) else lengths[self.stage]
        for what, value, most in (("epoch", self.epoch, epochs), ("step", self.step, steps)):
            if not 0 <= value < most:
                return f"it says {what} {value} of {most} in stage {self.stage}"
        done = sum(e * s for e, s in lengths[: self.stage]) + self.epoch * steps + self.step
        return None if self.done == done else f"it says {self.done} steps where {done} lie behind"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, and plain data."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def at(self) -> Position:
        """Where the run is; a checkpoint that does not say is damaged."""
        at = self.meta.get("at")
        names = {f.name for f in fields(Position)}
        if not isinstance(at, dict) or set(at) != names or not all(type(v) is int for v in at.values()):
            raise DamagedError("it does not say where the run was")
        return Position(**at)


def encode(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """A checkpoint as the bytes of one safetensors file."""
    # One key only: the header's order of several is not fixed
    return tensor_bytes(tensors, {"longtail": json.dumps(meta, sort_keys=True)})


def decode(data: bytes) -> Checkpoint:
    """The inverse of ``encode``.

    Raises:
        DamagedError: it is no checkpoint.
        InputError: it is one of a newer format.
    """
    from safetensors.torch import load

    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        meta = json.loads(header["__metadata__"]["longtail"])
    except RecursionError:
        raise DamagedError("its header is nested too deeply") from None
    except Exception as error:  # safetensors has an exception of its own
        raise DamagedError(f"it is no checkpoint: {str(error).splitlines()[0]}") from None
    version = meta.get("format", FORMAT) if isinstance(meta, dict) else None
    if type(version) is not int or version < 1:
        raise DamagedError(f"its header has no readable format (got {version!r})")
    if version > FORMAT:
        raise InputError(f"it has format {version} and was written by a newer longtail; this version reads {FORMAT}")
    return Checkpoint(tensors, meta)


def save(folder: Path, step: int, data: bytes) -> None:
    """Write a checkpoint, then remove all but it and the one before."""
    path = folder / f"{step:09d}.safetensors"
    seal = path.with_suffix(".json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A step saved again (a stage that begins) is unsealed first: never the old checksum beside new bytes
        seal.unlink(missing_ok=True)
        write_bytes(path, data)
        write_json(seal, {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})
        # Also those of later steps, left by a run that went on from before them: they were not usable
        found = _newest_first(folder)
        here = found.index(path)
        for old in found[:here] + found[here + KEEP :]:
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def latest(
    folder: Path, warn: Callable[[str], None], problem: Callable[[Checkpoint], str | None] = lambda state: None
) -> tuple[bytes, Checkpoint] | None:
    """The newest checkpoint that can be used, as bytes and decoded; each that cannot, or has a ``problem`` that says
    why it is no state of this run, is passed over with a warning.

    Raises:
        InputError: one is of a newer format.
    """
    for path in _newest_first(folder):
        try:
            data = _read(path)
            state = decode(data)
            reason = problem(state)
            if reason is None:
                return data, state
        except DamagedError as error:
            reason = str(error)
        except InputError as error:
            raise InputError(f"checkpoint {path} cannot be used: {error}; --force starts the run afresh") from None
        warn(f"checkpoint {path.name} is not usable ({reason}): the one before it is tried")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.safetensors"), reverse=True)


def _read(path: Path) -> bytes:
    seal_file = path.with_suffix(".json")
    if not seal_file.exists():
        raise DamagedError("its checksum was not written yet")
    seal = read_mapping(seal_file)
    if not isinstance(seal.get("sha256"), str) or type(seal.get("bytes")) is not int:
        raise DamagedError("its checksum file is damaged")
    if not path.is_file():
        raise DamagedError("it is not a regular file")
    if (size := path.stat().st_size) != seal["bytes"]:
        raise DamagedError(f"{size} bytes instead of {seal['bytes']}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(str(error.strerror)) from None
    if hashlib.sha256(data).hexdigest() != seal["sha256"]:
        raise DamagedError("its checksum does not match")
    return data
