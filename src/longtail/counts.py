"""Class frequencies: the only way in which the label distribution enters anything."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import numeric
from .errors import InputError, whole

GROUPS = ("head", "torso", "tail")
MOST_CLASSES = 10_000_000  # more are taken for something else than class indices


class ClassCounts:
    """How many training samples each class has.

    Classes with zero samples are legal: they have prior 0, and every loss stays finite with them.

    Attributes:
        n: counts, int64 of shape (C,).
        prior: ``n / n.sum()``, float64 of shape (C,).

    >>> counts = ClassCounts([500, 50, 5])
    >>> counts.n.tolist(), counts.num_classes, counts.total
    ([500, 50, 5], 3, 555)
    >>> {name: index.tolist() for name, index in counts.groups().items()}
    {'head': [0], 'torso': [1], 'tail': [2]}
    >>> ClassCounts.from_labels([0, 0, 2], num_classes=4)
    ClassCounts([2, 0, 1, 0])
    """

    n: Tensor
    prior: Tensor

    def __init__(self, counts: ClassCounts | Sequence[int] | np.ndarray | Tensor) -> None:
        if isinstance(counts, ClassCounts):
            counts = counts.n
        n = _as_tensor(counts, "counts")
        if n.ndim != 1 or n.numel() == 0:
            raise InputError(f"counts must be one number a class, got shape {tuple(n.shape)}")
        n = n.detach().to("cpu")
        if n.is_complex() or n.dtype == torch.bool:
            raise InputError(f"counts must be whole numbers, got dtype {n.dtype}")
        if n.is_floating_point():
            n = n.double()
            wrong = ~torch.isfinite(n) | (n != n.round()) | (n.abs() >= 2**53)
            if bool(wrong.any()):
                raise InputError(f"counts must be whole numbers, got {n[wrong][0].item()}")
        n = n.to(torch.int64, copy=True)
        if bool((n < 0).any()):
            first = int((n < 0).nonzero()[0])
            raise InputError(f"counts must not be negative, got {int(n[first])} for class {first}")
        if int(n.sum()) == 0:
            raise InputError("counts are all zero: at least one class must have a sample")
        self.n = n
        self.prior = n.double() / n.sum()

    @classmethod
    def from_labels(cls, labels: Iterable[int] | np.ndarray | Tensor, num_classes: int | None = None) -> ClassCounts:
        """Count labels given as a list, an array or a tensor of whole numbers.

        Classes beyond the largest label exist only if ``num_classes`` says so.
        """
        y = _as_tensor(labels, "labels").detach().to("cpu")
        if y.ndim != 1:
            raise InputError(f"labels must have one dimension, got shape {tuple(y.shape)}")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"labels must be whole numbers (class indices), got dtype {y.dtype}")
        y = y.long()
        if num_classes is None:
            if y.numel() == 0:
                raise InputError("there are no labels to count: give at least one, or pass counts")
            num_classes = max(int(y.max()) + 1, 1)
        if whole("num_classes", num_classes, 1) > MOST_CLASSES:
            raise InputError(
                f"labels must be class indices below {MOST_CLASSES:,}: {num_classes:,} classes are too many"
            )
        outside = (y < 0) | (y >= num_classes)
        if bool(outside.any()):
            raise InputError(f"label {int(y[outside][0])} is outside [0, {num_classes})")
        return cls(torch.bincount(y, minlength=num_classes))

    @classmethod
    def from_dataset(cls, dataset: Any, num_classes: int | None = None) -> ClassCounts:
        """Count the labels of a torch dataset.

        A ``datasets.Dataset`` is counted by its column ``label`` or ``labels``, with classes that its ``ClassLabel``
        names. Otherwise uses ``targets``, ``labels`` or the last tensor of a ``TensorDataset`` where there is one,
        follows ``Subset`` and ``ConcatDataset``, and otherwise reads every sample's last element once.
        """
        labels, classes = _dataset_labels(dataset)
        if num_classes is None and classes:
            num_classes = len(classes)
        return cls.from_labels(labels, num_classes)

    @property
    def num_classes(self) -> int:
        return self.n.numel()

    @property
    def total(self) -> int:
        return int(self.n.sum())

    @property
    def safe_n(self) -> Tensor:
        """Counts as float64 with every 0 computed as 1: what logarithms and negative powers use."""
        return self.n.double().clamp(min=1)

    @property
    def safe_prior(self) -> Tensor:
        """``safe_n`` over the true total."""
        return self.safe_n / self.total

    def groups(self, head: int = 100, tail: int = 20) -> dict[str, Tensor]:
        """Class indices by training count: head ≥ ``head``, torso in [``tail``, ``head``), tail < ``tail``."""
        if not 0 <= tail <= head:
            raise InputError(f"groups need 0 <= tail <= head, got head={head}, tail={tail}")
        is_head, is_tail = self.n >= head, self.n < tail
        masks = (is_head, ~is_head & ~is_tail, is_tail & ~is_head)
        return {name: mask.nonzero().flatten() for name, mask in zip(GROUPS, masks)}

    def __len__(self) -> int:
        return self.num_classes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassCounts) and torch.equal(self.n, other.n)

    def __hash__(self) -> int:
        return hash(tuple(self.n.tolist()))

    def __repr__(self) -> str:
        if self.num_classes <= 12:
            return f"ClassCounts({self.n.tolist()})"
        return f"ClassCounts({self.num_classes} classes, {self.total} samples, {int(self.n.max())}…{int(self.n.min())})"


def class_counts(counts: Any, num_classes: int | None = None) -> ClassCounts:
    """``ClassCounts`` of what was given, for ``num_classes`` classes if that is known."""
    made = counts if isinstance(counts, ClassCounts) else ClassCounts(counts)
    if num_classes is not None and made.num_classes != num_classes:
        raise InputError(f"the training counts are of {made.num_classes} classes, but the logits of {num_classes}")
    return made


def _as_tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, (Mapping, Set)):
        # Iterating would give a mapping's keys, and a set has no order: both would be taken for something else.
        hint = ": write its values in the order of the classes" if isinstance(values, Mapping) else ""
        raise InputError(f"{what} must be a list, an array or a tensor, got {type(values).__name__}{hint}")
    if not isinstance(values, (list, tuple, np.ndarray)):
        try:
            values = list(values)
        except TypeError:
            raise InputError(f"{what} must be a list, an array or a tensor, got {type(values).__name__}") from None
    if not isinstance(values, np.ndarray) and len(values) == 0:
        return torch.zeros(0, dtype=torch.int64)
    try:
        return numeric.tensor(values, what)
    except InputError:
        raise InputError(f"{what} must be whole numbers, got {_preview(values)}") from None


def _preview(values: Any) -> str:
    if isinstance(values, np.ndarray) and values.ndim != 1:
        return f"an array of {values.dtype} of shape {values.shape}"
    text = ", ".join(repr(v) for v in itertools.islice(values, 3))
    return f"[{text}, …]" if len(values) > 3 else f"[{text}]"


def _dataset_labels(dataset: Any) -> tuple[Tensor, Sequence[str] | None]:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    if isinstance(dataset, ConcatDataset):
        parts = [_dataset_labels(part) for part in dataset.datasets]
        classes = max((c for _, c in parts if c), key=len, default=None)
        return torch.cat([labels for labels, _ in parts]), classes
    if hasattr(dataset, "column_names") and hasattr(dataset, "features"):  # Hugging Face's
        return _column_labels(dataset)
    classes = getattr(dataset, "classes", None)
    classes = classes if isinstance(classes, (list, tuple)) else None
    for name in ("targets", "labels"):
        if getattr(dataset, name, None) is not None:
            return _as_tensor(getattr(dataset, name), "labels"), classes
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[-1], classes
    if isinstance(dataset, Subset):
        labels, classes = _dataset_labels(dataset.dataset)
        return labels[torch.as_tensor(dataset.indices, dtype=torch.long)], classes
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InputError(f"{type(dataset).__name__} has no length: count its labels yourself and pass them")
    return torch.tensor([_label(dataset, i) for i in range(len(dataset))], dtype=torch.long), classes


def _column_labels(dataset: Any) -> tuple[Tensor, Sequence[str] | None]:
    """Labels of a ``datasets.Dataset``: its column ``label`` or ``labels``, named by a ``ClassLabel`` feature."""
    found = [name for name in ("label", "labels") if name in dataset.column_names]
    if not found:
        raise InputError(
            f"the data set has no column 'label' or 'labels', but {', '.join(map(repr, dataset.column_names))}: count "
            "the right one with ClassCounts.from_labels(dataset[NAME])"
        )
    return _as_tensor(dataset[found[0]], "labels"), getattr(dataset.features[found[0]], "names", None)


def _label(dataset: Any, i: int) -> int:
    sample = dataset[i]
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        raise InputError(f"sample {i} of {type(dataset).__name__} is not an (input, label) pair")
    try:
        return operator.index(sample[-1])
    except TypeError:
        raise InputError(f"the label of sample {i} must be a whole number, got {sample[-1]!r}") from None
