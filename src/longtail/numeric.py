"""Small tensor helpers that several rooms need: arrays of callers as checked tensors, work in blocks, means, unit rows.

Callers hand in lists, arrays or tensors; what cannot be used is refused with one sentence that names the first bad row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
BLOCK_ELEMENTS = 1 << 23  # of a temporary: 32 MB in float32, so that no function's memory grows with the data


def compute_dtype(x: Tensor) -> torch.dtype:
    """float64 stays float64; everything else is computed in float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def transformed() -> bool:
    """Whether a transform of ``torch.func`` (grad, vmap, …) is at work, under which values cannot be looked at."""
    return bool(torch._C._are_functorch_transforms_active())


def looked_at(x: Tensor) -> bool:
    """Whether values may decide what is computed: not where that would wait for an accelerator, or be recorded."""
    recorded = torch.compiler.is_compiling() or torch._C._is_tracing() or transformed()
    return x.device.type == "cpu" and x.numel() > 0 and not recorded


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that runs as it is where its caller is compiled.

    ``torch.compiler.disable`` does that too, but importing a module that uses it imports the compiler: two seconds for
    everybody, and few compile.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return call


def row_blocks(rows: int, columns: int, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Slices of rows that hold at most ``elements`` numbers each (and at least one row)."""
    step = max(1, elements // max(columns, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def tensor(x: Any, what: str) -> Tensor:
    """A tensor of real numbers, without a copy where that is possible."""
    if isinstance(x, Tensor):
        if x.is_complex():
            raise InputError(f"{what} must be real numbers, got {x.dtype}")
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


def matrix(x: Any, what: str, columns: int | None = None, *, squared: bool = False) -> Tensor:
    """Finite floats of shape (N, columns); with ``squared``, of a size whose squares are finite too."""
    t = tensor(x, what)
    if t.ndim != 2:
        raise InputError(f"{what} must have two dimensions (samples, values), got shape {tuple(t.shape)}")
    if not t.is_floating_point():
        if t.dtype == torch.bool:
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
    if squared:
        check_range(what, t)
    return t


def check_range(what: str, x: Tensor) -> None:
    """Embeddings so large that their squared distances would overflow are refused; NaN and infinity are not looked for.

    On an accelerator a look at values would have to wait for it, so there is none.
    """
    if not looked_at(x):
        return
    most = (torch.finfo(compute_dtype(x)).max / x.shape[1]) ** 0.5 / 100
    if torch.finfo(x.dtype).max <= most:
        return
    low, high = x.detach().aminmax()
    if most < (largest := max(-float(low), float(high))) < math.inf:
        raise InputError(
            f"{what} must be within ±{most:.1e}, so that their squares fit in {compute_dtype(x)}, got {largest:.1e}: "
            "has training diverged?"
        )


def class_labels(y: Any, what: str = "labels", *, rows: int | None = None, num_classes: int | None = None) -> Tensor:
    """Class indices (N,) in [0, num_classes) as int64."""
    t = tensor(y, what)
    if t.ndim != 1:
        raise InputError(f"{what} must have one dimension, got shape {tuple(t.shape)}")
    if t.is_floating_point():
        if t.numel() and not bool((t == t.round()).all()):
            row = int((~(t == t.round())).nonzero()[0])
            raise InputError(f"{what} must be whole numbers (class indices), but row {row} holds {t[row].item()}")
    elif t.dtype == torch.bool:
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


def labelled(x: Any, y: Any, num_classes: int | None = None, what: str = "embeddings") -> tuple[Tensor, Tensor]:
    """Embeddings (N, K) with one label a row, on one device."""
    m = matrix(x, what, squared=True)
    return m, class_labels(y, rows=m.shape[0], num_classes=num_classes).to(m.device)


def labelled_logits(logits: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Logits (N, C) with one label in [0, C) a row, on one device."""
    f = matrix(logits, "logits")
    return f, class_labels(y, rows=f.shape[0], num_classes=f.shape[1]).to(f.device)


def class_means(
    x: Tensor, labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Class means (C, K) in ``dtype``, 0 for empty classes, and the class sizes (C,); differentiable in x."""
    sums = x.new_zeros(num_classes, x.shape[1], dtype=dtype)
    for rows in row_blocks(*x.shape):
        sums = sums.index_add(0, labels[rows], x[rows].to(dtype))
    n = labels.new_zeros(num_classes).index_add(0, labels, torch.ones_like(labels))
    return sums / n.clamp(min=1).to(dtype)[:, None], n


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to norm 1, whatever their size; a row of zeros (or too small for its dtype) is 0, with gradient 0.

    >>> unit_rows(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000], [0.0000, 0.0000]])
    """
    if looked_at(x):
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        if bool(((norm > 1e-15) & (norm < 1e15)).all()):  # nothing to guard against: the same digits in few passes
            return x / norm
    # A power of two near the largest entry goes out first: it changes no digit, and the squares stay in range.
    highest = math.frexp(torch.finfo(x.dtype).max)[1] - 1
    largest = x.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
    some = largest >= torch.finfo(x.dtype).tiny  # below, the gradient would overflow
    x = x / torch.where(some, largest, 1.0).log2().floor().clamp(max=highest).exp2()
    norm = torch.where(some, x, 1.0).norm(dim=-1, keepdim=True)
    return torch.where(some, x / norm, 0.0)


def logit_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """``γ(x, y) = f_y(x) − max_{y'≠y} f_y'(x)``, (N,), of logits (N, C ≥ 2): positive where the prediction is right."""
    at = labels[:, None]
    return logits.gather(1, at)[:, 0] - logits.scatter(1, at, -torch.inf).amax(1)
