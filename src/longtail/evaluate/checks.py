"""Turning what callers hand in (lists, arrays, tensors) into tensors, with one sentence where it cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..counts import ClassCounts
from ..errors import InputError

BLOCK_ELEMENTS = 1 << 23  # of a temporary: 32 MB in float32, so that no function's memory grows with the data


def compute_dtype(x: Tensor) -> torch.dtype:
    """float64 stays float64; everything else is computed in float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def row_blocks(rows: int, columns: int, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Slices of rows that hold at most ``elements`` numbers each (and at least one row)."""
    step = max(1, elements // max(columns, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def tensor(x: Any, what: str) -> Tensor:
    """A tensor of numbers, without a copy where that is possible."""
    if isinstance(x, Tensor):
        return x.detach()
    try:
        array = np.asarray(x)
        if array.dtype.kind not in "biuf":
            raise TypeError
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        if not array.flags.writeable or not array.dtype.isnative or any(s < 0 for s in array.strides):
            array = array.astype(array.dtype.newbyteorder("="), copy=True)
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        got = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        raise InputError(f"{what} must be an array of numbers, got {got}") from None


def matrix(x: Any, what: str, columns: int | None = None) -> Tensor:
    """Finite floats of shape (N, columns); the first bad row is named."""
    t = tensor(x, what)
    if t.ndim != 2:
        raise InputError(f"{what} must have two dimensions (samples, values), got shape {tuple(t.shape)}")
    if not t.is_floating_point():
        if t.dtype == torch.bool or t.is_complex():
            raise InputError(f"{what} must be floats, got {t.dtype}")
        t = t.float()
    if t.shape[1] == 0:
        raise InputError(f"{what} must have at least one column, got shape {tuple(t.shape)}")
    if columns is not None and t.shape[1] != columns:
        raise InputError(f"{what} must have {columns} columns, got {t.shape[1]}")
    for rows in row_blocks(*t.shape):
        finite = torch.isfinite(t[rows])
        if not bool(finite.all()):
            row = int((~finite.all(1)).nonzero()[0])
            value = t[rows][row][~finite[row]][0].item()
            raise InputError(f"{what} must be finite, but row {rows.start + row} holds {value}")
    return t


def class_labels(y: Any, what: str = "labels", *, rows: int | None = None, num_classes: int | None = None) -> Tensor:
    """Class indices (N,) in [0, num_classes) as int64; the first bad row is named."""
    t = tensor(y, what)
    if t.ndim != 1:
        raise InputError(f"{what} must have one dimension, got shape {tuple(t.shape)}")
    if t.is_floating_point():
        if t.numel() and not bool((t == t.round()).all()):
            row = int((~(t == t.round())).nonzero()[0])
            raise InputError(f"{what} must be whole numbers (class indices), but row {row} holds {t[row].item()}")
    elif t.is_complex() or t.dtype == torch.bool:
        raise InputError(f"{what} must be whole numbers (class indices), got dtype {t.dtype}")
    t = t.long()
    if rows is not None and t.shape[0] != rows:
        raise InputError(f"{what} must be one a sample: there are {rows} samples, but {t.shape[0]} labels")
    outside = (t < 0) if num_classes is None else (t < 0) | (t >= num_classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        valid = "[0, …)" if num_classes is None else f"[0, {num_classes})"
        raise InputError(f"{what} must be in {valid}, but row {row} holds {int(t[row])}")
    return t


def labelled(
    x: Any, y: Any, what: str, num_classes: int | None = None, columns: int | None = None
) -> tuple[Tensor, Tensor]:
    """A matrix with one label a row, on one device."""
    m = matrix(x, what, columns)
    return m, class_labels(y, rows=m.shape[0], num_classes=num_classes).to(m.device)


def class_counts(counts: Any, num_classes: int | None = None) -> ClassCounts:
    """``ClassCounts`` of what was given, for ``num_classes`` classes if that is known."""
    made = counts if isinstance(counts, ClassCounts) else ClassCounts(counts)
    if num_classes is not None and made.num_classes != num_classes:
        raise InputError(f"the training counts are of {made.num_classes} classes, but the logits of {num_classes}")
    return made
