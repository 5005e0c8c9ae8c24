"""Data: the paper's data sets and anybody's own, split as the field splits them, fed fast.

>>> from longtail.data import load, Loader
>>> data = load("digits-lt")
>>> data
Dataset('digits-lt': 10 classes, features, 360 train, 368 val, 400 test, ...)
>>> data.counts
ClassCounts([130, 84, 54, 35, 22, 14, 9, 6, 4, 2])
"""

from __future__ import annotations

from .catalogue import load, names
from .dataset import Dataset, Files, Split
from .loader import Batch, Loader

__all__ = ["Batch", "Dataset", "Files", "Loader", "Split", "load", "names"]
