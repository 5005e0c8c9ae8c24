"""What every source becomes: a `Dataset` of up to three `Split`s, in memory or as named image files."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ..counts import ClassCounts
from ..errors import InputError, whole
from ..models.pretrained.preprocessing import Preprocessing
from .limits import MOST_FILE_BYTES, check_regular, shown

Kind = Literal["images", "features", "files"]
MOST_PIXELS = 4096  # a side


class Files:
    """Image files that are named but not read: one byte string and offsets, not a list of Python strings.

    Half a million paths cost some 30 MB, start-up of worker processes does not copy them one by one, and reading
    one does not touch reference counts (which would unshare the memory of forked workers).

    Args:
        paths: relative to ``root``.
        root: the folder that the paths start from.
        size: side of the square that the network gets; evaluation resizes the short side to ``size · 256/224`` first.
        origin: where the list came from, for messages; None where the paths speak for themselves.
        lines: line of each path in ``origin``; 1, 2, … by default.

    >>> files = Files(["a/1.jpg", "b/2.jpg"], root="images")
    >>> len(files), files[1].as_posix(), files.take([1]).names()
    (2, 'images/b/2.jpg', ['b/2.jpg'])
    """

    def __init__(
        self,
        paths: Iterable[str | bytes],
        root: str | Path,
        size: int = 224,
        origin: str | None = None,
        lines: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        self.root = Path(root)
        self.size = whole("size", size, at_least=1, at_most=MOST_PIXELS)
        self._how: Preprocessing | None = None
        self.origin = origin
        self._hold(paths)
        self.number(range(1, len(self) + 1) if lines is None else lines)

    def _hold(self, paths: Iterable[str | bytes]) -> None:
        buffer, ends = bytearray(), array("q")
        for path in paths:
            buffer += path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
            ends.append(len(buffer))
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._ends = np.frombuffer(ends, np.int64) if ends else np.zeros(0, np.int64)

    def name(self, i: int) -> str:
        """The path as listed, without the root."""
        return os.fsdecode(self._raw(i))  # whatever the locale, the same bytes go to the system again

    def _raw(self, i: int) -> bytes:
        return self._bytes[self._ends[i - 1] if i else 0 : self._ends[i]].tobytes()

    def names(self) -> list[str]:
        return [self.name(i) for i in range(len(self))]

    def number(self, lines: Sequence[int] | np.ndarray) -> None:
        """Give the paths their line numbers, where these are known only after reading."""
        self._lines = np.array(lines, dtype=np.int32)

    def where(self, i: int) -> str:
        """How a message names file ``i``: its path, and its line where it came from a list."""
        path = shown(str(self[i]))
        return path if self.origin is None else f"{path} ({self.origin}, line {self._lines[i]})"

    def take(self, indices: Sequence[int] | Tensor) -> Self:
        chosen, found = np.asarray(indices, dtype=np.int64), copy(self)
        found._hold(self._raw(i) for i in chosen)
        found.number(self._lines[chosen])
        return found

    @property
    def how(self) -> Preprocessing:
        """How an image is made a square, in evaluation."""
        return self._how or Preprocessing(self.size, round(self.size * 256 / 224))

    def prepared(self, how: Preprocessing) -> Self:
        """The same files, resized and cut by these rules."""
        other = copy(self)
        other._how, other.size = how, how.size
        return other

    def some(self, number: int) -> Sequence[int]:
        """Places of so many files or fewer, all over the list."""
        return range(0, len(self), max(len(self) // number, 1))

    def digest(self) -> bytes:
        digest = hashlib.sha256(self._bytes.data)
        digest.update(self._ends.data)
        return digest.digest()

    def file(self, i: int) -> Path:
        """The file that holds image ``i``."""
        return self[i]

    def read(self, i: int) -> bytes:
        with self.open(i) as file:
            return file.read()

    def open(self, i: int) -> IO[bytes]:
        """File ``i``; a device or a pipe, which would never end, is refused."""
        path = self[i]
        if check_regular(path) > MOST_FILE_BYTES:
            raise InputError(f"it has more than {MOST_FILE_BYTES >> 20:,} MB")
        return path.open("rb")

    def __getitem__(self, i: int) -> Path:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.root / self.name(i)

    def __iter__(self) -> Iterator[Path]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self._ends)

    def __repr__(self) -> str:
        return f"Files({len(self)} under {self.root})"


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels.

    Attributes:
        inputs: uint8 (N, channels, H, W), or float32 (N, K), or `Files`.
        labels: int64 (N,).
        indices: int64 (N,), each sample's place in the source's own order.
        mean, std: per channel, of pixels in [0, 1]: what `Loader` normalises images with; None leaves them in [0, 1].
        augment: what the augmentation ``"auto"`` stands for, where it is not what the kind of data calls for.
        columns: the names of features, where they have any.
    """

    inputs: Tensor | Files
    labels: Tensor
    indices: Tensor
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: str = "auto"
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.labels) == len(self.indices):
            sizes = len(self.inputs), len(self.labels), len(self.indices)
            raise InputError("a split needs as many inputs as labels and indices, got {}, {} and {}".format(*sizes))

    @property
    def kind(self) -> Kind:
        if isinstance(self.inputs, Files):
            return "files"
        return "images" if self.inputs.dtype == torch.uint8 else "features"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the network gets it."""
        if isinstance(self.inputs, Files):
            return (3, self.inputs.size, self.inputs.size)
        return tuple(self.inputs.shape[1:])

    def take(self, positions: Tensor) -> Split:
        """The samples at these positions, in this order."""
        inputs = self.inputs.take(positions) if isinstance(self.inputs, Files) else self.inputs[positions]
        return replace(self, inputs=inputs, labels=self.labels[positions], indices=self.indices[positions])

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A long-tailed problem: training data, a balanced test set, and validation data where there is any.

    Attributes:
        counts: of the training labels.
        fingerprint: hash of every split's indices and labels (and of the paths of files): equal fingerprints mean
            the same split, so results may stand side by side.
        notes: what was decided on the way, one sentence each.
    """

    name: str
    train: Split
    val: Split | None
    test: Split
    class_names: list[str]
    fingerprint: str
    notes: list[str] = field(default_factory=list)

    @property
    def splits(self) -> dict[str, Split]:
        """Those of train, val and test that there are."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in found.items() if split is not None}

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts.from_labels(self.train.labels, len(self.class_names))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def kind(self) -> Kind:
        return self.train.kind

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.train.input_shape

    def __repr__(self) -> str:
        val = "no" if self.val is None else len(self.val)
        return (
            f"Dataset({self.name!r}: {self.num_classes} classes, {self.kind}, "
            f"{len(self.train)} train, {val} val, {len(self.test)} test, {self.fingerprint})"
        )


def fingerprint(name: str, splits: Iterable[Split | None]) -> str:
    """Sixteen hexadecimal digits that change whenever any split's samples, order or labels do."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape"))
    for split in splits:
        digest.update(b"|")
        if split is not None:
            for numbers in (split.indices, split.labels):
                digest.update(numbers.numpy().astype("<i8", copy=False).data)
            if isinstance(split.inputs, Files):
                digest.update(split.inputs.digest())
    return digest.hexdigest()[:16]
