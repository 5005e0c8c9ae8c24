"""The two exceptions of this package, and the checks of single values that every module shares, each with one wording.

>>> whole("epochs", 0, at_least=1)
Traceback (most recent call last):
longtail.errors.InputError: epochs must be a whole number of at least 1, got 0
>>> real("beta", 1.0, at_least=0, below=1)
Traceback (most recent call last):
longtail.errors.InputError: beta must be a number of at least 0 and below 1, got 1.0
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Integral, Real


class InputError(ValueError):
    """What was given is wrong: the message is one sentence with the offending value and what would be right.

    The command prints it without a traceback and exits with code 2.
    """


class RunError(RuntimeError):
    """A run failed through no mistake of the caller's (a non-finite loss, a full disk): exit code 1."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> InputError:
    """An error for a name that is not among the valid ones, with the closest first.

    >>> print(unknown("method", "elmm", ["ce", "elm"]))
    unknown method 'elmm': did you mean 'elm'? Valid: ce, elm
    """
    names = list(valid)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    return InputError(f"unknown {kind} {str(name)!r}:{hint} Valid: {', '.join(names)}")


def one_of(kind: str, name: object, valid: Iterable[str]) -> str:
    """``name`` if it is among the valid ones."""
    names = list(valid)
    if not isinstance(name, str) or name not in names:
        raise unknown(kind, name, names)
    return name


def whole(what: str, value: object, at_least: int | None = None, at_most: int | None = None) -> int:
    """A whole number of any kind (NumPy's too, but no bool) within the bounds, as an int."""
    bounds = {"of at least": at_least, "of at most": at_most}
    if isinstance(value, Integral) and not isinstance(value, bool) and _within(int(value), bounds):
        return int(value)
    raise InputError(f"{what} must be a whole number{_said(bounds)}, got {value!r}")


def real(
    what: str,
    value: object,
    at_least: float | None = None,
    at_most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number of any kind (NumPy's too, but no bool) within the bounds, as a float."""
    bounds = {"of at least": at_least, "above": above, "of at most": at_most, "below": below}
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and _within(number, bounds):
        return number
    said = _said(bounds)
    raise InputError(f"{what} must be a {'number' if said else 'finite number'}{said}, got {value!r}")


def true_or_false(what: str, value: object) -> bool:
    """A bool, and nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise InputError(f"{what} must be True or False, got {value!r}")
    return value


_HOLDS = {"of at least": operator.ge, "above": operator.gt, "of at most": operator.le, "below": operator.lt}


def _within(number: float, bounds: Mapping[str, float | None]) -> bool:
    return all(bound is None or _HOLDS[words](number, bound) for words, bound in bounds.items())


def _said(bounds: Mapping[str, float | None]) -> str:
    said = [f"{words} {bound}" for words, bound in bounds.items() if bound is not None]
    return f" {' and '.join(said)}" if said else ""
