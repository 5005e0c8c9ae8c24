"""Image files: decoded only as large as needed, cropped, resized, by worker processes where asked for."""

from __future__ import annotations

import functools
import io
import math
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from ..errors import InputError
from .augment import Draw, Normalise
from .dataset import Files

Box = tuple[int, int, int, int]  # left, top, right, bottom
ATTEMPTS = 10


class Pixels(Protocol):
    def __call__(self, reduce: int, box: Box | None = None) -> np.ndarray: ...


class Opened(NamedTuple):
    """An image whose header has been read.

    ``pixels(reduce, box)`` decodes it at 1/1, 1/2, 1/4 or 1/8 of its size and gives the part in ``box`` (in pixels of
    the whole image; None is all of it) as (H, W, 3). Several boxes of one image cost one decoding.
    """

    width: int
    height: int
    pixels: Pixels


def open_image(data: bytes) -> Opened:
    """Read the header; simplejpeg is used for JPEG where installed, and gives the pixels that Pillow gives."""
    return (_open_simplejpeg(data) if data[:2] == b"\xff\xd8" else None) or _open_pillow(data)


@functools.cache  # an import that fails is searched for anew each time
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except (ImportError, RuntimeError, OSError):
        return None
    return simplejpeg


def _open_simplejpeg(data: bytes) -> Opened | None:
    simplejpeg = _simplejpeg()
    if simplejpeg is None:
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None  # let Pillow say what is wrong with it
    if colours in ("CMYK", "YCCK"):
        return None

    @functools.cache
    def decoded(reduce: int) -> np.ndarray:
        least = {"min_height": -(-height // reduce), "min_width": -(-width // reduce)} if reduce > 1 else {}
        array: np.ndarray = simplejpeg.decode_jpeg(data, **least)
        return array

    def pixels(reduce: int, box: Box | None = None) -> np.ndarray:
        whole = decoded(reduce)
        if box is None:
            return whole
        left, top, right, bottom = _scaled(box, (width, height), (whole.shape[1], whole.shape[0]))
        return whole[top:bottom, left:right]

    return Opened(width, height, pixels)


def _open_pillow(data: bytes) -> Opened:
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    width, height = image.size

    def pixels(reduce: int, box: Box | None = None) -> np.ndarray:
        if reduce > 1:
            image.draft(None, (width // reduce, height // reduce))  # other formats than JPEG ignore it
        part: Any = image if box is None else image.crop(_scaled(box, (width, height), image.size))
        if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
            # Pillow's own conversion of 16 bits makes everything above 255 white
            grey = (np.array(part) >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, 2)
        if image.mode in ("I", "F"):
            raise ValueError("its pixels have 32 bits, whose range is unknown: store 8 or 16")
        return np.array(part if part.mode == "RGB" else part.convert("RGB"))

    return Opened(width, height, pixels)


class ResizedCrop:
    """A random part (8 to 100 % of the area, sides 3:4 to 4:3), resized to a square, mirrored with probability ½."""

    def draw(self, n: int, generator: Generator) -> Draw:
        return {
            "area": torch.rand((n, ATTEMPTS), generator=generator, dtype=torch.float64) * 0.92 + 0.08,
            "ratio": (4 / 3) ** (torch.rand((n, ATTEMPTS), generator=generator, dtype=torch.float64) * 2 - 1),
            "place": torch.rand((n, 2), generator=generator, dtype=torch.float64),
            "flip": torch.randint(0, 2, (n,), generator=generator),
        }

    @staticmethod
    def box(width: int, height: int, area: np.ndarray, ratio: np.ndarray, place: np.ndarray) -> Box:
        """The first attempt that fits into the image; the largest admissible centre if none does."""
        for share, shape in zip(area, ratio):
            w, h = round(math.sqrt(width * height * share * shape)), round(math.sqrt(width * height * share / shape))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(place[0] * (width - w + 1)), int(place[1] * (height - h + 1))
                return left, top, left + w, top + h
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h


class ReadJob(NamedTuple):
    """A `Job` as NumPy arrays, which travel to a worker by value; ``views`` is empty for evaluation."""

    ids: np.ndarray
    views: tuple[dict[str, np.ndarray], ...]


class Reader:
    """Runs in the workers: a job in, uint8 pixels (views · B, 3, S, S) out, or the sentence that says what is wrong."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __getitem__(self, job: ReadJob) -> tuple[np.ndarray, Tensor | str]:
        S, B = self.files.size, len(job.ids)
        out = torch.empty((max(len(job.views), 1) * B, 3, S, S), dtype=torch.uint8)
        for k, i in enumerate(job.ids):
            try:
                for v, square in enumerate(self.read(int(i), job, k)):
                    out[v * B + k] = square
            except InputError as error:
                return job.ids, str(error)
        return job.ids, out

    def read(self, i: int, job: ReadJob, k: int) -> list[Tensor]:
        """The views of sample ``i``, which is row ``k`` of the job."""
        S = self.files.size
        try:
            image = open_image(self.files[i].read_bytes())
            if not job.views:
                return [centre(image, S)]
            size = image.width, image.height
            boxes = [ResizedCrop.box(*size, v["area"][k], v["ratio"][k], v["place"][k]) for v in job.views]
            reduce = _reduction(min(min(right - left, bottom - top) for left, top, right, bottom in boxes), S)
            squares = [_resize(image.pixels(reduce, box), (S, S)) for box in boxes]
            return [square.flip(2) if v["flip"][k] else square for square, v in zip(squares, job.views)]
        except FileNotFoundError:
            raise InputError(f"there is no image {self.files.where(i)}") from None
        except Exception as error:  # a broken image can make a decoder raise nearly anything
            raise InputError(f"{self.files.where(i)} is no readable image: {reason(error)}") from None


def centre(image: Opened, size: int) -> Tensor:
    """Short side resized to ``size · 256/224``, the middle ``size`` × ``size`` of it: (3, S, S)."""
    short = min(image.width, image.height)
    target = round(size * 256 / 224)
    scale = target / short
    shape = (max(round(image.height * scale), size), max(round(image.width * scale), size))
    whole = _resize(image.pixels(_reduction(short, target)), shape)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return whole[:, top : top + size, left : left + size]


def _reduction(have: int, need: int) -> int:
    """The largest of 1, 2, 4, 8 that still leaves ``need`` of ``have`` pixels: the decoder then skips work."""
    return max(k for k in (1, 2, 4, 8) if k == 1 or have // k >= need)


def _scaled(box: Box, whole: tuple[int, int], decoded: tuple[int, int]) -> Box:
    """``box`` in the pixels of the decoded image, at least one of them."""
    x, y = decoded[0] / whole[0], decoded[1] / whole[1]
    left, top = int(box[0] * x), int(box[1] * y)
    return left, top, max(round(box[2] * x), left + 1), max(round(box[3] * y), top + 1)


def _resize(pixels: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """(H, W, 3) to (3, *shape), bilinear with antialiasing: within one grey level of Pillow's."""
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return interpolate(planes, shape, mode="bilinear", antialias=True)[0]


def reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class FileFeed:
    """Feeds a `Loader` from files, with ``workers`` processes or in this one."""

    def __init__(self, files: Files, normalise: Normalise, device: torch.device, workers: int) -> None:
        self.reader = Reader(files)
        self.normalise, self.device, self.workers = normalise, device, workers

    def draw(self, n: int, generator: Generator) -> list[Draw]:
        return [ResizedCrop().draw(n, generator)]

    def batches(self, jobs: Iterator[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        plain = (ReadJob(job.ids.numpy(), tuple(_numpy(draws[0]) for draws in job.views)) for job in jobs)
        results = self._results(plain)
        try:
            for ids, pixels in results:
                if isinstance(pixels, str):
                    raise InputError(pixels)
                yield torch.from_numpy(ids), self.normalise(pixels.to(self.device, non_blocking=True))
        finally:
            del results  # ends the workers at once, also where the caller breaks out or fails

    def _results(self, jobs: Iterator[ReadJob]) -> Iterator[tuple[np.ndarray, Tensor | str]]:
        if self.workers == 0:
            return map(self.reader.__getitem__, jobs)
        from torch.utils.data import DataLoader

        # The jobs are the "sampler": made here, in order, so that nothing depends on which worker does what.
        reader: Any = self.reader  # has what DataLoader uses of a Dataset, but indexed by jobs
        loader: Any = DataLoader(
            reader, batch_size=None, sampler=jobs, num_workers=self.workers, collate_fn=_unchanged,
            worker_init_fn=_leave_signals_alone,
        )  # fmt: skip
        return iter(loader)


def _numpy(draw: Draw) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in draw.items()}


def _leave_signals_alone(worker: int) -> None:
    """A signal to the whole group (Ctrl-C, a scheduler's SIGTERM) is for the main process, which still needs us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _unchanged(result: Any) -> Any:
    return result
