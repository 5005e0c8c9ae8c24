"""Reading runs: what is no run, damaged, not finished or too new is named with a reason, the rest is validated once.

A report needs five small files of a run: ``config.json``, ``split.json``, ``summary.json`` (without these it is not a
finished run), ``environment.json`` and ``metrics.jsonl`` (without these it is read, and the lack is said). Many small
runs may lie in one file, a *bundle*: a line of JSON a run, with the five files under their names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from ..counts import ClassCounts
from ..errors import InputError
from .files import mapping_or_none, parse_mapping, read_text, write_bytes
from .schema import Config, Diagnostics, Environment, Epoch, GroupAccuracy, Split, Summary, parse

FORMAT = 1
BUNDLE = ".jsonl"
_SIGNS = ("config.json", "summary.json", "metrics.jsonl")
_AGAIN = "restore the file, or run it again with --force"


class UnreadableError(InputError):
    """Why a run cannot be used: a sentence of its own, and ``reason`` as the end of “… was skipped: ”."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True)
class Skipped:
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} was skipped: {self.reason}"


@dataclass(frozen=True)
class Run:
    """One finished run, as its files say; ``missing`` is what could not be read of it."""

    path: Path
    config: Config
    split: Split
    summary: Summary
    environment: Environment
    metrics: list[Epoch]
    missing: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def knobs(self) -> dict[str, Any]:
        """The method's knobs, as it was run."""
        return self.config.knobs

    @property
    def data(self) -> str:
        return self.config.data.name

    @property
    def options(self) -> dict[str, Any]:
        return self.config.data.options

    @property
    def recipe(self) -> dict[str, Any]:
        return self.config.recipe

    @property
    def model(self) -> str:
        return self.config.model or ""

    @property
    def network(self) -> str:
        """The model, and the backbone that it is trained on or with."""
        backbone = self.config.backbone
        return self.model if backbone is None else f"{self.model} on {backbone.name} (train {backbone.train})"

    @property
    def seed(self) -> int | None:
        return self.config.seed

    @property
    def epochs(self) -> int | None:
        return self.config.epochs

    @property
    def precision(self) -> str:
        return self.config.precision or ""

    @property
    def fingerprint(self) -> str:
        return self.split.fingerprint or ""

    @cached_property
    def counts(self) -> ClassCounts:
        return ClassCounts(self.split.counts)

    @cached_property
    def class_names(self) -> list[str]:
        return self.split.class_names or list(map(str, range(self.counts.num_classes)))

    @property
    def balanced(self) -> float:
        """Balanced test accuracy."""
        return self.summary.test.balanced

    @property
    def diagnostics(self) -> Diagnostics:
        return self.summary.diagnostics

    def group_accuracy(self, group: str) -> float | None:
        return self.summary.test.groups.get(group, GroupAccuracy()).accuracy


@dataclass(frozen=True)
class Found:
    """What a search found: the runs that can be used, and what was left out with the reason."""

    runs: list[Run]
    skipped: list[Skipped]


def find(paths: Iterable[str | os.PathLike[str]]) -> Found:
    """Read every run under these paths; a path is a run, a bundle, or a folder of them at any depth.

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
        places = _places(top)
        if not places:
            skipped.append(Skipped(top, "it is not a run, nor a folder with one (no config.json in it)"))
        for place in places:
            if (real := place.resolve()) in seen:
                continue
            seen.add(real)
            for path, raw in _raw_runs(place):
                try:
                    runs.append(from_data(path, raw))
                except UnreadableError as error:
                    skipped.append(Skipped(error.path, error.reason))
    if not runs:
        reasons = "; ".join(map(str, skipped))
        raise InputError(f"no readable run in {', '.join(map(str, asked))}: {reasons}")
    kept, twice = _without_repeats(runs)
    return Found(kept, skipped + twice)


def read(folder: Path) -> Run:
    """Read one run.

    Raises:
        UnreadableError: an ``InputError`` of one sentence, with the file's name and what to do.
    """
    return from_data(folder, _files_of(folder))


def write_bundle(paths: Iterable[str | os.PathLike[str]], bundle: Path) -> int:
    """Put the small files of every readable run under these paths into one file; returns how many runs it holds."""
    kept = {run.path for run in find(paths).runs}
    lines = []
    for path, raw in (found for top in paths for place in _places(Path(top)) for found in _raw_runs(place)):
        if path in kept and not isinstance(raw, UnreadableError):
            row = {"format": FORMAT, "run": path.name, **raw}
            lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    write_bytes(bundle, "".join(f"{line}\n" for line in sorted(set(lines))).encode())
    return len(lines)


def read_json(path: Path, absent: str = "there is no such file") -> dict[str, Any]:
    """A JSON file that holds a mapping.

    Raises:
        UnreadableError: with the file's name, or ``absent`` where there is none.
    """
    if not path.is_file():
        raise UnreadableError(path.parent, absent)
    try:
        return parse_mapping(read_text(path))
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise UnreadableError(path.parent, f"{path.name} cannot be read ({said}): {_AGAIN}") from None


def _places(top: Path) -> list[Path]:
    """Folders that look like runs and bundles, sorted, none inside a run."""
    if top.is_file():
        return [top] if top.suffix == BUNDLE else []
    found = []
    for folder, inner, files in os.walk(top):
        if any(sign in files for sign in _SIGNS):
            found.append(Path(folder))
            inner.clear()
        else:
            found += [Path(folder) / name for name in sorted(files) if name.endswith(BUNDLE)]
        inner.sort()
    return found


def _raw_runs(place: Path) -> Iterator[tuple[Path, dict[str, Any] | UnreadableError]]:
    """The path of a run folder, or of each run of a bundle, with the plain data of its files or why there is none."""
    try:
        if place.is_dir():
            yield place, _files_of(place)
            return
        text = read_text(place)
    except UnreadableError as error:
        yield place, error
        return
    except (OSError, ValueError) as error:
        yield place, UnreadableError(place, f"it cannot be read ({str(error).splitlines()[0]})")
        return
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):  # a name may hold what else splits lines
        row = mapping_or_none(line) or {}
        if isinstance(name := row.get("run"), str):
            yield place / name, {k: v for k, v in row.items() if k not in ("format", "run")}
        else:
            at = place / f"line {number}"
            yield at, UnreadableError(at, "it is not a run of a bundle: write the bundle again")


def _files_of(folder: Path) -> dict[str, Any]:
    """The five files of a run as plain data; what may be missing is absent, with the reason under ``missing``."""
    raw: dict[str, Any] = {
        "config": read_json(folder / "config.json", "it is not a run (no config.json)"),
        "summary": read_json(
            folder / "summary.json", "it is not finished (no summary.json): --resume on its command goes on with it"
        ),
        "split": read_json(folder / "split.json", f"it is incomplete (no split.json): {_AGAIN}"),
    }
    missing = []
    try:
        raw["environment"] = read_json(folder / "environment.json", "no environment.json")
    except UnreadableError as error:
        missing.append(error.reason)
    path = folder / "metrics.jsonl"
    try:
        lines = read_text(path, "replace").splitlines()
        raw["metrics"] = [mapping_or_none(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        missing.append(f"metrics.jsonl cannot be read ({said})" if path.exists() else "no metrics.jsonl")
    return {**raw, **({"missing": missing} if missing else {})}


def from_data(path: Path, raw: Mapping[str, Any] | UnreadableError) -> Run:
    """A run from the plain data of its files, validated.

    Raises:
        UnreadableError: with the file's name and the value that is wrong, or as given.
    """
    if isinstance(raw, UnreadableError):
        raise raw
    config = raw.get("config")
    if not isinstance(config, dict) or "format" not in config or "method" not in config or "data" not in config:
        raise UnreadableError(path, "it is not a run of longtail (config.json names no format, method and data set)")
    for name in ("config", "summary"):
        _check_format(path, f"{name}.json", raw.get(name))
    checked = {
        name: _parsed(path, f"{name}.json", kind, raw.get(name))
        for name, kind in (("config", Config), ("split", Split), ("summary", Summary))
    }
    missing = [str(lack) for lack in raw.get("missing") or ()]
    try:
        environment = parse(Environment, raw.get("environment") or {}, "")
    except InputError as error:
        environment = Environment()
        missing.append(f"environment.json is damaged ({error})")
    metrics, bad = [], 0
    for row in raw.get("metrics") or ():
        try:
            metrics.append(parse(Epoch, row, ""))
        except InputError:
            bad += 1
    missing += [f"{bad} unreadable line{'s' if bad > 1 else ''} in metrics.jsonl"] if bad else []
    run = Run(path, **checked, environment=environment, metrics=metrics, missing=tuple(missing))
    _check(run)
    return run


def _parsed(path: Path, name: str, kind: type, data: Any) -> Any:
    try:
        return parse(kind, data, "")
    except InputError as error:
        raise UnreadableError(path, f"{name} is damaged ({error}): {_AGAIN}") from None


def _check_format(path: Path, name: str, data: Any) -> None:
    version = data.get("format") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UnreadableError(path, f"{name} has no readable format number (got {version!r}): {_AGAIN}")
    if version > FORMAT:
        raise UnreadableError(
            path,
            f"it was made by a newer longtail ({name} has format {version}, this version reads {FORMAT}): update it",
        )


def _check(run: Run) -> None:
    """What types cannot say: that the files are about the same classes."""

    def need(holds: bool, said: str) -> None:
        if not holds:
            raise UnreadableError(run.path, f"{said}: {_AGAIN}")

    try:
        classes = run.counts.num_classes
    except InputError as error:
        raise UnreadableError(run.path, f"split.json has no readable training counts ({error}): {_AGAIN}") from None
    names, test, found = run.split.class_names, run.summary.test, run.summary.diagnostics
    need(names is None or len(names) == classes, f"split.json does not name each of the {classes} classes")
    sizes = test.per_class_n
    need(
        len(test.per_class) == classes and (sizes is None or len(sizes) == classes),
        f"summary.json does not have one test accuracy for each of the {classes} classes",
    )
    shares = [test.balanced, *test.per_class, *(group.accuracy for group in test.groups.values())]
    need(all(v is None or 0 <= v < 1 + 1e-9 for v in shares), "summary.json has a test accuracy beyond 0 and 1")
    labels = [y for label, predicted, _ in test.confusion.top for y in (label, predicted)] + found.labels
    for points in (found.tsne, *found.embeddings2d.values()):
        if points is not None:
            need(len(points.x) == len(points.y) == len(points.labels), "summary.json holds a map of unequal columns")
            labels += points.labels
    need(all(0 <= y < classes for y in labels), f"summary.json speaks of labels beyond the {classes} classes")
    by_class = [*found.margin_variance.values(), found.dmax.by_class]
    need(all(v is None or len(v) == classes for v in by_class), "summary.json has a list by class of another length")
    columns = [c for c in run.summary.tradeoff.values() if c is not None]
    need(len({len(c) for c in columns}) < 2, "summary.json has a trade-off of unequal columns")


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
    return run.environment.finished or ""


def condition(run: Run, without: Collection[str] = ()) -> list[Any]:
    """What must be equal for two runs to be seeds of one another; knobs of the names ``without`` are left out."""
    knobs = {name: value for name, value in run.knobs.items() if name not in without}
    return [*data_identity(run), run.method, knobs, *circumstances(run).values()]


def data_identity(run: Run) -> list[Any]:
    """What must be equal for two runs to be on the same data.

    A path may be written in many ways (photos, photos/, /home/me/photos), so its last part and the fingerprint count.
    """
    from ..data import names

    known = run.data in names() or not run.fingerprint
    which = [run.data] if known else [PurePath(run.data).name, run.fingerprint]
    return [which, run.options, run.split.counts]


def circumstances(run: Run) -> dict[str, Any]:
    """Everything but data, method and seed. A recipe's name is no part of it: its fields say all."""
    given = {"model": run.model, "epochs": run.epochs, "precision": run.precision}  # as run, whatever the recipe says
    if (backbone := run.config.backbone) is not None:
        how = f"{backbone.preprocessing.get('size')} pixels, weights {backbone.digest[:6]}"
        given["backbone"] = f"{backbone.name} (train {backbone.train}, {how})"
    return {**given, **{f"recipe {k}": v for k, v in sorted(run.recipe.items()) if k != "name" and k not in given}}
