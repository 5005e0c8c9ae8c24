"""The one exception for a caller's mistake, and the one way to say that a name is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
