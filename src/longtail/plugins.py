"""What a user's own module adds: ``package.module:name``, for models, backbones and methods alike."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any

from .errors import InputError

_stored: ContextVar[tuple[object, str] | None] = ContextVar("stored", default=None)
_given: set[str] = set()


@contextmanager
def barred(source: object, advice: str = "it is not imported") -> Iterator[None]:
    """Within this, names come from a stored file: code that the user has not named in this process is not imported."""
    token = _stored.set((source, advice))
    try:
        yield
    finally:
        _stored.reset(token)


def load(kind: str, name: str) -> Callable[..., Any]:
    """The function or class that ``package.module:name`` stands for; ``kind`` is what a message calls it.

    The working directory is searched too, as ``python -m`` does.

    >>> load("model", "torch.nn:Identity")
    <class 'torch.nn.modules.linear.Identity'>
    """
    stored = _stored.get()
    if stored is not None and name not in _given:
        raise InputError(f"{stored[0]} names the {kind} {name!r}, which is code: {stored[1]}")
    where, _, what = name.partition(":")
    added = os.getcwd() not in sys.path
    if added:
        sys.path.insert(0, os.getcwd())
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no output of ours
            module = importlib.import_module(where)
    except (Exception, SystemExit) as e:  # the module is the user's: running it can raise anything
        said = str(e) if isinstance(e, ImportError) else brief(e)
        raise InputError(f"{kind} {name!r}: module {where!r} cannot be imported ({said})") from e
    finally:
        if added:
            sys.path.remove(os.getcwd())
    found = getattr(module, what, None)
    if not callable(found):
        raise InputError(f"{kind} {name!r}: {where} has no callable {what!r}")
    _given.add(name)
    return found  # type: ignore[no-any-return]


@contextmanager
def foreign(failure: str) -> Iterator[None]:
    """Within this, somebody else's code runs: what it prints is no output of ours, what it raises is one sentence."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except InputError:
        raise
    except Exception as e:
        raise InputError(f"{failure}: {brief(e)}") from e


def brief(error: BaseException) -> str:
    """An error of somebody else's code in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
