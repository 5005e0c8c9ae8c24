"""Pure functions of predictions and training counts: accuracy, diagnostics, theory. They never see a model."""

from . import accuracy, diagnostics, predictions, theory
from .predictions import Part, Predictions

__all__ = ["Part", "Predictions", "accuracy", "diagnostics", "predictions", "theory"]
