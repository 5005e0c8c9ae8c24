"""Features and labels from an ``.npz`` or a ``.safetensors`` file."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .dataset import Split
from .profiles import Source

INPUTS = ("features", "x", "f", "inputs", "embeddings", "data")
LABELS = ("labels", "y", "label", "targets", "target")
# Whole numbers beyond this and beyond the number of samples are names, not places in a list of classes
MOST_CLASSES = 100_000


def feature_file(path: Path) -> Source:
    """Features (N, K) and labels (N,), in one pair of arrays or one for each split.

    One pair: ``features`` and ``labels`` (or ``x`` and ``y``). With splits: ``x_train``, ``y_train``, ``x_test``,
    ``y_test`` and perhaps ``x_val``, ``y_val`` (or ``train_features``, ``train_labels``, …). Labels are whole numbers
    from 0, or strings in an ``.npz``; ``class_names`` may name them.
    """
    arrays = _read(path)
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split in ("train", "val", "test", ""):
        x, y = _pick(arrays, INPUTS, split), _pick(arrays, LABELS, split)
        if (x is None) != (y is None):
            raise InputError(f"{path} has {x or y!r} but no {'features' if x is None else 'labels'} to go with it")
        if x is not None and y is not None and (split or not pairs):
            pairs[split or "train"] = arrays[x], arrays[y]
    if "train" not in pairs:
        raise InputError(
            f"{path} has no training data: 'x_train' and 'y_train', or 'features' and 'labels', belong in it, "
            f"it has {', '.join(map(repr, arrays)) or 'nothing'}"
        )
    given = [str(name) for name in arrays["class_names"].ravel()] if "class_names" in arrays else None
    labels, names = _encode(path, {split: y for split, (_, y) in pairs.items()}, given)
    splits: dict[str, Split] = {}
    start = 0
    content = hashlib.sha256()
    for split, (x_array, _) in pairs.items():
        inputs = _check(path, split, x_array, pairs["train"][0])
        y_tensor = torch.from_numpy(labels[split])
        if len(inputs) != len(y_tensor):
            raise InputError(f"{path}: {split} has {len(inputs)} rows of features and {len(y_tensor)} labels")
        splits[split] = Split(inputs, y_tensor, torch.arange(start, start + len(inputs)))
        start += len(inputs)
        content.update(inputs.numpy().tobytes())
    digest = content.hexdigest()
    return Source(path.stem, splits["train"], splits.get("test"), names, splits.get("val"), identity=digest)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npz":
            content = np.load(path, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise InputError(f"{path} is one bare array, not an .npz: np.savez stores features and labels")
            with content:
                return {key: content[key] for key in content.files}
        from safetensors.torch import load_file

        return {key: value.float().numpy() if value.is_floating_point() else value.numpy()
                for key, value in load_file(path).items()}  # fmt: skip
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {_reason(error)}") from None
    except Exception as error:  # safetensors has an exception of its own
        raise InputError(f"{path} is no safetensors file: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error)
    return "it holds pickled objects, which are not read" if "allow_pickle" in text else text.splitlines()[0]


def _pick(arrays: dict[str, np.ndarray], words: tuple[str, ...], split: str) -> str | None:
    for word in words:
        for key in (f"{word}_{split}", f"{split}_{word}") if split else (word,):
            if key in arrays:
                return key
    return None


def _check(path: Path, split: str, array: np.ndarray, train: np.ndarray) -> torch.Tensor:
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.shape[1] == 0:
        raise InputError(f"{path}: features of {split} must be numbers (N, K), got {array.dtype} {array.shape}")
    if array.shape[1] != train.shape[1]:
        raise InputError(f"{path}: {split} has {array.shape[1]} features a sample, train has {train.shape[1]}")
    x = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(f"{path}: features of {split} are not finite: {x[row, column]} in row {row}, column {column}")
    return x


def _encode(
    path: Path, labels: dict[str, np.ndarray], given: list[str] | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Labels as int64, and class names: whole numbers stay as they are, strings are numbered alphabetically."""
    for split, y in labels.items():
        if y.ndim != 1 or y.dtype.kind not in "iuUS":
            raise InputError(f"{path}: labels of {split} must be whole numbers or strings, got {y.dtype} {y.shape}")
    if any(y.dtype.kind in "US" for y in labels.values()):
        words = {split: y.astype(str) for split, y in labels.items()}
        names = given or sorted({str(word) for y in words.values() for word in y})
        place = {name: i for i, name in enumerate(names)}
        strange = sorted({str(word) for y in words.values() for word in y} - set(names))
        if strange:
            raise InputError(f"{path}: label {strange[0]!r} is not among class_names")
        return {split: np.array([place[str(w)] for w in y], dtype=np.int64) for split, y in words.items()}, names
    whole = {split: y.astype(np.int64) for split, y in labels.items()}
    classes = len(given) if given else 1 + max((int(y.max()) for y in whole.values() if len(y)), default=-1)
    if classes > max(MOST_CLASSES, sum(map(len, whole.values()))):
        raise InputError(
            f"{path}: label {classes - 1} would make {classes:,} classes: number the classes from 0, or store the "
            "labels as strings"
        )
    for split, y in whole.items():
        outside = np.flatnonzero((y < 0) | (y >= classes))
        if len(outside):
            raise InputError(f"{path}: label {y[outside[0]]} of {split} row {outside[0]} is outside [0, {classes})")
    return whole, given or [str(label) for label in range(classes)]
