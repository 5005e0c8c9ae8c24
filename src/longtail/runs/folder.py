"""The run folder: who may write it, what is in it, and when it counts as finished.

``config.json``, ``environment.json``, ``split.json``, ``metrics.jsonl``, ``model.safetensors``,
``predictions.safetensors``, ``checkpoints/``, ``lock``; a run is finished if and only if ``summary.json`` exists, which
is written last. The lock is the operating system's (``flock``): it is gone with the process that held it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from ..errors import InputError
from . import checkpoint
from .checkpoint import Checkpoint
from .files import (
    cannot_write,
    mapping_or_none,
    read_mapping,
    read_rows,
    read_text,
    tensor_bytes,
    write_bytes,
    write_json,
)

if TYPE_CHECKING:
    from torch import Tensor

Found = Literal["fresh", "resume", "finished"]

MODEL, PREDICTIONS = "model.safetensors", "predictions.safetensors"
FILES = ("summary.json", "config.json", "environment.json", "split.json", "metrics.jsonl", MODEL, PREDICTIONS)
# Part of the config, but not of what a run is: other values give the same run up to rounding, or are words
_CIRCUMSTANCES = ("longtail", "threads", "decisions", "changed")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that makes two runs the same run; where the data lies is no part of it."""
    same = {k: v for k, v in config.items() if k not in _CIRCUMSTANCES}
    same["data"] = {k: v for k, v in config["data"].items() if k != "root"}
    plain: dict[str, Any] = json.loads(json.dumps(same, sort_keys=True))
    return plain


def default_folder(config: Mapping[str, Any], under: Path = Path("runs")) -> Path:
    """``runs/DATA-METHOD-sSEED-HASH``: other settings give another hash."""
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:8]
    data = Path(str(config["data"]["name"])).name.replace(".", "-") or "data"
    return under / f"{data}-{config['method']}-s{config['seed']}-{digest}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two configs differ, dotted, with both values.

    >>> differences({"seed": 0, "recipe": {"lr": 0.1}}, {"seed": 0, "recipe": {"lr": 0.4}})
    ['recipe.lr (0.1, now 0.4)']
    """
    found: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key} ({json.dumps(a)}, now {json.dumps(b)})")
    return found


def has_checkpoint(path: Path) -> bool:
    """Whether a run folder still holds a state to go on from."""
    return any((path / "checkpoints").glob("*.safetensors"))


def last_checkpoint(
    path: Path,
    warn: Callable[[str], None] = lambda text: None,
    problem: Callable[[Checkpoint], str | None] = lambda state: None,
) -> tuple[bytes, Checkpoint] | None:
    """The newest usable checkpoint of a run folder, as ``checkpoint.latest``."""
    return checkpoint.latest(path / "checkpoints", warn, problem)


def config_and_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's config and the rows of its epochs as they were written."""
    return read_mapping(path / "config.json"), read_rows(path / "metrics.jsonl")


class RunFolder:
    """A folder that this process alone may write.

    ``with RunFolder(path, config) as run: found = run.open(resume=…)``; with ``force`` whatever it holds is replaced.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, force: bool = False) -> None:
        self.path, self.config, self.force = path, dict(config), force
        self.checkpoints = path / "checkpoints"
        self._replaced = path / ".replaced"
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        self._refuse_foreign_files()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / "lock", "a+", encoding="utf-8", errors="replace")
        except OSError as error:
            what = "it is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
            raise InputError(f"cannot write the run folder {self.path}: {what}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            who = self._lock.read().strip()
            self._lock.close()
            self._lock = None
            raise InputError(
                f"{self.path} is being written by another process{f' ({who})' if who else ''}: wait for it, or use "
                "another --out"
            ) from error
        except OSError as error:
            raise InputError(f"cannot lock {self.path}: {error.strerror}; use another --out") from error
        _held.add(self._lock)
        try:
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()} on {platform.node()}")
            self._lock.flush()
        except OSError as error:
            raise cannot_write(self.path / "lock", error) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            _held.discard(self._lock)
            self._lock.close()
            self._lock = None

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def open(self, *, resume: bool, need: int) -> Found:
        """Decide what is to be done here, or refuse in one sentence; ``need`` is the space the run will take."""
        config = None if self.force else self._config_found()
        if config is not None:
            changed = differences(identity(config), identity(self.config))
            if changed:
                kind = "finished run" if self.finished else "run"
                raise InputError(
                    f"{self.path} holds a {kind} with another config: {'; '.join(changed)}; "
                    "use another --out, or --force to replace it"
                )
            if self.finished:
                return "finished"
            if not resume:
                raise InputError(
                    f"{self.path} holds an unfinished run: add --resume to go on, or --force to start it afresh"
                )
        free = shutil.disk_usage(self.path).free
        if free < need:
            raise InputError(
                f"the run needs about {need / 1e6:.0f} MB, but the disk of {self.path} has {free / 1e6:.0f} MB left"
            )
        if self.force:
            self._set_aside()
        return "fresh" if config is None else "resume"

    def start(self, split: Mapping[str, Any], environment: Mapping[str, Any], keep: bool) -> None:
        """Write what a run says of itself; ``keep`` is whether one goes on that said so before."""
        now: dict[str, Any] = {**environment, "started": _now(), "finished": None, "resumed": 0}
        if keep:
            before, known = (read_mapping(self.path / name) for name in ("environment.json", "split.json"))
            if known.get("fingerprint", split["fingerprint"]) != split["fingerprint"]:
                raise InputError(
                    f"the data has changed since {self.path} was started (fingerprint {known['fingerprint']}, now "
                    f"{split['fingerprint']}): --force starts it afresh"
                )
            said = {name: value for name, value in before.items() if isinstance(value, str)}
            now["started"] = said.get("started")
            now["resumed"] = 1 + (before["resumed"] if type(before.get("resumed")) is int else 0)
            if "begun_with" in said:
                now.setdefault("begun_with", said["begun_with"])
        else:
            write_json(self.path / "config.json", self.config)
        self._environment = now
        write_json(self.path / "split.json", split)
        write_json(self.path / "environment.json", self._environment)

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one epoch to metrics.jsonl and flush it to the disk."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error

    def forget_after(self, epoch: int) -> None:
        """Keep the metrics of the first ``epoch`` epochs only: what a resumed run has not redone yet."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        if not path.is_file():
            raise InputError(f"{path} is not a regular file: remove it, or use --force to start the run afresh")
        kept = []
        for line in read_text(path, "replace").splitlines():
            number = (mapping_or_none(line) or {}).get("epoch")
            if type(number) is not int or number > epoch:  # the line that was being written, no line of ours, or later
                break
            kept.append(line)
        write_bytes(path, "".join(f"{line}\n" for line in kept).encode())

    def metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "metrics.jsonl")

    def add_to_last_row(self, **values: Any) -> None:
        """Put results of the final evaluation on the last epoch's line; called again, it replaces them."""
        rows = self.metrics()
        if rows:
            rows[-1].update(values)
            write_bytes(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in rows).encode())

    def save(self, step: int, data: bytes) -> None:
        """Write a checkpoint; from the first on, a run that this one replaces is gone."""
        checkpoint.save(self.checkpoints, step, data)
        if self.replaces:
            shutil.rmtree(self._replaced, ignore_errors=True)

    @property
    def replaces(self) -> bool:
        """Whether a finished run is still there that this one is to replace."""
        return self._replaced.is_dir()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, after which the run is finished."""
        self._environment["finished"] = _now()
        write_json(self.path / "environment.json", self._environment)
        write_json(self.path / "summary.json", summary, indent=None)

    def write_model(self, weights: Mapping[str, Tensor], predictions: Mapping[str, Tensor]) -> None:
        """Write the trained weights, and what they say of the data."""
        for name, tensors in ((PREDICTIONS, predictions), (MODEL, weights)):
            write_bytes(self.path / name, tensor_bytes(tensors))

    def withdraw(self) -> None:
        """Take back a run that never began and put back the one it was to replace; what has a checkpoint stays."""
        if has_checkpoint(self.path):
            return
        self._clear()
        if self.replaces:
            _move(self._replaced, self.path, ("checkpoints", *reversed(FILES)))  # the summary last, as ever
            self._replaced.rmdir()

    def _config_found(self) -> dict[str, Any] | None:
        path = self.path / "config.json"
        if not path.exists():
            return None
        config = read_mapping(path)
        if "method" not in config or not isinstance(config.get("data"), dict):
            raise InputError(f"{path} is not a run's config: use another --out, or --force to replace it")
        if type(config.get("format")) is int and config["format"] > self.config["format"]:
            raise InputError(
                f"{path} has format {config['format']} and was written by a newer longtail, this version writes "
                f"{self.config['format']}: use another --out, or --force to replace it"
            )
        return config

    def _refuse_foreign_files(self) -> None:
        """Nothing of a run is written, not even its lock, into a folder of something else."""
        if self.force or not self.path.is_dir() or (self.path / "config.json").exists():
            return
        foreign = [p.name for p in self.path.iterdir() if p.name not in ("lock", "checkpoints") and p.name[0] != "."]
        if foreign:
            raise InputError(f"{self.path} is not empty and no run folder (it holds {foreign[0]}): use another --out")

    def _clear(self) -> None:
        """Remove the files of a run and nothing else, the summary first: a half-removed run is an unfinished one."""
        try:
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
            if self.checkpoints.is_dir():
                shutil.rmtree(self.checkpoints)
            else:
                self.checkpoints.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _set_aside(self) -> None:
        """Make room for a new run; a finished one is kept until the new one has a checkpoint."""
        if self.finished:
            try:
                shutil.rmtree(self._replaced, ignore_errors=True)
                self._replaced.mkdir()
                _move(self.path, self._replaced, (*FILES, "checkpoints"))
            except OSError as error:
                raise cannot_write(self.path, error) from error
        self._clear()


# Locks of this process. A forked child (a worker that reads images) shares them: it would hold them after our death
_held: set[IO[str]] = set()


def _let_go() -> None:
    for lock in _held:
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _move(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).exists():
            os.replace(source / name, target / name)


def environment(device: str, command: list[str]) -> dict[str, Any]:
    """Versions, machine and revision: what else may explain a difference between two runs."""
    import torch

    from .. import __version__

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "longtail": __version__,
        "device": device,
        "machine": {"cpu": _cpu(), "cores": os.cpu_count()},
        "git": _git_revision(),
        "command": command,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git_revision() -> str | None:
    """The revision of the working directory, with +dirty where files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        revision = git("rev-parse", "HEAD")
        return revision + ("+dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command_line() -> list[str]:
    """The command as the user gave it, for the record and for the sentence that says how to resume."""
    name = Path(sys.argv[0]).name
    return ["longtail" if name in ("longtail", "__main__.py") else name, *sys.argv[1:]]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
