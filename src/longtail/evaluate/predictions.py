"""What a trained model says of its data: all that evaluation, diagnostics, theory and post-hoc tools ever see.

A file of predictions is ``.safetensors`` or ``.npz`` (read without pickle) with these arrays:

===============================================  ==================================================================
``{train,val,test}_logits``                      floats (N, C)
``{train,val,test}_labels``                      whole numbers (N,) in [0, C)
``{train,val,test}_embeddings``                  optional, floats (N, K)
``logits``, ``labels``, ``embeddings``           short for ``test_…``: the least a file from elsewhere holds
``counts``                                       optional, (C,): training samples a class; else from ``train_labels``
``head_weight``, ``head_bias``                   optional, (C, K) and (C,): the last layer, for τ-normalisation; with
                                                 embeddings, logits may be left out
``train_predicted``, ``train_margins``           (N,) each, in place of training logits of more than 2 · 10⁸ numbers:
                                                 there is no train part then
===============================================  ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..data.arrays import read_arrays
from ..errors import InputError
from ..numeric import class_labels, compute_dtype, matrix

PARTS = ("train", "val", "test")
_FIELDS = ("logits", "labels", "embeddings")
_HEAD = ("head_weight", "head_bias")


@dataclass(frozen=True, eq=False)
class Part:
    """Logits (N, C), labels (N,) and, where they were kept, embeddings (N, K) of one split."""

    logits: Tensor
    labels: Tensor
    embeddings: Tensor | None = None

    def __len__(self) -> int:
        return self.labels.shape[0]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits, labels and embeddings by split, checked when made: finite, of matching shapes, labels in range.

    >>> import torch
    >>> p = Predictions(test=Part(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])), counts=[9, 1])
    >>> p.num_classes, len(p.test), p.counts
    (2, 2, ClassCounts([9, 1]))
    >>> Predictions(test=Part(torch.tensor([[2.0, float("nan")]]), torch.tensor([0])))
    Traceback (most recent call last):
    longtail.errors.InputError: test_logits must be finite, but row 0 holds nan
    """

    train: Part | None = None
    val: Part | None = None
    test: Part | None = None
    head_weight: Tensor | None = None
    head_bias: Tensor | None = None
    counts: ClassCounts | Any = None

    def __post_init__(self) -> None:
        if not (given := self.parts()):
            raise InputError("predictions need logits and labels of at least one of train, val and test")
        c: int | None = None
        k: int | None = None
        for name, part in given.items():
            logits = matrix(part.logits, f"{name}_logits", c)
            c = logits.shape[1]
            labels = class_labels(part.labels, f"{name}_labels", rows=logits.shape[0], num_classes=c)
            embeddings = None
            if part.embeddings is not None:
                embeddings = matrix(part.embeddings, f"{name}_embeddings", k, squared=True)
                k = embeddings.shape[1]
                if embeddings.shape[0] != logits.shape[0]:
                    raise InputError(
                        f"{name}_embeddings have {embeddings.shape[0]} rows, but {name}_logits have {logits.shape[0]}"
                    )
            self._set(name, Part(logits, labels, embeddings))
        assert c is not None
        if self.head_weight is not None:
            weight = matrix(self.head_weight, "head_weight", k)
            if weight.shape[0] != c:
                raise InputError(f"head_weight must have a row for each of the {c} classes, got {weight.shape[0]}")
            self._set("head_weight", weight)
        if self.head_bias is not None:
            bias = torch.as_tensor(self.head_bias).detach()
            if bias.shape != (c,) or not bool(torch.isfinite(bias).all()):
                raise InputError(f"head_bias must be {c} finite numbers, got shape {tuple(bias.shape)}")
            self._set("head_bias", bias)
        if self.counts is not None:
            self._set("counts", class_counts(self.counts, c))
        elif self.train is not None:
            self._set("counts", ClassCounts.from_labels(self.train.labels, c))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def num_classes(self) -> int:
        return next(part.logits.shape[1] for part in self.parts().values())

    def parts(self, *names: str) -> dict[str, Part]:
        """Those of train, val and test that there are, by name; with ``names``, of these alone."""
        return {name: part for name in names or PARTS if (part := getattr(self, name)) is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> Predictions:
        """From the arrays of a file, by the names in the module's table; a name that is none of them is refused."""
        named = {(f"test_{k}" if k in _FIELDS else k): v for k, v in tensors.items()}
        if len(named) < len(tensors):
            twice = next(k for k in _FIELDS if k in tensors and f"test_{k}" in tensors)
            raise InputError(f"{twice} is short for test_{twice}, and both are there: keep one of the two")
        if "train_predicted" in named:
            named = {k: v for k, v in named.items() if not k.startswith("train_")}
        valid = [f"{part}_{field}" for part in PARTS for field in _FIELDS] + [*_HEAD, "counts"]
        for name in named:
            if name not in valid:
                raise InputError(f"unknown array {name!r}: valid are logits, labels, embeddings, {', '.join(valid)}")
        parts: dict[str, Any] = {}
        for part in PARTS:
            found = {field: named[f"{part}_{field}"] for field in _FIELDS if f"{part}_{field}" in named}
            if not found:
                continue
            if "logits" not in found and "embeddings" in found and "head_weight" in named:
                found["logits"] = _head_logits(found["embeddings"], named["head_weight"], named.get("head_bias"), part)
            for field in ("logits", "labels"):
                if field not in found:
                    raise InputError(f"{part}_{next(iter(found))} are there, but {part}_{field} are not")
            parts[part] = Part(**found)
        rest = {name: named[name] for name in (*_HEAD, "counts") if name in named}
        return cls(**parts, **rest)

    def to_tensors(self) -> dict[str, Tensor]:
        """The arrays of a file: the inverse of ``from_tensors``."""
        tensors: dict[str, Any] = {}
        for name, part in self.parts().items():
            tensors |= {f"{name}_{field}": getattr(part, field) for field in _FIELDS}
        tensors |= {name: getattr(self, name) for name in _HEAD}
        tensors["counts"] = None if self.counts is None else self.counts.n
        return {name: value for name, value in tensors.items() if value is not None}

    def save(self, path: str | Path) -> None:
        """Write ``.safetensors`` or ``.npz``, by the ending; test samples go by the short names."""
        path = Path(path)
        tensors = {name.removeprefix("test_"): t.cpu().contiguous() for name, t in self.to_tensors().items()}
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            # clone() unties views of one storage, which safetensors refuses
            save_file({name: t.clone() for name, t in tensors.items()}, path)
        elif path.suffix == ".npz":
            arrays = {k: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for k, t in tensors.items()}
            np.savez(path, **arrays)  # type: ignore[arg-type]
        else:
            raise InputError(f"predictions are written as .safetensors or .npz, got {path.name!r}")

    def doubts(self) -> str | None:
        """A warning where probabilities seem to stand in place of logits."""
        for name, part in self.parts().items():
            f = part.logits
            if len(f) and bool((f >= 0).all() and ((f.double().sum(1) - 1).abs() < 1e-3).all()):
                return (
                    f"the logits ({name}) are at least 0 and sum to 1 for every sample, as probabilities do; store "
                    "their logarithms, or what is adjusted, ECE and margins are wrong"
                )
        return None

    @classmethod
    def load(cls, path: str | Path, counts: Any = None) -> Predictions:
        """Read a file; ``counts``, if given, replace those of the file. ``runs.predictions.predictions`` reads a run's.

        Raises:
            InputError: one sentence that names the file and, where a value is wrong, the row.
        """
        path = Path(path)
        try:
            tensors = read_arrays(path)
            if counts is not None:
                tensors["counts"] = counts
            return cls.from_tensors(tensors)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def _head_logits(embeddings: Any, weight: Any, bias: Any, part: str) -> Tensor:
    x = matrix(embeddings, f"{part}_embeddings")
    w = matrix(weight, "head_weight", x.shape[1])
    logits = x.to(compute_dtype(x)) @ w.to(compute_dtype(x)).T
    b = None if bias is None else torch.as_tensor(bias)
    if b is not None and b.shape != logits.shape[1:]:
        raise InputError(f"head_bias must be {logits.shape[1]} finite numbers, got shape {tuple(b.shape)}")
    return logits if b is None else logits + b.to(logits.dtype)


def read_counts(text: str | Path) -> ClassCounts:
    """Training counts as the command line takes them: ``500,210,5``, or a file of numbers (JSON list, or separated by
    commas, blanks or lines).

    >>> read_counts("500,210,5")
    ClassCounts([500, 210, 5])
    """
    text = str(text)
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8") if path.is_file() else text
        return ClassCounts(np.array([float(part) for part in re.split(r"[\s,;\[\]]+", content) if part]))
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, InputError) else "that is neither a file nor whole numbers"
        raise InputError(f"cannot read training counts from {text!r}: {reason}; write 500,210,5 or a file") from None
