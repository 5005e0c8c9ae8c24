"""`load`: one door for every source, by name or by path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import InputError
from .dataset import Dataset


def _digits(root: Path) -> Callable[..., Dataset]:
    from .digits import digits_lt

    return digits_lt


def _moons(root: Path) -> Callable[..., Dataset]:
    from .digits import moons

    return moons


def _cifar(name: str, root: Path) -> Callable[..., Dataset]:
    from .cifar import cifar_lt

    return partial(cifar_lt, name, root)


BUILT_IN: dict[str, Callable[[Path], Callable[..., Dataset]]] = {
    "digits-lt": _digits,
    "moons": _moons,
    "cifar10-lt": partial(_cifar, "cifar10-lt"),
    "cifar100-lt": partial(_cifar, "cifar100-lt"),
}


def names() -> list[str]:
    """The built-in data sets."""
    return list(BUILT_IN)


def load(name: str | Path, root: str | Path = "data", **options: Any) -> Dataset:
    """Read a data set and cut its splits.

    Args:
        name: a built-in name (`names()`), or the path of a folder, a CSV or a file of features.
        root: folder that downloaded data sets lie in.
        options: of the source; an unknown one is an error that lists those there are. Most know

            - ``profile``: "exp", "step", or a list of counts; ``ratio``: largest over smallest class; ``n_max``;
            - ``seed``: which subset; None is the canonical one;
            - ``holdout``: share of the training data that becomes validation data instead, for tuning.

    >>> load("digits-lt", ratio=10).counts.n.tolist()
    [130, 100, 77, 60, 46, 36, 28, 21, 16, 13]
    """
    if str(name) not in BUILT_IN:
        raise errors.unknown("data set", name, names())
    reader = BUILT_IN[str(name)](Path(root))
    valid = [p.name for p in inspect.signature(reader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in valid:
            raise InputError(f"{name}: {errors.unknown('option', option, valid)}")
    return reader(**options)
