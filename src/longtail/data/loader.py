"""Batches: the order and every random number are a pure function of (seed, epoch, batch)."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ..counts import ClassCounts
from ..errors import InputError, one_of, whole
from . import cutmix, samplers
from .augment import Normalise, of_images
from .dataset import Files, Split
from .feeds import FileFeed, Job, TensorFeed
from .policy import Draw


class Batch(NamedTuple):
    """``inputs`` float32, normalised, on the device; ``labels`` int64; ``ids`` int64, positions in the split.

    ``targets`` (B, C) are the labels as shares where samples are mixed, None where none is; a sample that is mixed
    has no share of 1.
    """

    inputs: Tensor
    labels: Tensor
    ids: Tensor
    targets: Tensor | None = None


class Loader:
    """Feeds a split, again and again, always the same way.

    ``loader.epoch(e)`` depends on ``seed`` and ``e`` alone: not on what was read before, nor on the number of
    workers. With ``world_size`` W, rank r gets the r-th slice of each global batch of ``W · batch_size`` samples, so
    2 × 64 sees what 1 × 128 sees.

    Args:
        train: shuffle and augment; otherwise all samples once, in order, by every rank.
        sampler: "instance", "balanced", "sqrt", "progressive" (needs ``epochs``) or "pairs".
        views: augmentations of each sample: inputs become [view 1 of all; view 2 of all], labels and ids repeat.
        augment: of images "none", "crop", "crop-flip", "resized-crop:0.5" and more, as `longtail.data.augment` lists
            them, or "auto": the split's own; of features "none" or "noise" ("auto": noise where there are views).
        workers: processes that read image files; in-memory data needs none.
        counts: only needed where the split lacks some of the classes.
        epochs: how many there will be: for "progressive", and for CutMix, which ends before they do.
        drop_last: whether an incomplete last batch is left out: by default in training, if there is another.

    >>> from longtail.data import load
    >>> loader = Loader(load("moons").train, 128, seed=1)
    >>> len(loader), next(loader.epoch(0)).inputs.shape
    (7, torch.Size([128, 2]))
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        seed: int = 0,
        train: bool = True,
        sampler: str = "instance",
        views: int = 1,
        augment: str = "auto",
        device: str | torch.device = "cpu",
        workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        counts: ClassCounts | None = None,
        epochs: int | None = None,
        channels_last: bool = False,
        drop_last: bool | None = None,
    ) -> None:
        for what, value, least in (
            ("batch_size", batch_size, 1), ("views", views, 1), ("workers", workers, 0), ("world_size", world_size, 1)
        ):  # fmt: skip
            whole(what, value, at_least=least)
        if not 0 <= rank < world_size:
            raise InputError(f"rank must be in [0, {world_size}), got {rank!r}")
        one_of("sampler", sampler, samplers.SAMPLERS)
        if sampler == "progressive":
            whole("epochs of the progressive sampler", epochs, at_least=1)
        self.split, self.seed, self.train = split, seed, train
        self.sampler, self.epochs = sampler, epochs
        self.views = views if train else 1
        self.rank, self.world_size = (rank, world_size) if train else (0, 1)
        self.device = torch.device(device)
        self.global_batch = batch_size * self.world_size
        if train and sampler == "pairs" and self.global_batch % 2:
            raise InputError(f"the pairs sampler needs an even batch size, got {self.global_batch}")
        self._by_class = samplers.ByClass(split.labels, counts.num_classes if counts is not None else 0)
        total = samplers.length(sampler, self._by_class) if train else len(split)
        if total == 0:
            raise InputError("there is no sample to load")
        if train and total < self.world_size:
            raise InputError(f"{total} samples cannot be cut over {self.world_size} ranks")
        drop = train and total > self.global_batch if drop_last is None else drop_last
        self._length = total // self.global_batch if drop else -(-total // self.global_batch)
        normalise = None if split.kind == "features" else Normalise(split, self.device, channels_last)
        name = augment if train else "none"
        self._mix_until = 0.0  # epochs
        if normalise is not None:
            share = of_images(name, split).cutmix
            self._mix_until = (math.inf if epochs is None else round(share * epochs)) if share else 0.0
            if share and views > 1:
                raise InputError(f"cutmix mixes labels, which a method with {views} views of a sample has no use for")
        self._feed: TensorFeed | FileFeed
        if isinstance(split.inputs, Files):
            assert normalise is not None
            self._feed = FileFeed(split, name, normalise, self.device, workers)
        else:
            self._feed = TensorFeed(split, name, self.views, normalise, self.device)

    def __len__(self) -> int:
        return self._length

    def epoch(self, e: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``e`` from batch ``start`` on."""
        mixes: deque[Draw | None] = deque()  # of jobs under way; batches come in the order of their jobs
        jobs = self._jobs(e, start, mixes)
        labels = self.split.labels.to(self.device)
        for ids, inputs in self._feed.batches(jobs):
            here = ids.to(self.device, non_blocking=True).repeat(self.views)
            drawn = mixes.popleft()
            if drawn is None:
                yield Batch(inputs, labels[here], here)
                continue
            n = len(drawn["mixed"])
            own, others = labels[here[:n]], labels[here[n:]]
            targets = cutmix.paste(inputs[:n], inputs[n:], own, others, len(self._by_class.n), drawn)
            yield Batch(inputs[:n], own, here[:n], targets)

    def order(self, e: int) -> Tensor:
        """Positions in the order in which epoch ``e`` visits them, over all ranks, before batches are cut."""
        if not self.train:
            return torch.arange(len(self.split))
        generator = self._generator(e, 0, "order")
        progress = min(e / max((self.epochs or 1) - 1, 1), 1.0)
        return samplers.order(self.sampler, self._by_class, progress, generator)

    def _jobs(self, e: int, start: int, mixes: deque[Draw | None]) -> Iterator[Job]:
        order = self.order(e)
        for b in range(start, len(self)):
            ids = order[b * self.global_batch : (b + 1) * self.global_batch]
            views = tuple(self._draws(len(ids), e, b, f"view {v}") for v in range(self.views if self.train else 0))
            if self.train and e < self._mix_until:
                yield self._mixed(ids, views, e, b, mixes)
            else:
                mixes.append(None)
                yield Job(self._mine(ids), views)

    def _draws(self, n: int, e: int, b: int, purpose: str) -> list[Draw]:
        """This rank's rows of what was drawn for a global batch of ``n``."""
        drawn = self._feed.draw(n, self._generator(e, b, purpose))
        return [{key: self._mine(value) for key, value in draw.items()} for draw in drawn]

    def _mixed(self, ids: Tensor, views: tuple[list[Draw], ...], e: int, b: int, mixes: deque[Draw | None]) -> Job:
        """A job whose last samples are to be pasted over those that are mixed."""
        drawn = cutmix.draw(self.split.labels[ids], self._by_class, self._generator(e, b, "cutmix"))
        drawn = {key: self._mine(value) for key, value in drawn.items()}
        mixes.append(drawn)
        mixed = drawn["mixed"]
        more = self._draws(len(ids), e, b, "cutmix view")
        together = [
            {key: torch.cat((draw[key], extra[key][mixed])) for key in draw} for draw, extra in zip(views[0], more)
        ]
        return Job(torch.cat((self._mine(ids), drawn["foreground"][mixed])), (together,))

    def _mine(self, rows: Tensor) -> Tensor:
        """This rank's slice of a global batch: equal ones of a whole batch, none empty in a smaller one."""
        return rows.tensor_split(self.world_size)[self.rank] if self.world_size > 1 else rows

    def _generator(self, epoch: int, batch: int, purpose: str) -> Generator:
        text = f"{self.seed}/{epoch}/{batch}/{purpose}".encode()
        return Generator().manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big"))
