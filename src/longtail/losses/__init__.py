"""Losses, one value a sample each; ``Objective`` weighs and reduces them, ``ELM`` is one of its compositions."""

from .base import Features, Objective, Outputs, Term

__all__ = ["Features", "Objective", "Outputs", "Term"]
