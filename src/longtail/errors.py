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
from collections.abc import Iterable
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
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if (at_least is None or number >= at_least) and (at_most is None or number <= at_most):
            return number
    raise InputError(f"{what} must be a whole number{_bounds(at_least=at_least, at_most=at_most)}, got {value!r}")


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
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        number = float(value)
        if (
            (at_least is None or number >= at_least)
            and (at_most is None or number <= at_most)
            and (above is None or number > above)
            and (below is None or number < below)
        ):
            return number
    bounds = _bounds(at_least=at_least, above=above, at_most=at_most, below=below)
    raise InputError(f"{what} must be a {'number' if bounds else 'finite number'}{bounds}, got {value!r}")


def true_or_false(what: str, value: object) -> bool:
    """A bool, and nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise InputError(f"{what} must be True or False, got {value!r}")
    return value


def _bounds(**bounds: float | None) -> str:
    words = {"at_least": "of at least", "above": "above", "at_most": "of at most", "below": "below"}
    said = [f"{words[name]} {bound}" for name, bound in bounds.items() if bound is not None]
    return f" {' and '.join(said)}" if said else ""
