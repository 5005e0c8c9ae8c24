"""Losses, one value a sample each; ``Objective`` weighs and reduces them, ``ELM`` is one of its compositions."""

from .base import Features, Objective, Outputs, Term
from .pull import HardPull, Pull, RelativePull
from .contrastive import InfoNCE, SupCon, Triplet
from .geometry import Center, DroLt, Range, Spreadout
from .logit import HardMargin, Hybrid, MarginCrossEntropy, SigmoidFocal

__all__ = [
    "Center",
    "DroLt",
    "Features",
    "HardMargin",
    "Hybrid",
    "InfoNCE",
    "MarginCrossEntropy",
    "Objective",
    "Outputs",
    "Range",
    "SigmoidFocal",
    "Spreadout",
    "SupCon",
    "Term",
    "Triplet",
]
