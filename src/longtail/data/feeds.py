"""Where a `Loader` gets its pixels from: a tensor in memory, or image files, by worker processes where asked for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import InputError
from .augment import (
    Augmentation,
    Crop,
    Normalise,
    ResizedCrop,
    Step,
    TensorCrop,
    of_images,
    steps_for_features,
    steps_for_images,
)
from .dataset import Files, Split
from .images import centre, open_image, readable, reduction, resize
from .policy import Draw

T = TypeVar("T")
Row = dict[str, Any]  # a draw as NumPy arrays, of several samples or one


class Job(NamedTuple):
    """What one process does for one batch: which samples, and the random numbers of each view (none in evaluation).

    Of a view the first draw is the cut's, if there is one; then one for each step.
    """

    ids: Tensor
    views: tuple[list[Draw], ...]


class Feed:
    """What both kinds of images share: how a sample is cut out of an image, and the steps that follow."""

    cut: Crop | ResizedCrop | None
    steps: list[Step]

    def __init__(self, split: Split, how: Augmentation) -> None:
        self.steps = steps_for_images(how.policies, split.input_shape, split.mean)
        if how.cut.startswith("resized"):
            self.cut = ResizedCrop(how.least, how.flip)
        else:
            # An eighth of the side is 4 of CIFAR's 32 pixels
            self.cut = None if how.cut == "none" else Crop(max(split.input_shape[1] // 8, 1), how.flip)

    def draw(self, n: int, generator: Generator) -> list[Draw]:
        cut = [self.cut.draw(n, generator)] if self.cut else []
        return cut + [step.draw(n, generator) for step in self.steps]


class TensorFeed(Feed):
    """In-memory data, held on the device: a batch is one selection and a few tensor operations."""

    def __init__(
        self, split: Split, augment: str, views: int, normalise: Normalise | None, device: torch.device
    ) -> None:
        assert isinstance(split.inputs, Tensor)
        self.normalise, self.device = normalise, device
        self.inputs = split.inputs.to(device)
        if split.kind == "images":
            super().__init__(split, of_images(augment, split))
            if isinstance(self.cut, Crop):
                self.cut = TensorCrop(self.inputs, self.cut.margin, self.cut.flip)
        else:
            self.cut, self.steps = None, steps_for_features(augment, split.inputs, views)

    def batches(self, jobs: Iterator[Job]) -> Iterator[tuple[Tensor, Tensor]]:
        for job in jobs:
            ids = job.ids.to(self.device, non_blocking=True)
            views = [self._view(ids, draws) for draws in job.views] or [self.inputs.index_select(0, ids)]
            x = views[0] if len(views) == 1 else torch.cat(views)
            yield job.ids, self.normalise(x) if self.normalise else x.float()

    def _view(self, ids: Tensor, draws: list[Draw]) -> Tensor:
        here = [{key: value.to(self.device, non_blocking=True) for key, value in draw.items()} for draw in draws]
        if isinstance(self.cut, TensorCrop):
            x = self.cut.take(ids, here.pop(0))
        else:
            x = self.inputs.index_select(0, ids)
            if self.cut is not None:
                x = _resized(x, draws[0])
                here.pop(0)
        for step, draw in zip(self.steps, here):
            x = step.apply(x, draw)
        return x


def _resized(x: Tensor, draw: Draw) -> Tensor:
    """`ResizedCrop` of images (B, C, H, W) in memory."""
    height, width = x.shape[2:]
    rows = []
    for k, image in enumerate(x):
        box = ResizedCrop.box(width, height, *(draw[key][k].numpy() for key in ("area", "ratio", "place")))
        left, top, right, bottom = box
        row = resize(image[:, top:bottom, left:right], (height, width))
        rows.append(row.flip(2) if "flip" in draw and draw["flip"][k] else row)
    return torch.stack(rows)


class Reader:
    """Runs in the workers: a job as NumPy arrays, which travel by value, in, uint8 pixels (views · B, 3, S, S) out."""

    def __init__(self, files: Files, cut: Crop | ResizedCrop | None = None, steps: Sequence[Step] = ()) -> None:
        self.files, self.cut, self.steps = files, cut, steps

    def __call__(self, job: tuple[np.ndarray, list[list[Row]]]) -> tuple[np.ndarray, Tensor]:
        ids, views = job
        S, B = self.files.size, len(ids)
        out = torch.empty((max(len(views), 1) * B, 3, S, S), dtype=torch.uint8)
        for k, i in enumerate(ids):
            rows = [{key: value[k] for key, value in draws[0].items()} if self.cut else {} for draws in views]
            for v, square in enumerate(self.read(int(i), rows)):
                out[v * B + k] = square
        for view, draws in zip(out.split(B), views):
            x = view
            for step, draw in zip(self.steps, draws[1:] if self.cut else draws):
                x = step.apply(x, {key: torch.from_numpy(value) for key, value in draw.items()})
            if self.steps:
                view.copy_(x)
        return ids, out

    def read(self, i: int, rows: list[Row]) -> list[Tensor]:
        """Sample ``i`` as (3, S, S): as in evaluation, or one for each of the rows drawn for its views."""
        S, how = self.files.size, self.files.how
        with readable(self.files.where(i)):
            image = open_image(self.files.read(i))
            if not rows or self.cut is None:
                return [centre(image, how)] * max(len(rows), 1)
            if isinstance(self.cut, Crop):
                shifts = [row["shift"] - self.cut.margin for row in rows]
                squares = [centre(image, how, (int(down), int(right))) for down, right in shifts]
            else:
                boxes = [self.cut.box(image.width, image.height, r["area"], r["ratio"], r["place"]) for r in rows]
                reduce = reduction(min(min(right - left, bottom - top) for left, top, right, bottom in boxes), S)
                squares = [resize(image.pixels(reduce, box), (S, S), how.resample) for box in boxes]
            return [square.flip(2) if row.get("flip") else square for square, row in zip(squares, rows)]


class FileFeed(Feed):
    """Feeds a `Loader` from files, with ``workers`` processes or in this one."""

    def __init__(self, split: Split, augment: str, normalise: Normalise, device: torch.device, workers: int) -> None:
        assert isinstance(split.inputs, Files)
        super().__init__(split, of_images(augment, split))
        self.reader = Reader(split.inputs, self.cut, self.steps)
        self.normalise, self.device, self.workers = normalise, device, workers

    def batches(self, jobs: Iterator[Job]) -> Iterator[tuple[Tensor, Tensor]]:
        plain = ((job.ids.numpy(), [_numpy(draws) for draws in job.views]) for job in jobs)
        for ids, pixels in results(self.reader, plain, self.workers):
            yield torch.from_numpy(ids), self.normalise(pixels.to(self.device, non_blocking=True))


def _numpy(draws: list[Draw]) -> list[Row]:
    return [{key: value.numpy() for key, value in draw.items()} for draw in draws]


def results(read: Callable[[Any], T], jobs: Iterable[Any], workers: int) -> Iterator[T]:
    """What ``read`` makes of each job, in order, by ``workers`` processes or in this one.

    The processes end at once where the caller breaks out or fails.
    """
    if workers == 0:
        yield from map(read, jobs)
        return
    from torch.utils.data import DataLoader

    # The jobs are the "sampler": made here, in order, so that nothing depends on which worker does what.
    answers: Any = _Answers(read)
    yield from map(_said, DataLoader(
        answers, batch_size=None, sampler=jobs, num_workers=workers, collate_fn=_unchanged,
        worker_init_fn=_leave_signals_alone,
    ))  # fmt: skip


class _Answers:
    """What `DataLoader` indexes by jobs. A mistake comes back as it is: raised in a worker it would be a traceback."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __getitem__(self, job: Any) -> Any:
        try:
            return self.read(job)
        except InputError as error:
            return error


def _said(answer: Any) -> Any:
    if isinstance(answer, InputError):
        raise answer
    return answer


def _leave_signals_alone(worker: int) -> None:
    """A signal to the whole group (Ctrl-C, a scheduler's SIGTERM) is for the main process, which still needs us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _unchanged(result: Any) -> Any:
    return result
