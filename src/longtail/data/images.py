"""Decoding of images, only as large as needed, and the squares that are cut out of them."""

from __future__ import annotations

import functools
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ..errors import InputError
from ..models.pretrained.preprocessing import Preprocessing
from .limits import reason

Box = tuple[int, int, int, int]  # left, top, right, bottom
MOST_PIXELS = 150_000_000


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
    """Read the header; simplejpeg is used for JPEG where installed, and gives the pixels that Pillow gives.

    An image of more pixels than anybody's camera has is refused before it is decoded: a few bytes may claim gigabytes.
    """
    opened = (open_simplejpeg(data) if data[:2] == b"\xff\xd8" else None) or open_pillow(data)
    _check_size(opened.width, opened.height)
    return opened


@contextmanager
def readable(where: object) -> Iterator[None]:
    """Whatever goes wrong with the image at ``where`` becomes one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"there is no image {where}") from None
    except Exception as error:  # a broken image can make a decoder raise nearly anything
        raise InputError(f"{where} is no readable image: {reason(error)}") from None


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= MOST_PIXELS:
        size = f"{width:,} × {height:,} pixels"
        raise ValueError(f"it claims {size}, and at most {MOST_PIXELS:,} are decoded: store it smaller")


@functools.cache  # an import that fails is searched for anew each time
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except (ImportError, RuntimeError, OSError):
        return None
    return simplejpeg


def open_simplejpeg(data: bytes) -> Opened | None:
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


def _pillow(file: IO[bytes]) -> Any:
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is ours
        try:
            return Image.open(file)
        except Image.DecompressionBombError:
            raise ValueError(f"it claims more than {MOST_PIXELS:,} pixels, which are not decoded") from None


def open_pillow(data: bytes) -> Opened:
    image = _pillow(io.BytesIO(data))
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


def centre(image: Opened, how: Preprocessing, shift: tuple[int, int] = (0, 0)) -> Tensor:
    """The image resized and its middle square cut out: (3, S, S).

    ``shift`` moves the window down and to the right; where it leaves the image it is black.
    """
    size, shape = how.size, how.shape(image.height, image.width)
    reduce = reduction(min(image.width, image.height), how.needed)
    whole = resize(image.pixels(reduce), shape, how.resample)
    top, left = ((side - size) // 2 + by for side, by in zip(shape, shift))
    beyond = max(-top, -left, top + size - shape[0], left + size - shape[1], 0)
    if beyond:
        whole, top, left = pad(whole, (beyond,) * 4), top + beyond, left + beyond
    return whole[:, top : top + size, left : left + size]


def reduction(have: int, need: int) -> int:
    """The largest of 1, 2, 4, 8 that still leaves ``need`` of ``have`` pixels: the decoder then skips work."""
    return max(k for k in (1, 2, 4, 8) if k == 1 or have // k >= need)


def _scaled(box: Box, whole: tuple[int, int], decoded: tuple[int, int]) -> Box:
    """``box`` in the pixels of the decoded image, at least one of them."""
    x, y = decoded[0] / whole[0], decoded[1] / whole[1]
    left, top = int(box[0] * x), int(box[1] * y)
    return left, top, max(round(box[2] * x), left + 1), max(round(box[3] * y), top + 1)


def resize(pixels: np.ndarray | Tensor, shape: tuple[int, int], resample: str = "bilinear") -> Tensor:
    """(H, W, 3) of an array, (C, H, W) of a tensor, to (C, *shape), with antialiasing: within one grey level of
    Pillow's."""
    planes = pixels if isinstance(pixels, Tensor) else torch.from_numpy(pixels).permute(2, 0, 1)
    return interpolate(planes[None], shape, mode=resample, antialias=True)[0]


def image_size(file: IO[bytes]) -> tuple[int, int]:
    """Width and height, by the header."""
    size: tuple[int, int] = _pillow(file).size
    return size


def check_image(file: IO[bytes], thoroughly: bool = False) -> None:
    """Raise what reading it would raise: by its header and its end, or thoroughly by decoding it."""
    head = file.read(16)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 64, 0))
    doubtful = thoroughly or _cut_off(head, file.read(), size)
    file.seek(0)
    if doubtful:
        open_image(file.read()).pixels(1)
    else:
        _check_size(*image_size(file))


def _cut_off(head: bytes, tail: bytes, size: int) -> bool:
    """Whether a file may be truncated: it lacks the end that its format has, or has no known one."""
    ends = {b"\xff\xd8": b"\xff\xd9", b"\x89PNG": b"IEND\xaeB`\x82", b"GIF8": b";"}
    for start, end in ends.items():
        if head.startswith(start):
            return not tail.endswith(end)
    return not head.startswith(b"RIFF") or size < 8 + int.from_bytes(head[4:8], "little")
