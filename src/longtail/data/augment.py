"""Augmentation of whole batches as tensor operations, in two steps: draw random numbers, then apply them.

Drawing is apart from applying so that one global batch can be drawn for, cut over ranks or workers, and come out
the same whatever the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from ..errors import InputError, unknown
from .dataset import Split

Draw = dict[str, Tensor]


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


class CropFlip:
    """Pad by ``pad`` black pixels, cut a window of the old size anywhere, mirror with probability ½.

    This is how a batch is taken out of the data set, not something done to it afterwards: construction pads and mirrors
    everything once (3.1 times the memory of 32-pixel images), and ``take`` only copies bytes.
    """

    def __init__(self, images: Tensor, margin: int = 4) -> None:
        self.n, self.C, self.H, self.W = images.shape
        self.margin = margin
        padded = pad(images, (margin,) * 4)
        self.h, self.w = padded.shape[2:]
        flat = torch.cat((padded, padded.flip(3))).flatten()
        # A window is C·H runs of W adjacent bytes: rows of a view that has one starting at every byte.
        self.runs = flat.as_strided((flat.numel() - self.W + 1, self.W), (1, 1))
        rows = torch.arange(self.C)[:, None] * (self.h * self.w) + torch.arange(self.H) * self.w
        self.rows = rows.flatten().to(images.device)

    def draw(self, n: int, generator: Generator) -> Draw:
        return {
            "shift": torch.randint(0, 2 * self.margin + 1, (n, 2), generator=generator),
            "flip": torch.randint(0, 2, (n,), generator=generator),
        }

    def take(self, ids: Tensor, draw: Draw) -> Tensor:
        """Windows of the images at ``ids``; the window is cut from the mirrored image where ``flip`` is 1."""
        image = ids + self.n * draw["flip"]
        corner = image * (self.C * self.h * self.w) + draw["shift"][:, 0] * self.w + draw["shift"][:, 1]
        starts = (corner[:, None] + self.rows).flatten()
        return self.runs.index_select(0, starts).view(-1, self.C, self.H, self.W)


class Cutout:
    """A square of ``size`` pixels, centred anywhere and clipped at the border, takes the data set's mean colour."""

    def __init__(self, size: int, fill: Sequence[int]) -> None:
        self.size = size
        self.fill = fill

    def draw(self, n: int, generator: Generator) -> Draw:
        return {"centre": torch.rand((n, 2), generator=generator)}

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        inside = []
        for axis, side in enumerate(x.shape[2:]):
            low = (draw["centre"][:, axis] * side).long() - self.size // 2
            at = torch.arange(side, device=x.device)
            inside.append((at >= low[:, None]) & (at < low[:, None] + self.size))
        hole = (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
        return torch.where(hole, torch.tensor(self.fill, dtype=x.dtype, device=x.device).view(1, -1, 1, 1), x)


class Noise:
    """Gaussian noise, ``scale`` (K,) times a standard normal: what views of features differ by."""

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale

    def draw(self, n: int, generator: Generator) -> Draw:
        return {"noise": torch.randn((n, *self.scale.shape), generator=generator)}

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        return x + draw["noise"] * self.scale.to(x.device)


def steps_for_images(name: str, shape: Sequence[int], mean: Sequence[float] | None) -> list[Step]:
    """What a name stands for beyond crop and flip, on uint8 images of ``shape`` (C, H, W).

    "autoaugment", "randaugment" and "cutout" can be joined, as in "autoaugment+cutout", and are applied in that order.
    """
    from .policy import AutoAugment, RandAugment  # which needs Draw from here

    steps: list[Step] = []
    for part in [] if name in ("auto", "crop-flip", "none") else name.split("+"):
        if part == "cutout":
            fill = [round(255 * m) for m in mean] if mean is not None else [0] * shape[0]
            steps.append(Cutout(shape[1] // 2, fill))
        elif part in ("autoaugment", "randaugment"):
            if shape[0] != 3:
                raise InputError(f"{part} needs images of 3 channels, got {shape[0]}")
            steps.append(AutoAugment() if part == "autoaugment" else RandAugment())
        else:
            valid = ("auto", "none", "crop-flip", "cutout", "autoaugment", "randaugment", "autoaugment+cutout")
            raise unknown("augmentation of images", part, valid)
    return steps


def steps_for_features(name: str, inputs: Tensor, views: int) -> list[Step]:
    """Noise of a tenth of each feature's deviation where there are several views or it is asked for."""
    if name not in ("auto", "none", "noise"):
        raise unknown("augmentation of features", name, ("auto", "none", "noise"))
    if name == "none" or (name == "auto" and views == 1):
        return []
    return [Noise(0.1 * inputs.float().std(0, correction=0))]
