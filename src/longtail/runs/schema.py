"""What the JSON files of a run hold, as types; ``parse`` turns plain data into them, or says which value is wrong.

Keys that are not named here are left alone: a run may say more than today's tables need. A field with a default may be
absent, one that may be None may be null.

>>> parse(Points, {"x": [0, 1.5], "y": [2, 3], "labels": [0, "a"]}, "tsne")
Traceback (most recent call last):
longtail.errors.InputError: tsne.labels[1] must be a whole number, got 'a'
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import InputError

Numbers = list[float | None]
ByGroup = dict[str, float | None]


@dataclass(frozen=True)
class DataName:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    root: str | None = None


@dataclass(frozen=True)
class Backbone:
    """A pretrained network that a run began with; ``train`` says what of it was trained besides the head."""

    name: str
    digest: str
    train: str
    preprocessing: dict[str, Any]


@dataclass(frozen=True)
class Config:
    """``config.json``; ``changed`` are the knobs that were not the method's defaults when it ran."""

    format: int
    method: str
    data: DataName
    knobs: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] | None = None
    model: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    epochs: int | None = None
    precision: str | None = None
    backbone: Backbone | None = None


@dataclass(frozen=True)
class Input:
    """What an input of the network is: ``"features"`` (K,), ``"images"`` or ``"files"`` (channels, H, W)."""

    kind: str
    shape: list[int]
    mean: list[float] | None = None
    std: list[float] | None = None
    columns: list[str] | None = None


@dataclass(frozen=True)
class Split:
    """``split.json``."""

    counts: list[int]
    fingerprint: str | None = None
    class_names: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    input: Input | None = None


@dataclass(frozen=True)
class Environment:
    """``environment.json``."""

    device: str | None = None
    git: str | None = None
    command: list[str] = field(default_factory=list)
    finished: str | None = None
    resumed: int = 0
    longtail: str | None = None
    torch: str | None = None
    python: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupTraining:
    """Cross-entropy and accuracy of an epoch's own training batches, without margins, over ``n`` samples."""

    loss: float | None = None
    accuracy: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Look:
    """Accuracy on validation data by group of classes."""

    groups: ByGroup = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """One line of ``metrics.jsonl``; ``alive`` is the share of anchors that had a positive, by group of classes."""

    epoch: int | None = None
    loss: float | None = None
    parts: dict[str, float | None] = field(default_factory=dict)
    alive: ByGroup = field(default_factory=dict)
    groups: dict[str, GroupTraining | None] = field(default_factory=dict)
    val: Look | None = None


@dataclass(frozen=True)
class GroupAccuracy:
    accuracy: float | None = None
    classes: int | None = None


@dataclass(frozen=True)
class WorstClass:
    label: int | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Confusion:
    """(label, predicted, samples) of the commonest mistakes."""

    top: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Accuracy:
    """``test`` of ``summary.json``; ``correct`` and ``labels`` are packed, a test sample each."""

    balanced: float
    per_class: Numbers = field(default_factory=list)
    per_class_n: list[int] | None = None
    n: int | None = None
    balanced_ci: tuple[float, float] | None = None
    accuracy: float | None = None
    groups: dict[str, GroupAccuracy] = field(default_factory=dict)
    worst_class: WorstClass = field(default_factory=WorstClass)
    geometric_mean: float | None = None
    harmonic_mean: float | None = None
    ece: float | None = None
    correct: str | None = None
    labels: str | None = None
    confusion: Confusion = field(default_factory=Confusion)


@dataclass(frozen=True)
class Adjusted:
    """Test accuracy of logits less τ·log π, with the τ that is best on validation data."""

    tau: float | None = None
    balanced: float | None = None
    groups: dict[str, GroupAccuracy] = field(default_factory=dict)


@dataclass(frozen=True)
class Distribution:
    """Quantiles at 0, 1, … 100 %, and a histogram's counts, whose sum is the number of samples."""

    quantiles: list[float]
    counts: list[int] | None = None


@dataclass(frozen=True)
class Distances:
    """Largest distance of a training sample to one of its own class, over the largest norm."""

    train: dict[str, Distribution] = field(default_factory=dict)
    by_class: Numbers | None = None
    mean: float | None = None
    mean_by_group: ByGroup = field(default_factory=dict)


@dataclass(frozen=True)
class ClassVariance:
    by_group: dict[str, ByGroup] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    balanced: float | None = None


@dataclass(frozen=True)
class Points:
    x: list[float]
    y: list[float]
    labels: list[int]


@dataclass(frozen=True)
class Diagnostics:
    labels: list[int] = field(default_factory=list)
    margins: dict[str, dict[str, Distribution] | None] = field(default_factory=dict)
    margin_variance: dict[str, Numbers | None] = field(default_factory=dict)
    dmax: Distances = field(default_factory=Distances)
    class_variance: ClassVariance = field(default_factory=ClassVariance)
    intra_inter: ByGroup = field(default_factory=dict)
    neural_collapse: dict[str, float | None] = field(default_factory=dict)
    knn: Score = field(default_factory=Score)
    ncm: Score = field(default_factory=Score)
    tsne: Points | None = None
    embeddings2d: dict[str, Points | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposition1:
    """Both sides by class, and in how many classes it held."""

    lower: Numbers = field(default_factory=list)
    pull: Numbers = field(default_factory=list)
    holds: int | None = None
    of: int | None = None
    alpha: str | None = None


@dataclass(frozen=True)
class Theory:
    proposition1: Proposition1 = field(default_factory=Proposition1)


@dataclass(frozen=True)
class Step:
    """A post-hoc step, and the value of its knob."""

    kind: str
    value: float | None = None


@dataclass(frozen=True)
class Summary:
    """``summary.json``."""

    format: int
    test: Accuracy
    posthoc: list[Step] = field(default_factory=list)
    train: Score = field(default_factory=Score)
    val: Score = field(default_factory=Score)
    adjusted: Adjusted = field(default_factory=Adjusted)
    tradeoff: dict[str, Numbers | None] = field(default_factory=dict)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    theory: Theory = field(default_factory=Theory)
    concerns: list[str] = field(default_factory=list)


T = TypeVar("T")


def parse(kind: type[T], data: Any, where: str) -> T:
    """Plain data as ``kind``; ``where`` begins the name of a value that is wrong."""
    result: T = _parser(kind)(data, where)  # type: ignore[arg-type]
    return result


@functools.cache
def _parser(kind: Any) -> Callable[[Any, str], Any]:
    """The function that checks and converts values of one type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if origin is types.UnionType:  # X | None
        inner = _parser(args[0])
        return lambda value, where: None if value is None else inner(value, where)
    if origin is list:
        inner, exact = _parser(args[0]), args[0] is float

        def of_list(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise _wrong(where, "a list", value)
            if exact and all(type(v) is float and abs(v) < 1e300 for v in value):  # the usual case, ten times as fast
                return value
            return [inner(v, f"{where}[{i}]") for i, v in enumerate(value)]

        return of_list
    if origin is tuple:
        parsers = [_parser(arg) for arg in args]

        def of_tuple(value: Any, where: str) -> Any:
            if not isinstance(value, list) or len(value) != len(parsers):
                raise _wrong(where, f"a list of {len(parsers)}", value)
            return tuple(p(v, f"{where}[{i}]") for i, (p, v) in enumerate(zip(parsers, value)))

        return of_tuple
    if origin is dict:
        inner = _parser(args[1])

        def of_mapping(value: Any, where: str) -> Any:
            _need_mapping(value, where)
            return {name: inner(v, f"{where}.{name}") for name, v in value.items()}

        return of_mapping
    return _dataclass_parser(kind) if is_dataclass(kind) else functools.partial(_scalar, kind)


def _dataclass_parser(kind: Any) -> Callable[[Any, str], Any]:
    hints = get_type_hints(kind)
    known = [(f.name, _parser(hints[f.name])) for f in fields(kind)]
    optional = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}

    def of_fields(value: Any, where: str) -> Any:
        _need_mapping(value, where)
        given = {}
        for name, parser in known:
            at = f"{where}.{name}" if where else name
            # null stands for "none of it" wherever a default says what that is
            if value.get(name) is None and name in optional:
                continue
            if name not in value:
                raise InputError(f"{at} is missing")
            given[name] = parser(value[name], at)
        return kind(**given)

    return of_fields


# What is accepted as a number or a text, and how a message calls it
_SCALARS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    float: ("a finite number", lambda value: isinstance(value, (int, float)) and abs(value) <= 1e300),
    int: ("a whole number", lambda value: isinstance(value, int) and abs(value) < 2**53),
    str: ("a text", lambda value: isinstance(value, str)),
}


def _scalar(kind: type, value: Any, where: str) -> Any:
    wanted, accepted = _SCALARS[kind]
    if isinstance(value, bool) or not accepted(value):
        raise _wrong(where, wanted, value)
    return kind(value)


def _need_mapping(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where or "it", "a mapping", value)


def _wrong(where: str, wanted: str, value: Any) -> InputError:
    shown = repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    return InputError(f"{where} must be {wanted}, got {shown if len(shown) < 40 else shown[:37] + '…'}")
