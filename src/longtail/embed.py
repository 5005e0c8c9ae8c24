"""Embeddings of images by a pretrained backbone, computed once: a cache of small files, each there as a whole or not.

The cache lies in ``$LONGTAIL_CACHE``, else ``$XDG_CACHE_HOME/longtail``, else ``~/.cache/longtail``. Its key is the
images (names, sizes and times of files; pixels of data in memory), the backbone (its weights too) and its
preprocessing. How the images are split is no part of it: another holdout or another seed finds the same embeddings.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .data import Dataset
from .data.dataset import Files
from .data.feeds import results
from .data.images import open_image, readable, reduction
from .data.limits import is_regular
from .errors import InputError, whole
from .models.pretrained import Backbone, Preprocessing, folded
from .runs.files import cannot_write

SHARD = 512
Progress = Callable[[int, int], None]
Precision = Literal["fp32", "bf16"]


def cache_folder() -> Path:
    """Where embeddings are kept unless another folder is given."""
    if own := os.environ.get("LONGTAIL_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "longtail"


@dataclass(frozen=True, eq=False)
class Embedded:
    """A data set as the embeddings of its images.

    Attributes:
        data: the same splits, names and labels, with features (N, K) as inputs.
        views: (N of train, V, K), embeddings of random crops of the training images, where there are any.
        paths: of each split, where its images are files.
        backbone: plain data that names the backbone and its weights.
        computed: images embedded now; all others were in the cache.
        folder: of the cache.
    """

    data: Dataset
    views: Tensor | None
    paths: dict[str, list[str]]
    backbone: dict[str, Any]
    computed: int
    folder: Path

    def save(self, path: str | Path) -> None:
        """Write an ``.npz`` that `longtail.data.load` reads back as the same splits."""
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"a file of embeddings must end in .npz, got {path.name!r}")
        arrays: dict[str, Any] = {
            "class_names": np.array(self.data.class_names), "backbone": np.array(json.dumps(self.backbone))
        }  # fmt: skip
        for name, split in self.data.splits.items():
            arrays[f"x_{name}"], arrays[f"y_{name}"] = split.inputs.numpy(), split.labels.numpy()  # type: ignore[union-attr]
            if name in self.paths:
                arrays[f"paths_{name}"] = np.array([p.encode("utf-8", "surrogateescape") for p in self.paths[name]])
        if self.views is not None:
            arrays["views_train"] = self.views.numpy()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _atomically(path, lambda file: np.savez(file, **arrays))
        except OSError as error:
            raise cannot_write(path, error) from error


def embed(
    data: Dataset,
    backbone: Backbone,
    *,
    views: int = 0,
    flip: bool = True,
    batch_size: int | None = None,
    workers: int | None = None,
    precision: Precision = "fp32",
    device: str | torch.device = "cpu",
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Embedded:
    """Embeddings of all images of a data set, through the cache.

    Args:
        views: random crops (half of the area or more, sides 3:4 to 4:3) of each training image besides itself.
        flip: whether views are mirrored with probability ½; not for signs and text.
        batch_size: images at a time; by default 64, and 4 on a processor, where the outputs of layers are then small
            enough to be reused memory (16 take twice the time).
        workers: processes that decode; by default one for every two processors, none for a few hundred images.
        progress: called with the number of images done and that of all.
    """
    if data.kind == "features":
        raise InputError(f"{data.name} holds features already: a backbone takes images")
    whole("views", views, at_least=0)
    images = Images(data, backbone.preprocessing)
    key = {"format": 1, "images": images.digest(), "backbone": backbone.identity(), "precision": precision}
    folder = Path(cache or cache_folder()) / "embeddings" / _digest(json.dumps(key, sort_keys=True).encode())[:32]
    device = torch.device(device)
    run = _Run(backbone, batch_size or (4 if device.type == "cpu" else 64), workers, precision, device)
    passes = [_Pass(folder, images, np.arange(len(images)), "all")]
    train = images.places["train"]
    name = "" if flip else "-unflipped"
    for v in range(1, views + 1):
        of = _digest(train.tobytes())[:8]
        passes.append(_Pass(folder, images.as_view(v, flip), train, f"view{v}{name}-{of}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "about.json").exists():
            text = json.dumps({**key, "data": data.name}, indent=2)
            _atomically(folder / "about.json", lambda file: file.write(text.encode()))
        (every, *seen), computed = _fill(passes, run, progress)
    except OSError as error:
        raise cannot_write(folder / "embeddings", error) from error
    splits = {
        split: replace(old, inputs=torch.from_numpy(every[images.places[split]]), mean=None, std=None)
        for split, old in data.splits.items()
    }
    new = replace(data, train=splits["train"], val=splits.get("val"), test=splits["test"])
    paths = {n: old.inputs.names() for n, old in data.splits.items() if isinstance(old.inputs, Files)}
    stacked = torch.from_numpy(np.stack(seen, 1)) if seen else None
    return Embedded(new, stacked, paths, backbone.identity(), computed, folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Images:
    """All images of a data set as one list, whatever the split; decoded and prepared on demand, in workers too.

    ``places`` has each split's positions in the list. Files stand in the order of their names.
    """

    def __init__(self, data: Dataset, how: Preprocessing) -> None:
        self.how, self.view, self.flip = how, 0, False
        splits = data.splits
        self.parts = [split.inputs for split in splits.values()]
        self.part = np.repeat(np.arange(len(self.parts)), [len(p) for p in self.parts])
        self.row = np.concatenate([np.arange(len(p)) for p in self.parts])
        if data.kind == "files":
            names = [n for p in self.parts if isinstance(p, Files) for n in p.names()]
            order = np.array(sorted(range(len(names)), key=names.__getitem__))
            self.part, self.row = self.part[order], self.row[order]
        self.places = {name: np.empty(len(split), np.int64) for name, split in splits.items()}
        for i, name in enumerate(splits):
            here = np.flatnonzero(self.part == i)
            self.places[name][self.row[here]] = here

    def as_view(self, view: int, flip: bool) -> Images:
        """The same list, each image as its random crop number ``view``."""
        other = copy(self)
        other.view, other.flip = view, flip
        return other

    def __len__(self) -> int:
        return len(self.part)

    def digest(self) -> str:
        """Of the names, sizes and times of files, or of the pixels in memory."""
        found = hashlib.sha256()
        for p, i in zip(self.part, self.row):
            part = self.parts[p]
            if isinstance(part, Files):
                try:
                    about = part.file(i).stat()
                except OSError:
                    raise InputError(f"there is no image {part.where(i)}") from None
                found.update(
                    f"{part.name(i)}\0{about.st_size} {about.st_mtime_ns}\0".encode("utf-8", "surrogateescape")
                )
            else:
                found.update(part[i].numpy().data)
        return found.hexdigest()

    def read(self, ids: np.ndarray) -> Tensor:
        """uint8 (B, 3, S, S)."""
        return torch.stack([self._read(int(i)) for i in ids])

    def _read(self, i: int) -> Tensor:
        part, row = self.parts[self.part[i]], int(self.row[i])
        if not isinstance(part, Files):
            return self._prepare(part[row].expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy(), i)
        with readable(part.where(row)):
            image = open_image(part.read(row))
            # Decoded smaller where that leaves twice the pixels needed: faster, and hardly another image
            short = min(image.width, image.height)
            reduce = 1 if self.view else reduction(short, 2 * self.how.needed)
            return self._prepare(np.ascontiguousarray(image.pixels(reduce)), i)

    def _prepare(self, image: np.ndarray, i: int) -> Tensor:
        if not self.view:
            return self.how.pixels(image)
        rng = np.random.default_rng([self.view, i])
        height, width = image.shape[:2]
        share, shape = rng.uniform(0.5, 1), (4 / 3) ** rng.uniform(-1, 1)
        h = min(max(round((height * width * share / shape) ** 0.5), 1), height)
        w = min(max(round((height * width * share * shape) ** 0.5), 1), width)
        top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
        part = image[top : top + h, left : left + w]
        if self.flip and rng.random() < 0.5:
            part = part[:, ::-1]
        return replace(self.how, short=None).pixels(np.ascontiguousarray(part))


@dataclass(frozen=True)
class _Pass:
    """Some of the images, in one form; ``shards`` are the files of the cache that hold them, and whom each holds."""

    folder: Path
    images: Images
    ids: np.ndarray
    name: str

    @cached_property
    def shards(self) -> dict[Path, np.ndarray]:
        starts = range(0, len(self.ids), SHARD)
        return {
            self.folder / f"{self.name}-{number:05d}.npy": self.ids[start : start + SHARD]
            for number, start in enumerate(starts)
        }


def _stored(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """A shard, or None where there is none or it is broken."""
    if not is_regular(path):
        return None
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)  # so that no header takes memory
    except Exception:  # NumPy parses its header as Python, which raises nearly anything
        return None
    fits = found.shape == shape and found.dtype == np.float32
    return np.array(found) if fits and bool(np.isfinite(found).all()) else None


@dataclass(frozen=True)
class _Run:
    backbone: Backbone
    batch_size: int
    workers: int | None
    precision: Precision
    device: torch.device

    @cached_property
    def network(self) -> nn.Module:
        size = self.backbone.preprocessing.size
        example = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        return folded(self.backbone.to(self.device).network, example.to(self.device))

    def embeddings(self, images: Images, ids: np.ndarray) -> Iterator[np.ndarray]:
        """Of the images at ``ids``, a batch at a time, in order."""
        cut = range(0, len(ids), self.batch_size)
        half = self.precision == "bf16"
        workers = self.workers
        if workers is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            workers = min(cores // 2, 8) if len(ids) > 128 else 0
        for pixels in results(images.read, [ids[i : i + self.batch_size] for i in cut], workers):
            x = self.backbone.preprocessing.normalise(pixels.to(self.device))
            with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                z = self.network(x.to(memory_format=torch.channels_last))
            z = z.float().cpu()
            if not bool(torch.isfinite(z).all()):
                raise InputError(f"backbone {self.backbone.name!r} gives embeddings that are not finite")
            yield z.numpy()


def _fill(passes: list[_Pass], run: _Run, progress: Progress | None) -> tuple[list[np.ndarray], int]:
    """The embeddings of each pass, and how many were computed now: what the cache lacks, a shard at a time; a process
    that dies loses one shard at most."""
    width = run.backbone.embedding_size
    found = [{path: _stored(path, (len(ids), width)) for path, ids in step.shards.items()} for step in passes]
    lacking = [[path for path, rows in have.items() if rows is None] for have in found]
    total = sum(len(step.shards[path]) for step, paths in zip(passes, lacking) for path in paths)
    done = 0
    for step, have, paths in zip(passes, found, lacking):
        if not paths:
            continue
        # One stream over all shards: workers decode the next one's images while this one is written
        stream = run.embeddings(step.images, np.concatenate([step.shards[path] for path in paths]))
        left = np.empty((0, width), np.float32)
        for path in paths:
            parts, size = [left], len(step.shards[path])
            while sum(map(len, parts)) < size:
                parts.append(next(stream))
                done += len(parts[-1])
                if progress is not None:
                    progress(done, total)
            rows = np.concatenate(parts)
            have[path], left = np.ascontiguousarray(rows[:size]), rows[size:]
            _atomically(path, partial(np.save, arr=rows[:size]))
    return [np.concatenate(list(have.values())) for have in found], total  # type: ignore[arg-type]


def _atomically(path: Path, write: Callable[[Any], Any]) -> None:
    """Through a file of this process's own beside ``path``: two that do the same work do not harm each other."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        try:
            write(file)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
