"""Samples and numbers as small plain JSON data, and back."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError


def pack_correct(correct: Tensor) -> str:
    """Correctness (N,) as base64 of packed bits, the first sample in the highest bit of the first byte."""
    return base64.b64encode(np.packbits(correct.cpu().numpy().astype(bool)).tobytes()).decode("ascii")


def pack_labels(labels: Tensor) -> str:
    """Labels (N,) as base64 of zlib-compressed little-endian 32-bit numbers: sorted test sets cost next to nothing."""
    return base64.b64encode(zlib.compress(labels.cpu().numpy().astype("<i4").tobytes(), 9)).decode("ascii")


def unpack_correct(text: str, n: int) -> Tensor:
    """The inverse of ``pack_correct`` for n samples, bool (n,).

    >>> unpack_correct(pack_correct(torch.tensor([True, False, True])), 3)
    tensor([ True, False,  True])
    """
    raw = _decoded(text)
    if len(raw) != (n + 7) // 8:
        raise InputError(f"{n} samples need {(n + 7) // 8} bytes of correctness, got {len(raw)}")
    return torch.from_numpy(np.unpackbits(np.frombuffer(raw, dtype=np.uint8), count=n).astype(bool))


def unpack_labels(text: str, n: int) -> Tensor:
    """The inverse of ``pack_labels`` for n samples, int64 (n,).

    >>> unpack_labels(pack_labels(torch.tensor([7, 0, 7])), 3)
    tensor([7, 0, 7])
    """
    solver = zlib.decompressobj()
    try:
        raw = solver.decompress(_decoded(text), 4 * n + 1)  # a bound, because the text may come from anywhere
    except zlib.error:
        raise InputError(f"the packed labels cannot be decompressed: {text[:20]!r}") from None
    if len(raw) != 4 * n:
        raise InputError(f"{n} samples need {4 * n} bytes of labels, got {'more' if len(raw) > 4 * n else len(raw)}")
    return torch.from_numpy(np.frombuffer(raw, dtype="<i4").astype(np.int64))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, UnicodeEncodeError):
        raise InputError(f"packed samples must be base64, got {text[:20]!r}") from None


def rounded(value: Any) -> Any:
    """Plain JSON data: floats to six significant digits, NaN and infinities to null.

    >>> rounded({"a": [1 / 3, float("nan")], "b": 2})
    {'a': [0.333333, None], 'b': 2}
    """
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
