"""CIFAR-10 and CIFAR-100 from the official files, binary or python, whichever is on disk."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .dataset import Split
from .profiles import Source

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Where one CIFAR keeps what, in both official layouts."""

    name: str
    classes: int
    per_class: int
    binary: str
    python: str
    binary_files: tuple[tuple[str, ...], str]
    python_files: tuple[tuple[str, ...], str]
    label_bytes: int  # the last of them is the fine label
    label_key: str
    binary_names: str
    python_names: tuple[str, str]
    mean: tuple[float, ...]
    std: tuple[float, ...]


_FIVE = tuple(f"data_batch_{k}" for k in range(1, 6))
# Means and deviations over the 50,000 training images, which a test computes again.
CIFAR10 = Layout(
    "cifar10-lt", 10, 5000, "cifar-10-batches-bin", "cifar-10-batches-py",
    (tuple(f"{name}.bin" for name in _FIVE), "test_batch.bin"), (_FIVE, "test_batch"), 1, "labels",
    "batches.meta.txt", ("batches.meta", "label_names"),
    (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
)  # fmt: skip
CIFAR100 = Layout(
    "cifar100-lt", 100, 500, "cifar-100-binary", "cifar-100-python",
    (("train.bin",), "test.bin"), (("train",), "test"), 2, "fine_labels",
    "fine_label_names.txt", ("meta", "fine_label_names"),
    (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762),
)  # fmt: skip
LAYOUTS = {layout.name: layout for layout in (CIFAR10, CIFAR100)}


def read(layout: Layout, root: Path) -> Source:
    """All images in file order: uint8 (50000, 3, 32, 32) and (10000, 3, 32, 32)."""
    binary, python = root / layout.binary, root / layout.python
    if binary.is_dir():
        parts = {"train": layout.binary_files[0], "test": (layout.binary_files[1],)}
        arrays = {key: [read_binary(binary / file, layout) for file in files] for key, files in parts.items()}
        names = _names_text(binary / layout.binary_names, layout)
    elif python.is_dir():
        parts = {"train": layout.python_files[0], "test": (layout.python_files[1],)}
        arrays = {key: [read_python(python / file, layout) for file in files] for key, files in parts.items()}
        names = _names_pickle(python / layout.python_names[0], layout)
    else:
        raise InputError(
            f"{layout.name}: neither {layout.binary} nor {layout.python} is in {str(root)!r}; "
            f"`longtail data fetch {layout.name} --root {root}` downloads it"
        )
    splits = []
    for key, images in (("train", layout.classes * layout.per_class), ("test", 10_000)):
        pixels = np.concatenate([part[0] for part in arrays[key]])
        labels = np.concatenate([part[1] for part in arrays[key]])
        if len(labels) != images:
            folder = binary if binary.is_dir() else python
            raise InputError(f"{folder}: the {key} files hold {len(labels):,} images where {images:,} belong")
        x = torch.from_numpy(pixels).view(-1, 3, 32, 32)
        y = torch.from_numpy(labels.astype(np.int64))
        splits.append(Split(x, y, torch.arange(images), layout.mean, layout.std))
    return Source(layout.name, splits[0], splits[1], names)


def read_binary(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Records of ``label_bytes`` label bytes (the fine label last) and 3,072 pixel bytes, planes first."""
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    record = layout.label_bytes + PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise InputError(
            f"{path} has {len(raw):,} bytes, which is no whole number of {record:,}-byte records: truncated, "
            f"or not {layout.name.removesuffix('-lt')}"
        )
    table = raw.reshape(-1, record)
    labels = table[:, layout.label_bytes - 1]
    _check_labels(path, labels, layout)
    return table[:, layout.label_bytes :], labels


def read_python(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """The pickled dictionary of the official python files: ``data`` uint8 (N, 3072) and a list of labels."""
    content = load_pickle(path)
    data, labels = content.get("data"), content.get(layout.label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise InputError(f"{path} has no 'data' array of 8-bit rows of {PIXELS:,} pixels")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(y) is int for y in labels):
        raise InputError(
            f"{path} has no list {layout.label_key!r} with one whole number for each of {len(data):,} rows"
        )
    array = np.asarray(labels, dtype=np.int64)
    _check_labels(path, array, layout)
    return data, array


def _check_labels(path: Path, labels: np.ndarray, layout: Layout) -> None:
    outside = np.flatnonzero((labels < 0) | (labels >= layout.classes))
    if len(outside):
        first = int(outside[0])
        raise InputError(f"{path}: image {first} has label {labels[first]}, outside [0, {layout.classes})")


class _Unpickler(pickle.Unpickler):
    """Admits what the official files hold: NumPy arrays in plain containers. Everything else is refused by name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":  # pickle protocol 5
            return _array
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):  # how Python 3 pickles bytes for old protocols
            return _latin1
        raise InputError(f"refused {module}.{name}: only NumPy arrays and plain containers may be in it")


def _array(buffer: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise InputError("refused _codecs.encode: only Latin-1 bytes may be in it")
    return text.encode("latin-1")


def load_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary, keys as strings, without ever importing what the file names."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except InputError as error:
        raise InputError(f"{path} is no CIFAR file: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a broken pickle can raise nearly anything
        raise InputError(f"{path} is no CIFAR file, or truncated: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no CIFAR file: it holds a {type(content).__name__}, not a dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _names_text(path: Path, layout: Layout) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return _check_names(path, names, layout)


def _names_pickle(path: Path, layout: Layout) -> list[str]:
    names = load_pickle(path).get(layout.python_names[1])
    return _check_names(path, [_text(name) for name in names] if isinstance(names, list) else [], layout)


def _check_names(path: Path, names: list[str], layout: Layout) -> list[str]:
    if len(names) != layout.classes:
        raise InputError(f"{path} has {len(names)} class names where {layout.classes} belong")
    return names
