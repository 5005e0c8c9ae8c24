"""From a decoded image to what a backbone takes: resize, cut the middle, normalise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ...errors import InputError, one_of, whole

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLING = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Preprocessing:
    """What a backbone was trained with.

    Attributes:
        size: side of the square that it takes.
        short: the short side is resized to this and the middle square of ``size`` is cut; None resizes the whole image
            to the square, whatever its shape.
        resample: ``"bilinear"`` or ``"bicubic"``, antialiased both.
        mean, std: by channel, of pixels in [0, 1].

    >>> Preprocessing().pixels(np.zeros((300, 400, 3), np.uint8)).shape
    torch.Size([3, 224, 224])
    """

    size: int = 224
    short: int | None = 256
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        one_of("resampling", self.resample, RESAMPLING)
        if self.size < 1 or (self.short is not None and self.short < self.size):
            raise InputError(f"an image resized to {self.short} pixels has no middle of {self.size}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise InputError(f"mean and std must be three numbers each, std above 0, got {self.mean} and {self.std}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, all fields."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessing:
        """From plain data; what is not there has its default."""
        names = [f.name for f in fields(cls)]
        for key in data:
            one_of("preprocessing field", key, names)
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        try:
            return cls(**given)
        except TypeError:  # a word where a number belongs
            raise InputError(f"a backbone's preprocessing cannot be {dict(data)!r}") from None

    def __str__(self) -> str:
        first = f"short side to {self.short}, middle" if self.short is not None else "resized to"
        return f"{first} {self.size}×{self.size}, {self.resample}"

    @property
    def needed(self) -> int:
        """Pixels of the short side beyond which a decoder may save itself the work."""
        return self.short or self.size

    def resized(self, size: int) -> Preprocessing:
        """The same for squares of another side.

        >>> Preprocessing().resized(112).short
        128
        """
        whole("size", size, at_least=1)
        return replace(self, size=size, short=None if self.short is None else round(self.short * size / self.size))

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """What an image is resized to before its middle is cut."""
        if self.short is None:
            return self.size, self.size
        least = min(height, width)
        return self.short * height // least, self.short * width // least

    def pixels(self, image: np.ndarray) -> Tensor:
        """Decoded pixels, uint8 (H, W, 3), as uint8 (3, size, size): what loading many images uses."""
        return self.squares(torch.from_numpy(image).permute(2, 0, 1)[None])[0]

    def squares(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) of one size, resized and cut: (B, 3, size, size)."""
        old = (images.shape[2], images.shape[3])
        shape = self.shape(*old)
        if shape != old:
            images = interpolate(images, shape, mode=self.resample, antialias=True)
        top, left = (shape[0] - self.size) // 2, (shape[1] - self.size) // 2
        return images[:, :, top : top + self.size, left : left + self.size]

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 (B, 3, S, S) as float32, by channel (x/255 − mean)/std."""
        scale = 1 / (255 * torch.tensor(self.std, device=pixels.device)).view(-1, 1, 1)
        shift = (torch.tensor(self.mean) / torch.tensor(self.std)).to(pixels.device).view(-1, 1, 1)
        return pixels.float().mul_(scale).sub_(shift)


class Prepare(nn.Module):
    """`Preprocessing` as part of a network: decoded pixels (B, H, W, 3), uint8 or float, of any size, in.

    Resizing is written as two products with matrices of interpolation weights, which every runtime computes alike; an
    exported model therefore sees the pixels that the original saw. Whole grey levels, as image libraries give them.
    """

    def __init__(self, how: Preprocessing) -> None:
        super().__init__()
        self.how = how
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(how.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(how.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[1], images.shape[2]
        h, w = torch.scalar_tensor(height, dtype=torch.float64), torch.scalar_tensor(width, dtype=torch.float64)
        size = torch.scalar_tensor(self.how.size, dtype=torch.float64)
        new_h, new_w = size, size
        if self.how.short is not None:
            least = torch.minimum(h, w)
            new_h, new_w = torch.floor(self.how.short * h / least), torch.floor(self.how.short * w / least)
        rows, columns = self._weights(height, h, new_h), self._weights(width, w, new_w)
        planes = images.permute(0, 3, 1, 2).float()
        pixels = (rows @ planes @ columns.T).clamp(0, 255).round()
        return (pixels / 255 - self.mean) / self.std

    def _weights(self, length: int, old: Tensor, new: Tensor) -> Tensor:
        """Weights (S, length) of the middle S of ``new`` pixels that ``length`` are resized to."""
        scale = old / new
        reach = torch.clamp(scale, min=1.0)  # a filter is stretched where pixels are merged
        first = torch.floor((new - self.how.size) / 2)
        middles = (torch.arange(self.how.size, dtype=torch.float64) + first + 0.5) * scale
        places = torch.arange(length, dtype=torch.float64) + 0.5
        x = ((places - middles[:, None]) / reach).abs()
        if self.how.resample == "bilinear":
            weights = (1 - x).clamp(min=0)
        else:  # Keys's cubic with a = −1/2, as Pillow and torch have it
            near = (1.5 * x - 2.5) * x * x + 1
            far = ((-0.5 * x + 2.5) * x - 4) * x + 2
            weights = torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
        return (weights / weights.sum(1, keepdim=True)).float()
