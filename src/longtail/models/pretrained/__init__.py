"""Backbones with weights: images in, embeddings out, each with the preprocessing that it was trained with.

A name is ``efficientnet-lite0``, or a kind and what it finds there: ``hf:NAME-or-FOLDER``, ``timm:NAME``,
``torchvision:NAME``, ``onnx:FILE``; anything else with a colon is ``package.module:factory``. Nothing is downloaded by
this package; a library that a kind belongs to may do so for a name that it does not have.

>>> names()[:2]
['efficientnet-lite0', 'hf:NAME-or-FOLDER']
"""

from __future__ import annotations

from .backbone import PARTS, Backbone, folded, joined, tuned
from .kinds import DEFAULT, available, install, load, names
from .preprocessing import Prepare, Preprocessing

__all__ = [
    "DEFAULT",
    "PARTS",
    "Backbone",
    "Prepare",
    "Preprocessing",
    "available",
    "folded",
    "install",
    "joined",
    "load",
    "names",
    "tuned",
]
