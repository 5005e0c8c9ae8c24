"""Reading run folders, robustly: what is no run, not finished or too new is named and left out, the rest is kept.

A report needs five small files of a run: ``config.json``, ``split.json``, ``summary.json`` (without these it is not a
finished run), ``environment.json`` and ``metrics.jsonl`` (without these it is read, and the lack is said).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from ..counts import ClassCounts
from ..errors import InputError

FORMAT = 1
_SIGNS = ("config.json", "summary.json", "metrics.jsonl")


class UnreadableError(Exception):
    """Why a folder cannot be used, as the end of the sentence “… was skipped: ”."""


@dataclass(frozen=True)
class Skipped:
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} was skipped: {self.reason}"


@dataclass(frozen=True)
class Run:
    """One finished run, as its files say. The properties are what every table needs of it."""

    path: Path
    config: dict[str, Any]
    split: dict[str, Any]
    summary: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    missing: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def given_knobs(self) -> dict[str, Any]:
        """The knobs as the run's config has them: all that the method had when it was run."""
        knobs = self.config.get("knobs")
        return dict(knobs) if isinstance(knobs, dict) else {}

    @cached_property
    def defaults(self) -> dict[str, Any] | None:
        """The method's knobs at this data set's defaults; None for a method that this version does not know."""
        from .. import methods

        try:
            return dict(methods.build(self.method, self.counts, data=self.data).knobs)
        except InputError:
            return None

    @property
    def knobs(self) -> dict[str, Any]:
        """All knobs; one that the method did not have yet when it was run has its default, which changes nothing."""
        return {**(self.defaults or {}), **self.given_knobs}

    @property
    def data(self) -> str:
        return str(self.config["data"]["name"])

    @property
    def options(self) -> dict[str, Any]:
        options = self.config["data"].get("options")
        return dict(options) if isinstance(options, dict) else {}

    @property
    def recipe(self) -> dict[str, Any]:
        recipe = self.config.get("recipe")
        return dict(recipe) if isinstance(recipe, dict) else {}

    @property
    def model(self) -> str:
        return str(self.config.get("model") or "")

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def epochs(self) -> int | None:
        epochs = self.config.get("epochs")
        return epochs if isinstance(epochs, int) else None

    @property
    def precision(self) -> str:
        return str(self.config.get("precision") or "")

    @property
    def fingerprint(self) -> str:
        return str(self.split.get("fingerprint") or "")

    @cached_property
    def counts(self) -> ClassCounts:
        return ClassCounts(self.split["counts"])

    @property
    def class_names(self) -> list[str]:
        names = self.split.get("class_names")
        size = self.counts.num_classes
        return (
            [str(n) for n in names] if isinstance(names, list) and len(names) == size else list(map(str, range(size)))
        )

    @property
    def test(self) -> dict[str, Any]:
        test: dict[str, Any] = self.summary["test"]
        return test

    def get(self, *path: str) -> Any:
        """A value inside the summary, or None where any step of the path is absent."""
        return dig(self.summary, *path)

    def number(self, *path: str) -> float | None:
        """The same for a finite number."""
        return as_number(self.get(*path))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the balanced test accuracy, over test samples."""
        ends = self.get("test", "balanced_ci")
        low, high = map(as_number, ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
        return None if low is None or high is None else (low, high)

    def group_accuracy(self, group: str) -> float | None:
        return self.number("test", "groups", group, "accuracy")


def dig(data: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


@dataclass(frozen=True)
class Found:
    """What a search found: the runs that can be used, and what was left out with the reason."""

    runs: list[Run]
    skipped: list[Skipped]


def find(paths: Iterable[str | os.PathLike[str]]) -> Found:
    """Read every run under these paths; a path is a run or a folder of runs at any depth.

    Raises:
        InputError: a path does not exist, or there is no readable run at all.
    """
    runs: list[Run] = []
    skipped: list[Skipped] = []
    seen: set[Path] = set()
    asked = [Path(p) for p in paths]
    if not asked:
        raise InputError("no runs given: name at least one run folder, or a folder of them")
    for top in asked:
        if not top.exists():
            raise InputError(f"{top} does not exist: give a run folder, or a folder of them")
        folders = _folders(top)
        if not folders:
            skipped.append(Skipped(top, "it is not a run, nor a folder with one (no config.json in it)"))
        for folder in folders:
            if (real := folder.resolve()) in seen:
                continue
            seen.add(real)
            try:
                runs.append(read(folder))
            except UnreadableError as error:
                skipped.append(Skipped(folder, str(error)))
    if not runs:
        reasons = "; ".join(map(str, skipped))
        raise InputError(f"no readable run in {', '.join(map(str, asked))}: {reasons}")
    kept, twice = _without_repeats(runs)
    return Found(kept, skipped + twice)


def _folders(top: Path) -> list[Path]:
    """Folders that look like runs, sorted, none inside another."""
    if not top.is_dir():
        return []
    found = []
    for folder, inner, files in os.walk(top):
        if any(sign in files for sign in _SIGNS):
            found.append(Path(folder))
            inner.clear()
        inner.sort()
    return found


def read(folder: Path) -> Run:
    """Read one run.

    Raises:
        UnreadableError: with the reason.
    """
    config = _load(folder / "config.json", "it is not a run (no config.json)")
    if "format" not in config or "method" not in config or not isinstance(dig(config, "data", "name"), str):
        raise UnreadableError("it is not a run of longtail (config.json names no format, method and data set)")
    _check_format("config.json", config)
    summary = _load(folder / "summary.json", "it is not finished (no summary.json)")
    _check_format("summary.json", summary)
    split = _load(folder / "split.json", "it is incomplete (no split.json)")
    missing = []
    try:
        environment = _load(folder / "environment.json", "")
    except UnreadableError as error:
        environment = {}
        missing.append(str(error) or "no environment.json")
    metrics, lack = _metrics(folder / "metrics.jsonl")
    missing += lack
    run = Run(folder, config, split, summary, environment, metrics, tuple(missing))
    _check(run)
    return run


def _load(path: Path, absent: str) -> dict[str, Any]:
    if not path.is_file():
        raise UnreadableError(absent)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{path.name} cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{path.name} holds no mapping")
    return data


def _check_format(name: str, data: dict[str, Any]) -> None:
    version = data.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UnreadableError(f"{name} has no readable format number (got {version!r})")
    if version > FORMAT:
        raise UnreadableError(
            f"it was made by a newer longtail ({name} has format {version}, this version reads {FORMAT})"
        )


def _metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    if not path.is_file():
        return [], ["no metrics.jsonl"]
    lines: list[dict[str, Any]] = []
    bad = 0
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return [], [f"metrics.jsonl cannot be read ({error.strerror})"]
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            data = None
        if isinstance(data, dict):
            lines.append(data)
        elif line.strip():
            bad += 1
    return lines, [f"{bad} unreadable line{'s' if bad > 1 else ''} in metrics.jsonl"] if bad else []


def _check(run: Run) -> None:
    """The fields without which no table can be made."""
    try:
        classes = run.counts.num_classes
    except (InputError, KeyError, TypeError):
        raise UnreadableError("split.json has no readable training counts") from None
    if run.number("test", "balanced") is None:
        raise UnreadableError("summary.json has no balanced test accuracy")
    per_class = run.get("test", "per_class")
    if not isinstance(per_class, list) or len(per_class) != classes:
        raise UnreadableError(f"summary.json does not have one test accuracy for each of the {classes} classes")


def _without_repeats(runs: list[Run]) -> tuple[list[Run], list[Skipped]]:
    """Two runs of one configuration and one seed are not two seeds: the one finished last stays."""
    kept: dict[str, Run] = {}
    skipped = []
    for run in runs:
        key = json.dumps([condition(run), run.seed], sort_keys=True, default=str)
        other = kept.get(key)
        if other is not None and run.seed is not None:
            late, early = (run, other) if _finished(run) > _finished(other) else (other, run)
            skipped.append(Skipped(early.path, f"it repeats the configuration and seed of {late.path}"))
            kept[key] = late
        else:
            kept[key if other is None else f"{key} {run.path}"] = run
    return list(kept.values()), skipped


def _finished(run: Run) -> str:
    return str(run.environment.get("finished") or "")


def condition(run: Run) -> list[Any]:
    """What must be equal for two runs to be seeds of one another."""
    return [*data_identity(run), run.method, run.knobs, *circumstances(run).values()]


def data_identity(run: Run) -> list[Any]:
    """What must be equal for two runs to be on the same data.

    A path may be written in many ways (photos, photos/, /home/me/photos), so its last part and the fingerprint count.
    """
    from ..data import names

    known = run.data in names() or not run.fingerprint
    which = [run.data] if known else [PurePath(run.data).name, run.fingerprint]
    return [which, run.options, run.counts.n.tolist()]


def circumstances(run: Run) -> dict[str, Any]:
    """Everything but data, method and seed. A recipe's name is no part of it: its fields say all."""
    given = {"model": run.model, "epochs": run.epochs, "precision": run.precision}  # as run, whatever the recipe says
    return {**given, **{f"recipe {k}": v for k, v in sorted(run.recipe.items()) if k != "name" and k not in given}}
