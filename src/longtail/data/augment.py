"""Augmentation of whole batches as tensor operations, in two steps: draw random numbers, then apply them.

Drawing is apart from applying so that one global batch can be drawn for, cut over ranks or workers, and come out
the same whatever the cut.

The names are the same for all image data. A name is a cut, and what follows it, joined by ``+``:

========================  ==============================================================================================
``none``                  the image as in evaluation
``crop``                  the window shifted by up to an eighth of its side, black where the image ends
``crop-flip``             the same, mirrored with probability ½
``resized-crop:0.5``      a random part of 50 to 100 % of the area, sides 3:4 to 4:3, resized; without a number 8 %
``resized-crop-flip``     the same, mirrored with probability ½
``autoaugment``           after it: AutoAugment's policy for CIFAR
``randaugment``           after it: two random operations
``cutout``                after it: a square of half the side takes the mean colour
``cutmix``                after all: half of the samples get a rectangle of another image, its class drawn evenly, and
                          its share of the label; in the first 90 % of the epochs, ``cutmix:0.8`` in the first 80 %
========================  ==============================================================================================

Without a cut, as in ``autoaugment+cutout``, the cut is ``crop-flip``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from ..errors import InputError, one_of, unknown
from .dataset import Split
from .images import Box
from .policy import AutoAugment, Draw, RandAugment

CUTS = ("none", "crop", "crop-flip", "resized-crop", "resized-crop-flip")
POLICIES = ("autoaugment", "randaugment", "cutout")
ATTEMPTS = 10


@dataclass(frozen=True)
class Augmentation:
    """What a name stands for; ``str()`` of it is the name in full.

    >>> parse("autoaugment+cutout"), str(parse("resized-crop"))
    (Augmentation(cut='crop-flip', policies=('autoaugment', 'cutout'), least=0.08, cutmix=0.0), 'resized-crop:0.08')
    """

    cut: str
    policies: tuple[str, ...] = ()
    least: float = 0.08
    cutmix: float = 0.0  # the share of epochs with it

    @property
    def flip(self) -> bool:
        return self.cut.endswith("-flip")

    def __str__(self) -> str:
        cut = f"{self.cut}:{self.least:g}" if self.cut.startswith("resized") else self.cut
        return "+".join((cut, *self.policies, *([f"cutmix:{self.cutmix:g}"] if self.cutmix else [])))

    def sentence(self) -> str:
        """What is done to training images, in words."""
        cuts = {
            "none": "are taken as in evaluation",
            "crop": "are cut from a window shifted by up to an eighth of its side",
            "resized-crop": f"are random parts of {self.least:.0%} to 100% of the area, resized",
        }
        mirror = "mirrored half of the time" if self.flip else "not mirrored"
        after = "".join(f", then {name}" for name in self.policies)
        if self.cutmix:
            after += f", then class-balanced CutMix of half of them in the first {self.cutmix:.0%} of the epochs"
        return f"Training images {cuts[self.cut.removesuffix('-flip')]}, {mirror}{after} (augment {self})."


def parse(name: str) -> Augmentation:
    """The augmentation of images that a name stands for."""
    first, *rest = str(name).split("+")
    word, colon, number = first.partition(":")
    if word not in CUTS:
        word, colon, number, rest = "crop-flip", "", "", [first, *rest]
    least = _share(first, number if word.startswith("resized") else "") if colon else 0.08
    cutmix = 0.0
    if rest and rest[-1].partition(":")[0] == "cutmix":
        last = rest.pop()
        cutmix = _share(last, last.partition(":")[2]) if ":" in last else 0.9
    for part in rest:
        if part not in POLICIES:
            raise unknown("augmentation of images", part, ("auto", *CUTS, *POLICIES, "cutmix", "autoaugment+cutout"))
    return Augmentation(word, tuple(rest), least, cutmix)


def _share(part: str, number: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InputError(
            f"augmentation {part!r}: resized-crop and cutmix take a number, a share in (0, 1], others none"
        )
    return share


def of_images(name: str, split: Split) -> Augmentation:
    """The same for a split; ``auto`` is its own, or crop-flip of images in memory, or resized-crop-flip of files."""
    if name == "auto":
        name = split.augment
    if name == "auto":
        name = "resized-crop-flip" if split.kind == "files" else "crop-flip"
    found = parse(name)
    channels = split.input_shape[0]
    for policy in ("autoaugment", "randaugment"):
        if policy in found.policies and channels != 3:
            raise InputError(f"{policy} needs images of 3 channels, got {channels}")
    return found


def stored_name(name: str, split: Split) -> str:
    """The name as a run's config holds it: what ``auto`` stands for in somebody's own data, and numbers spelt out."""
    how = of_images(name, split)
    if name == "auto":
        return split.augment
    return str(how) if how.cut.startswith("resized") or how.cutmix else name


class Step(Protocol):
    def draw(self, n: int, generator: Generator) -> Draw:
        """Random numbers for ``n`` samples: tensors with ``n`` rows."""
        ...

    def apply(self, x: Tensor, draw: Draw) -> Tensor: ...


class Normalise:
    """uint8 pixels (B, C, H, W) to float32: ``(x/255 − mean)/std`` by channel, or x/255 without mean and deviation."""

    def __init__(self, split: Split, device: torch.device, channels_last: bool) -> None:
        channels = split.input_shape[0]
        mean = torch.tensor(split.mean if split.mean is not None else (0.0,) * channels, device=device)
        std = torch.tensor(split.std if split.std is not None else (1.0,) * channels, device=device)
        self.scale, self.shift = (1 / (255 * std)).view(-1, 1, 1), (-mean / std).view(-1, 1, 1)
        self.format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.to(torch.float32, memory_format=self.format).mul_(self.scale).add_(self.shift)


class Crop:
    """A window of the image's size, shifted by 0 … 2·``margin`` of an image padded by ``margin`` on every side."""

    def __init__(self, margin: int, flip: bool) -> None:
        self.margin, self.flip = margin, flip

    def draw(self, n: int, generator: Generator) -> Draw:
        draw = {"shift": torch.randint(0, 2 * self.margin + 1, (n, 2), generator=generator)}
        return draw | _flips(self.flip, n, generator)


class TensorCrop(Crop):
    """`Crop` of images in memory.

    This is how a batch is taken out of the data set, not something done to it afterwards: construction pads (and
    mirrors) everything once (3.1 times the memory of 32-pixel images), and ``take`` only copies bytes.
    """

    def __init__(self, images: Tensor, margin: int = 4, flip: bool = True) -> None:
        super().__init__(margin, flip)
        self.n, self.C, self.H, self.W = images.shape
        padded = pad(images, (margin,) * 4)
        self.h, self.w = padded.shape[2:]
        flat = (torch.cat((padded, padded.flip(3))) if flip else padded).flatten()
        # A window is C·H runs of W adjacent bytes: rows of a view that has one starting at every byte.
        self.runs = flat.as_strided((flat.numel() - self.W + 1, self.W), (1, 1))
        rows = torch.arange(self.C)[:, None] * (self.h * self.w) + torch.arange(self.H) * self.w
        self.rows = rows.flatten().to(images.device)

    def take(self, ids: Tensor, draw: Draw) -> Tensor:
        """Windows of the images at ``ids``; the window is cut from the mirrored image where ``flip`` is 1."""
        image = ids + self.n * draw["flip"] if self.flip else ids
        corner = image * (self.C * self.h * self.w) + draw["shift"][:, 0] * self.w + draw["shift"][:, 1]
        starts = (corner[:, None] + self.rows).flatten()
        return self.runs.index_select(0, starts).view(-1, self.C, self.H, self.W)


class ResizedCrop:
    """A random part (``least`` to 100 % of the area, sides 3:4 to 4:3), resized to the size of the image or square."""

    def __init__(self, least: float = 0.08, flip: bool = True) -> None:
        self.least, self.flip = least, flip

    def draw(self, n: int, generator: Generator) -> Draw:
        share, shape = (torch.rand((n, ATTEMPTS), generator=generator, dtype=torch.float64) for _ in range(2))
        draw = {
            "area": share * (1 - self.least) + self.least,
            "ratio": (4 / 3) ** (shape * 2 - 1),
            "place": torch.rand((n, 2), generator=generator, dtype=torch.float64),
        }
        return draw | _flips(self.flip, n, generator)

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


def _flips(flip: bool, n: int, generator: Generator) -> Draw:
    return {"flip": torch.randint(0, 2, (n,), generator=generator)} if flip else {}


def rectangles(low: Tensor, high: Tensor, sides: Sequence[int]) -> Tensor:
    """Masks (n, H, W) of the pixels from ``low`` (n, 2) up to ``high`` (n, 2), rows and columns; clipped at the
    border."""
    rows, columns = (torch.arange(side, device=low.device) for side in sides)
    inside_rows = (rows >= low[:, :1]) & (rows < high[:, :1])
    inside_columns = (columns >= low[:, 1:]) & (columns < high[:, 1:])
    return inside_rows[:, :, None] & inside_columns[:, None, :]


class Cutout:
    """A square of ``size`` pixels, centred anywhere and clipped at the border, takes the data set's mean colour."""

    def __init__(self, size: int, fill: Sequence[int]) -> None:
        self.size = size
        self.fill = fill

    def draw(self, n: int, generator: Generator) -> Draw:
        return {"centre": torch.rand((n, 2), generator=generator)}

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        low = (draw["centre"] * torch.tensor(x.shape[2:], device=x.device)).long() - self.size // 2
        hole = rectangles(low, low + self.size, x.shape[2:])
        return torch.where(hole[:, None], torch.tensor(self.fill, dtype=x.dtype, device=x.device).view(1, -1, 1, 1), x)


class Noise:
    """Gaussian noise, ``scale`` (K,) times a standard normal: what views of features differ by."""

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale

    def draw(self, n: int, generator: Generator) -> Draw:
        return {"noise": torch.randn((n, *self.scale.shape), generator=generator)}

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        return x + draw["noise"] * self.scale.to(x.device)


def steps_for_images(policies: Sequence[str], shape: Sequence[int], mean: Sequence[float] | None) -> list[Step]:
    """What follows the cut, on uint8 images of ``shape`` (C, H, W)."""
    fill = [round(255 * m) for m in mean] if mean is not None else [0] * shape[0]
    makers: dict[str, Callable[[], Step]] = {
        "autoaugment": AutoAugment,
        "randaugment": RandAugment,
        "cutout": lambda: Cutout(shape[1] // 2, fill),
    }
    return [makers[name]() for name in policies]


def steps_for_features(name: str, inputs: Tensor, views: int) -> list[Step]:
    """Noise of a tenth of each feature's deviation where there are several views or it is asked for."""
    one_of("augmentation of features", name, ("auto", "none", "noise"))
    if name == "none" or (name == "auto" and views == 1):
        return []
    return [Noise(0.1 * inputs.float().std(0, correction=0))]
