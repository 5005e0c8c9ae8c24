"""What ``fit`` and ``predict`` are given, checked and in the form that training wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from ..counts import ClassCounts
from ..data.dataset import Split
from ..errors import InputError, real
from ..models import Standardise

Array = NDArray[Any]

# Rows of a sparse matrix that a network sees at once
_ROWS = 1024


def sample_weights(given: Any, x: Any) -> Array | None:
    """One number of at least 0 a sample, or None where all count the same."""
    if given is None:
        return None
    weights: Array = _check_sample_weight(given, x, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():  # which older versions of scikit-learn let pass
        raise InputError("sample_weight must have at least one non-zero number")
    return weights


def weighted_counts(labels: Tensor, weights: Array | None) -> ClassCounts:
    """Sums of weights, which are counts where weights are whole numbers. Otherwise only their proportions mean
    something: they are brought to as many as there are samples, rounded, and no class below 1."""
    if weights is None:
        return ClassCounts.from_labels(labels)
    sums = np.bincount(labels.numpy(), weights)
    if (sums != sums.round()).any():
        sums = np.maximum((sums * len(labels) / sums.sum()).round(), 1)
    return ClassCounts(sums)


def hold_out(labels: Tensor, fraction: float, seed: int) -> tuple[Array, Array]:
    """Positions to train on and to validate on: a share of every class, one sample at least, never its last one."""
    real("validation_fraction", fraction, above=0, below=1)
    rng = np.random.default_rng(seed)
    out = []
    for c in range(int(labels.max()) + 1):
        own = rng.permutation(np.flatnonzero(labels.numpy() == c))
        out.append(own[: min(max(round(fraction * len(own)), 1), len(own) - 1)])
    held = np.concatenate(out)
    if not len(held):
        raise InputError("no class has two samples, so no validation data can be held out: pass X_val and y_val")
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)


def log_prior(target: Any, counts: ClassCounts, classes: Array) -> Array:
    """The logarithm of a target prior (C,), given by name, as C numbers or as a mapping from every class to one."""
    c = len(classes)
    if isinstance(target, str):
        if target not in ("uniform", "train"):
            raise InputError(f"target_prior must be 'uniform', 'train', {c} numbers or a dict, got {target!r}")
        target = np.ones(c) if target == "uniform" else counts.n.numpy()
    if isinstance(target, Mapping):
        names = classes.tolist()
        for name in [*(k for k in target if k not in names), *(k for k in names if k not in target)]:
            what = "lacks" if name in names else "names"
            raise InputError(
                f"target_prior must be a dict from each of classes_ to a number, and it {what} {name!r}: the classes "
                f"are {', '.join(map(repr, names[:10]))}{', …' if c > 10 else ''}"
            )
        target = [target[name] for name in names]
    try:
        prior = np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError):
        prior = np.zeros(0)
    if prior.shape != (c,) or not np.isfinite(prior).all() or (prior < 0).any() or prior.sum() == 0:
        raise InputError(f"target_prior must be {c} numbers of at least 0, one for each of classes_, got {target!r}")
    with np.errstate(divide="ignore"):
        logs: Array = np.log(prior / prior.sum())
    return logs


def scaled(layer: Standardise, x: Any) -> Any:
    """Features as a linear model takes them: float64, an array or, from a sparse matrix, a CSR matrix."""
    if sparse.issparse(x):
        return (x.astype(np.float64) @ sparse.diags_array(layer.factor.numpy())).tocsr()
    return layer(torch.from_numpy(x).double()).numpy()


def split(layer: Standardise, x: Any, labels: Tensor) -> Split:
    """Features and labels as the engine takes them."""
    dense = torch.cat(list(dense_blocks(x)))
    return Split(layer(dense).float(), labels, torch.arange(len(labels)))


def dense_blocks(x: Any) -> Iterator[Tensor]:
    """Rows as dense float64: all at once where they are dense already."""
    if not sparse.issparse(x):
        yield torch.from_numpy(x).double()
        return
    for start in range(0, x.shape[0], _ROWS):
        yield torch.from_numpy(x[start : start + _ROWS].toarray()).double()
