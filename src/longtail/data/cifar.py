"""CIFAR-10 and CIFAR-100 from the official files, binary or python, whichever is on disk."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .dataset import Split
from .limits import reading, reason, text
from .profiles import Source

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Form:
    """One of the two official ways to store a CIFAR: its folder, and the files in it."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    pickled: bool = False


@dataclass(frozen=True)
class Layout:
    """One CIFAR: where it keeps what, and how an official copy is known."""

    name: str
    classes: int
    binary: Form
    python: Form
    label_bytes: int  # of a binary record; the last of them is the fine label
    label_key: str
    names_key: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    archive: str  # what `fetch` downloads: the binary form needs no unpickling
    md5: str
    content: str  # sha256 over pixels and labels, whatever the form

    def form(self, root: Path) -> Form | None:
        """Which form is on disk: the binary one where there are both."""
        return next((form for form in (self.binary, self.python) if (root / form.folder).is_dir()), None)


_FIVE = tuple(f"data_batch_{k}" for k in range(1, 6))
# Means and deviations over the 50,000 training images, which a test computes again.
CIFAR10 = Layout(
    "cifar10-lt", 10,
    Form("cifar-10-batches-bin", tuple(f"{name}.bin" for name in _FIVE), "test_batch.bin", "batches.meta.txt"),
    Form("cifar-10-batches-py", _FIVE, "test_batch", "batches.meta", pickled=True),
    1, "labels", "label_names", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
    "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
    "9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
)  # fmt: skip
CIFAR100 = Layout(
    "cifar100-lt", 100,
    Form("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt"),
    Form("cifar-100-python", ("train",), "test", "meta", pickled=True),
    2, "fine_labels", "fine_label_names", (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762),
    "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8",
    "283e80e15e3841cce98044da5929d8557a88969bfd2d77d1c1db7bb78ba419f7",
)  # fmt: skip
LAYOUTS = {layout.name: layout for layout in (CIFAR10, CIFAR100)}


def read(layout: Layout, root: Path) -> Source:
    """All images in file order: uint8 (50000, 3, 32, 32) and (10000, 3, 32, 32)."""
    form = layout.form(root)
    if form is None:
        raise InputError(
            f"{layout.name}: neither {layout.binary.folder} nor {layout.python.folder} is in {str(root)!r}; "
            f"`longtail data fetch {layout.name} --root {root}` downloads it"
        )
    folder = root / form.folder
    splits = []
    for key, files, images in (("train", form.train, 50_000), ("test", (form.test,), 10_000)):
        parts = [read_file(folder / file, layout, form) for file in files]
        labels = np.concatenate([y for _, y in parts])
        if len(labels) != images:
            raise InputError(f"{folder}: the {key} files hold {len(labels):,} images where {images:,} belong")
        x = torch.from_numpy(np.concatenate([pixels for pixels, _ in parts])).view(-1, 3, 32, 32)
        y = torch.from_numpy(labels.astype(np.int64))
        splits.append(Split(x, y, torch.arange(images), layout.mean, layout.std))
    return Source(layout.name, _class_names(folder / form.names, layout, form), splits[0], test=splits[1])


def verify(layout: Layout, root: Path) -> str | None:
    """What is wrong with the CIFAR in ``root``; None if it is there and every pixel and label is right."""
    try:
        if content_digest(layout, root) == layout.content:
            return None
    except InputError as error:
        return str(error)
    return f"{layout.name} in {root} can be read, but is not the official one: some pixels or labels differ"


def content_digest(layout: Layout, root: Path) -> str:
    source = read(layout, root)
    digest = hashlib.sha256()
    for split in (source.train, source.test):
        assert split is not None
        digest.update(split.inputs.numpy().data)  # type: ignore[union-attr]
        digest.update(split.labels.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def read_file(path: Path, layout: Layout, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 3072), planes first, and labels (N,) of one file."""
    pixels, labels = (_read_pickled if form.pickled else _read_binary)(path, layout)
    outside = np.flatnonzero((labels < 0) | (labels >= layout.classes))
    if len(outside):
        first = int(outside[0])
        raise InputError(f"{path}: image {first} has label {labels[first]}, outside [0, {layout.classes})")
    return pixels, labels


def _read_binary(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Records of ``label_bytes`` label bytes (the fine label last) and 3,072 pixel bytes, planes first."""
    with reading(path):
        raw = np.fromfile(path, np.uint8)
    record = layout.label_bytes + PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise InputError(
            f"{path} has {len(raw):,} bytes, which is no whole number of {record:,}-byte records: truncated, "
            f"or not {layout.name.removesuffix('-lt')}"
        )
    table = raw.reshape(-1, record)
    return table[:, layout.label_bytes :], table[:, layout.label_bytes - 1]


def _read_pickled(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """The pickled dictionary of the official python files: ``data`` uint8 (N, 3072) and a list of labels."""
    content = load_pickle(path)
    data, labels = content.get("data"), content.get(layout.label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise InputError(f"{path} has no 'data' array of 8-bit rows of {PIXELS:,} pixels")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(y) is int for y in labels):
        raise InputError(
            f"{path} has no list {layout.label_key!r} with one whole number for each of {len(data):,} rows"
        )
    return data, np.asarray(labels, dtype=np.int64)


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
        raise InputError(f"{path} cannot be read: {reason(error)}") from None
    except Exception as error:  # a broken pickle can raise nearly anything
        raise InputError(f"{path} is no CIFAR file, or truncated: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no CIFAR file: it holds a {type(content).__name__}, not a dictionary")
    return {text(key): value for key, value in content.items()}


def _class_names(path: Path, layout: Layout, form: Form) -> list[str]:
    if form.pickled:
        found = load_pickle(path).get(layout.names_key)
        names = [text(name) for name in found] if isinstance(found, list) else []
    else:
        with reading(path):
            names = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    if len(names) != layout.classes:
        raise InputError(f"{path} has {len(names)} class names where {layout.classes} belong")
    return names
