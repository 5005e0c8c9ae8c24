"""Learning from long-tailed data: ELM, embedding and logit margins, and every method it compares with.

Names are loaded when first used, so that ``import longtail`` costs no more than the names it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import data, evaluate, losses, margins, methods, models, posthoc
    from .counts import ClassCounts
    from .losses import ELM, Features, Objective, Outputs
    from .losses.memory import ClassMemory
    from .models.wrap import wrap

_HOME = {
    "ClassCounts": "counts",
    "ClassMemory": "losses.memory",
    "ELM": "losses",
    "Features": "losses",
    "Objective": "losses",
    "Outputs": "losses",
    "wrap": "models.wrap",
}
_MODULES = ("data", "evaluate", "losses", "margins", "methods", "models", "posthoc")

__all__ = [
    "ELM",
    "ClassCounts",
    "ClassMemory",
    "Features",
    "Objective",
    "Outputs",
    "__version__",
    "data",
    "evaluate",
    "losses",
    "margins",
    "methods",
    "models",
    "posthoc",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
