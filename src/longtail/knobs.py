"""Knobs: the parameters of a function as settings that somebody types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from . import margins, plugins
from .errors import InputError, one_of
from .margins import PerClass


class Knob(NamedTuple):
    """One setting: what it is read as, its default, and whether it came ``late``, behind a bare ``*``: then it is only
    listed where it is on."""

    name: str
    kind: Any
    default: Any
    late: bool


def knobs_of(function: Callable[..., Any], what: str) -> list[Knob]:
    """The knobs of a function, which are its parameters but the first; a parameter that is a dataclass is a group of
    them, one a field. ``what`` is how a message names the function."""
    found = []
    for p in _parameters(function, what):
        late = p.kind is p.KEYWORD_ONLY
        if group := _group(p):
            found += [Knob(k, kind, getattr(p.default, k), late) for k, kind in get_type_hints(group).items()]
        else:
            found.append(Knob(p.name, _kind(p), p.default, late))
    return found


def arguments(function: Callable[..., Any], what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all knobs as the function takes them, groups put together."""
    found = {}
    for p in _parameters(function, what):
        group = _group(p)
        found[p.name] = values[p.name] if group is None else group(**{f.name: values[f.name] for f in fields(group)})
    return found


def _parameters(function: Callable[..., Any], what: str) -> list[inspect.Parameter]:
    """The parameters behind the first, annotations evaluated."""
    try:
        _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    except (ValueError, TypeError, NameError) as e:  # compiled, without a parameter, or with unknown annotations
        if isinstance(e, InputError):
            raise
        raise InputError(f"{what} must be a function of the class counts: {plugins.brief(e)}") from e
    for p in parameters:
        if p.default is p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise InputError(f"{what}: its parameter {p.name!r} is a knob, and needs a name and a default")
    return parameters


def _kind(p: inspect.Parameter) -> Any:
    """What a parameter is read as: its annotation, or the type of its default where there is none."""
    if p.annotation is not p.empty:
        return p.annotation
    return PerClass if isinstance(p.default, PerClass) else type(p.default)


def _group(p: inspect.Parameter) -> type | None:
    """A dataclass whose fields are knobs; None for a parameter that is one knob."""
    kind = _kind(p)
    return kind if isinstance(kind, type) and is_dataclass(kind) and not issubclass(kind, PerClass) else None


def read(name: str, value: Any, kind: Any) -> Any:
    """A knob's value from what was given: a value of its kind, plain data, or the text of the command line."""
    if get_origin(kind) is UnionType or get_origin(kind) is Union:  # a number, or one of some words
        words = [word for part in get_args(kind) for word in get_args(part)]
        if value in words:
            return value
        kind = next(part for part in get_args(kind) if get_origin(part) is not Literal)
        try:
            return read(name, value, kind)
        except InputError as e:
            raise InputError(f"{e} (or {' or '.join(map(repr, words))})") from None
    if isinstance(kind, type) and issubclass(kind, PerClass):
        return margins.parse(value)
    if get_origin(kind) is Literal:
        return one_of(name, value, [str(a) for a in get_args(kind)])
    if kind is bool:
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise InputError(f"{name} must be true or false, got {value!r}")
        return text in ("true", "1")
    if kind is str:
        return str(value)
    try:
        number = kind(value) if not isinstance(value, bool) else None
        if number is None or (kind is int and float(value) != number) or not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a {'whole' if kind is int else 'finite'} number, got {value!r}") from None
    return number
