"""Array files: the one reader of ``.npz``, ``.npy`` and ``.safetensors``, and features with labels made of them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .dataset import Split
from .limits import check_memory, check_regular, is_regular, reason
from .profiles import Source

SUFFIXES = (".npz", ".npy", ".safetensors")
INPUTS = ("features", "x", "f", "inputs", "embeddings", "data")
LABELS = ("labels", "y", "label", "targets", "target")
# Whole numbers beyond this and beyond the number of samples are names, not places in a list of classes
MOST_CLASSES = 100_000
BARE = "it is one bare array, not an .npz: np.savez stores features and labels"


def read_arrays(path: str | Path) -> dict[str, Any]:
    """The arrays of a file by name, unchecked: NumPy's of an ``.npz`` or ``.npy`` (under ``features``), torch's of a
    ``.safetensors``. Nothing pickled is read.

    Raises:
        InputError: what is wrong, without the file's name, which the caller knows.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not is_regular(path):
        raise InputError("there is no such file")
    if suffix not in SUFFIXES:
        raise InputError(f"arrays are read from {', '.join(SUFFIXES)}")
    try:
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            check_memory("it", check_regular(path))
            return dict(load_file(path))
        if suffix == ".npy":
            return {"features": _plain(np.load(path, allow_pickle=False))}
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise InputError(BARE)
        with zipfile.ZipFile(path) as archive:
            check_memory("it", sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as content:
            return {key: _plain(content[key]) for key in content.files}
    except InputError:
        raise
    except Exception as error:  # zip, zlib, NumPy and safetensors each have exceptions of their own
        text = reason(error)
        text = (
            "it holds pickled objects, which are not read (strings are stored by y.astype('U'))"
            if "allow_pickle" in text
            else text
        )
        kind = "it is no safetensors file" if suffix == ".safetensors" else "it cannot be read"
        raise InputError(f"{kind}: {text}") from None


def _plain(array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiubUS":
        raise InputError("it holds something else than arrays of numbers or strings")
    return array


def _named_arrays(path: Path) -> dict[str, np.ndarray]:
    """All as NumPy's (half precision, which it lacks in part, as float32); an error names the file."""
    try:
        arrays = read_arrays(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return {key: value if isinstance(value, np.ndarray) else _numpy(value) for key, value in arrays.items()}


def _numpy(value: torch.Tensor) -> np.ndarray:
    array: np.ndarray = (value.float() if value.is_floating_point() else value).numpy()
    return array


def array_file(path: Path) -> Source:
    """Features (N, K) and labels (N,), in one pair of arrays or one for each split.

    One pair: ``features`` and ``labels`` (or ``X`` and ``y``). With splits: ``X_train``, ``y_train``, ``X_test``,
    ``y_test`` and perhaps ``X_val``, ``y_val`` (or ``train_features``, ``train_labels``, …), in small letters or large.
    Labels are whole numbers from 0, or strings in an ``.npz``; ``class_names`` may name them.
    """
    if path.suffix.lower() == ".npy":
        raise InputError(f"{path}: {BARE}")
    arrays = _named_arrays(path)
    by_name = {key.lower(): value for key, value in arrays.items()}
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split in ("train", "val", "test", ""):
        x, y = _pick(by_name, INPUTS, split), _pick(by_name, LABELS, split)
        if (x is None) != (y is None):
            raise InputError(f"{path} has {x or y!r} but no {'features' if x is None else 'labels'} to go with it")
        if x is not None and y is not None and (split or not pairs):
            pairs[split or "train"] = by_name[x], by_name[y]
    if "train" not in pairs:
        raise InputError(
            f"{path} has no training data: 'X_train' and 'y_train', or 'features' and 'labels', belong in it, "
            f"it has {', '.join(map(repr, arrays)) or 'nothing'}"
        )
    given = _words(by_name["class_names"].ravel()).tolist() if "class_names" in by_name else None
    return feature_source(path, pairs, given)


def feature_source(
    path: Path,
    pairs: Mapping[str, tuple[np.ndarray, np.ndarray]],
    class_names: list[str] | None,
    notes: tuple[str, ...] = (),
    columns: tuple[str, ...] | None = None,
) -> Source:
    """Features and labels of each split, checked, as a source."""
    labels, names = _encode(path, {split: y for split, (_, y) in pairs.items()}, class_names)
    splits: dict[str, Split] = {}
    start = 0
    content = hashlib.sha256()
    for split, (x_array, _) in pairs.items():
        inputs = _check(path, split, x_array, pairs["train"][0])
        y_tensor = torch.from_numpy(labels[split])
        if len(inputs) != len(y_tensor):
            raise InputError(f"{path}: {split} has {len(inputs)} rows of features and {len(y_tensor)} labels")
        if len(inputs) == 0:
            raise InputError(f"{path}: {split} has no rows")
        splits[split] = Split(inputs, y_tensor, torch.arange(start, start + len(inputs)), columns=columns)
        start += len(inputs)
        content.update(inputs.numpy().tobytes())
    digest = content.hexdigest()
    return Source(path.stem, splits["train"], splits.get("test"), names, splits.get("val"), notes, digest)


def _pick(arrays: Mapping[str, Any], words: tuple[str, ...], split: str) -> str | None:
    for word in words:
        for key in (f"{word}_{split}", f"{split}_{word}") if split else (word,):
            if key in arrays:
                return key
    return None


def matrix(path: Path) -> np.ndarray:
    """Features alone, (N, K), to be classified: the array named features, X, …, or the only matrix of the file."""
    arrays = {key.lower(): value for key, value in _named_arrays(path).items()}
    named = [arrays[word] for word in INPUTS if word in arrays]
    matrices = named or [a for a in arrays.values() if a.ndim == 2]
    if not named and len(matrices) != 1:
        raise InputError(f"{path} has {len(matrices)} matrices: name the one to classify {INPUTS[0]!r}")
    return matrices[0]


def finite(path: Path, what: str, array: np.ndarray) -> torch.Tensor:
    """Numbers (N, K) as a float32 tensor; a value that is not finite is named by its row and column."""
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.shape[1] == 0:
        raise InputError(f"{path}: {what} must be numbers (N, K), got {array.dtype} {array.shape}")
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(f"{path}: {what} are not finite: {array[row, column]} in row {row}, column {column}")
    return x


def _check(path: Path, split: str, array: np.ndarray, train: np.ndarray) -> torch.Tensor:
    x = finite(path, f"features of {split}", array)
    if array.shape[1] != train.shape[1]:
        raise InputError(f"{path}: {split} has {array.shape[1]} features a sample, train has {train.shape[1]}")
    return x


def _words(array: np.ndarray) -> np.ndarray:
    """As strings; bytes are read as UTF-8, and what is none stays visible."""
    return np.char.decode(array, "utf-8", "backslashreplace") if array.dtype.kind == "S" else array.astype(str)


def _encode(
    path: Path, labels: dict[str, np.ndarray], given: list[str] | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Labels as int64, and class names: whole numbers stay as they are, strings are numbered alphabetically."""
    for split, y in labels.items():
        if y.ndim != 1 or y.dtype.kind not in "iubUS":
            raise InputError(f"{path}: labels of {split} must be whole numbers or strings, got {y.dtype} {y.shape}")
    if any(y.dtype.kind in "US" for y in labels.values()):
        words = {split: _words(y) for split, y in labels.items()}
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
