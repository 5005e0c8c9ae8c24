"""Losses, one value a sample each; ``Objective`` weighs and reduces them, ``ELM`` is one of its compositions."""

from .base import Features, Objective, Outputs, Term
from .contrastive import InfoNCE, SupCon, Triplet
from .geometry import Center, DroLt, Range, Spreadout
from .logit import HardMargin, Hybrid, MarginCrossEntropy, SigmoidFocal
from .pull import ELM, HardPull, Pull, RelativePull

__all__ = [
    "ELM",
    "Center",
    "DroLt",
    "Features",
    "HardMargin",
    "HardPull",
    "Hybrid",
    "InfoNCE",
    "MarginCrossEntropy",
    "Objective",
    "Outputs",
    "Pull",
    "Range",
    "RelativePull",
    "SigmoidFocal",
    "Spreadout",
    "SupCon",
    "Term",
    "Triplet",
]
