"""Every method as a scikit-learn classifier: tables, frozen features, and sparse matrices such as TF-IDF."""

from .classifier import LongTailClassifier

__all__ = ["LongTailClassifier"]
