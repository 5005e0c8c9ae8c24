"""Array files: the one reader of ``.npz``, ``.npy`` and ``.safetensors``, and features with labels made of them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .dataset import Files
from .limits import check_memory, check_regular, is_regular, reason
from .profiles import Source, encode

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
        if "allow_pickle" in text:
            text = "it holds pickled objects, which are not read (strings are stored by y.astype('U'))"
        kind = "it is no safetensors file" if suffix == ".safetensors" else "it cannot be read"
        raise InputError(f"{kind}: {text}") from None


def _plain(array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiubUS":
        raise InputError("it holds something else than arrays of numbers or strings")
    return array


def _by_name(path: Path) -> dict[str, np.ndarray]:
    """All as NumPy's (half precision, which it lacks in part, as float32) by their names in small letters; an error
    names the file."""
    try:
        arrays = read_arrays(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return {
        key.lower(): (value.float() if value.is_floating_point() else value).numpy()
        if isinstance(value, Tensor)
        else value
        for key, value in arrays.items()
    }


def array_file(path: Path) -> Source:
    """Features (N, K) and labels (N,), in one pair of arrays or one for each split.

    One pair: ``features`` and ``labels`` (or ``X`` and ``y``). With splits: ``X_train``, ``y_train``, ``X_test``,
    ``y_test`` and perhaps ``X_val``, ``y_val`` (or ``train_features``, ``train_labels``, …), in small letters or large.
    Labels are whole numbers from 0, or strings in an ``.npz``; ``class_names`` may name them.
    """
    if path.suffix.lower() == ".npy":
        raise InputError(f"{path}: {BARE}")
    arrays = _by_name(path)
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split in ("train", "val", "test", ""):
        x, y = _pick(arrays, INPUTS, split), _pick(arrays, LABELS, split)
        if (x is None) != (y is None):
            raise InputError(f"{path} has {x or y!r} but no {'features' if x is None else 'labels'} to go with it")
        if x is not None and y is not None and (split or not pairs):
            pairs[split or "train"] = arrays[x], arrays[y]
    if "train" not in pairs:
        raise InputError(
            f"{path} has no training data: 'X_train' and 'y_train', or 'features' and 'labels', belong in it, "
            f"it has {', '.join(map(repr, arrays)) or 'nothing'}"
        )
    given = _words(arrays["class_names"].ravel()) if "class_names" in arrays else None
    labels, names = _labels(path, {split: y for split, (_, y) in pairs.items()}, given)
    return feature_source(path, {split: (x, labels[split]) for split, (x, _) in pairs.items()}, names)


def feature_source(
    path: Path,
    pairs: Mapping[str, tuple[np.ndarray, Sequence[int | str]]],
    names: list[str],
    notes: Sequence[str] = (),
    columns: tuple[str, ...] | None = None,
) -> Source:
    """Features and labels of each split, checked, as a source."""
    labels = encode(path, {split: y for split, (_, y) in pairs.items()}, names)
    parts: dict[str, tuple[Tensor | Files, Tensor]] = {}
    content = hashlib.sha256()
    for split, (x, _) in pairs.items():
        inputs = finite(path, f"features of {split}", x)
        if x.shape[1] != pairs["train"][0].shape[1]:
            features = pairs["train"][0].shape[1]
            raise InputError(f"{path}: {split} has {x.shape[1]} features a sample, train has {features}")
        if len(inputs) != len(labels[split]):
            raise InputError(f"{path}: {split} has {len(inputs)} rows of features and {len(labels[split])} labels")
        if len(inputs) == 0:
            raise InputError(f"{path}: {split} has no rows")
        parts[split] = inputs, labels[split]
        content.update(inputs.numpy().tobytes())
    return Source.of(path.stem, names, parts, notes, content.hexdigest(), columns=columns)


def _pick(arrays: Mapping[str, Any], words: tuple[str, ...], split: str) -> str | None:
    for word in words:
        for key in (f"{word}_{split}", f"{split}_{word}") if split else (word,):
            if key in arrays:
                return key
    return None


def matrix(path: Path) -> np.ndarray:
    """Features alone, (N, K), to be classified: the array named features, X, …, or the only matrix of the file."""
    arrays = _by_name(path)
    named = [arrays[word] for word in INPUTS if word in arrays]
    matrices = named or [a for a in arrays.values() if a.ndim == 2]
    if not named and len(matrices) != 1:
        raise InputError(f"{path} has {len(matrices)} matrices: name the one to classify {INPUTS[0]!r}")
    return matrices[0]


def finite(path: Path, what: str, array: np.ndarray) -> Tensor:
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


def _words(array: np.ndarray) -> list[str]:
    """As strings; bytes are read as UTF-8, and what is none stays visible."""
    words: list[str] = (
        np.char.decode(array, "utf-8", "backslashreplace") if array.dtype.kind == "S" else array.astype(str)
    ).tolist()
    return words


def _labels(
    path: Path, labels: dict[str, np.ndarray], given: list[str] | None
) -> tuple[dict[str, list[Any]], list[str]]:
    """Labels and class names: whole numbers stay as they are, strings are numbered alphabetically."""
    for split, y in labels.items():
        if y.ndim != 1 or y.dtype.kind not in "iubUS":
            raise InputError(f"{path}: labels of {split} must be whole numbers or strings, got {y.dtype} {y.shape}")
    if any(y.dtype.kind in "US" for y in labels.values()):
        words = {split: _words(y) for split, y in labels.items()}
        return words, given or sorted({word for y in words.values() for word in y})
    classes = len(given) if given else 1 + max((int(y.max()) for y in labels.values() if len(y)), default=-1)
    if classes > max(MOST_CLASSES, sum(map(len, labels.values()))):
        raise InputError(
            f"{path}: label {classes - 1} would make {classes:,} classes: number the classes from 0, or store the "
            "labels as strings"
        )
    return {split: y.tolist() for split, y in labels.items()}, given or [str(label) for label in range(classes)]
