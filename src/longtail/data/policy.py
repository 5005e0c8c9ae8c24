"""AutoAugment's CIFAR policy (Cubuk et al. 2019) and RandAugment (Cubuk et al. 2020) on whole uint8 batches.

Every operation gives, pixel for pixel, what Pillow's does (geometry: up to rounding at pixel borders), but works on
all samples that drew it at once. ``level`` in [0, 1] is the strength, ``sign`` ±1 the direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d

Draw = dict[str, Tensor]  # random numbers for some samples: tensors with a row each
GREY = 128  # what geometry fills the empty corners with


def _affine(x: Tensor, cells: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """Nearest pixel at A · (column + ½, row + ½, 1), the *input* place of each output pixel: A (n, 2, 3) is the
    identity but for some ``cells``."""
    n, C, H, W = x.shape
    rows = torch.eye(2, 3, device=x.device).repeat(n, 1, 1)
    for (i, j), value in cells.items():
        rows[:, i, j] = value
    at = torch.stack(
        torch.broadcast_tensors(
            torch.arange(W, device=x.device) + 0.5,
            (torch.arange(H, device=x.device) + 0.5)[:, None],
            torch.ones((), device=x.device),
        )
    ).view(3, H * W)
    column, row = (rows @ at).floor().long().unbind(1)
    inside = (column >= 0) & (column < W) & (row >= 0) & (row < H)
    place = row.clamp(0, H - 1) * W + column.clamp(0, W - 1)
    taken = x.view(n, C, H * W).gather(2, place[:, None].expand(n, C, H * W))
    return taken.masked_fill(~inside[:, None], GREY).view(n, C, H, W)


def shear_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _affine(x, {(0, 1): 0.3 * level * sign})


def shear_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _affine(x, {(1, 0): 0.3 * level * sign})


def translate_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _affine(x, {(0, 2): 150 / 331 * x.shape[3] * level * sign})


def translate_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _affine(x, {(1, 2): 150 / 331 * x.shape[2] * level * sign})


def rotate(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Up to 30 degrees about the middle, anticlockwise for sign +1."""
    angle = math.pi / 6 * level * sign
    cos, sin, cx, cy = angle.cos(), angle.sin(), x.shape[3] / 2, x.shape[2] / 2
    turn = {(0, 0): cos, (0, 1): -sin, (1, 0): sin, (1, 1): cos}
    return _affine(x, {**turn, (0, 2): cx - cos * cx + sin * cy, (1, 2): cy - sin * cx - cos * cy})


def _grey(x: Tensor) -> Tensor:
    r, g, b = x.int().unbind(1)
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16)[:, None].float()


def _blend(base: Tensor, x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """From ``base`` through ``x`` and beyond: factor 0.1 … 1.9."""
    factor = (1 + 0.9 * level * sign).float().view(-1, 1, 1, 1)
    return (base + factor * (x.float() - base)).clamp(0, 255).to(torch.uint8)


def brightness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _blend(torch.zeros((), device=x.device), x, level, sign)


def color(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _blend(_grey(x), x, level, sign)


def contrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _blend((_grey(x).mean((1, 2, 3), keepdim=True) + 0.5).floor(), x, level, sign)


def sharpness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    kernel = torch.ones((3, 3), device=x.device)
    kernel[1, 1] = 5
    smooth, C = x.float(), x.shape[1]
    inner = conv2d(smooth, (kernel / 13).expand(C, 1, 3, 3), groups=C)
    smooth[:, :, 1:-1, 1:-1] = (inner + 0.5).floor()  # the border has no neighbours to smooth with
    return _blend(smooth, x, level, sign)


def invert(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return 255 - x


def posterize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Keep the 8 … 4 highest bits."""
    unit = 2 ** (4 * level).round().int().view(-1, 1, 1, 1)
    return (x.int() // unit * unit).to(torch.uint8)


def solarize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Invert what is at least as bright as a threshold of 256 … 0."""
    return torch.where(x.float() < (256 * (1 - level)).float().view(-1, 1, 1, 1), x, 255 - x)


def autocontrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    low, high = (end.double() for end in x.flatten(2).aminmax(dim=2, keepdim=True))
    scale = torch.full_like(high, 255) / (high - low).clamp(min=1)  # `255 / tensor` would round twice
    stretched = (x.flatten(2) * scale - low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, x.flatten(2)).view_as(x)


def equalize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Each channel's values spread so that its histogram is flat."""
    flat = x.flatten(0, 1).flatten(1).long()
    histogram = torch.zeros((len(flat), 256), dtype=torch.long, device=x.device)
    histogram.scatter_add_(1, flat, torch.ones_like(flat))
    last = histogram.gather(1, flat.amax(1, keepdim=True))
    step = (flat.shape[1] - last) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(torch.uint8).view_as(x)


Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
OPERATIONS: tuple[Operation, ...] = (
    shear_x, shear_y, translate_x, translate_y, rotate, brightness, color, contrast, sharpness,
    posterize, solarize, autocontrast, equalize, invert,
)  # fmt: skip
NOTHING = len(OPERATIONS)

# (operation, probability, level of 9) twice: the 25 sub-policies that were found for CIFAR-10.
CIFAR_POLICY: tuple[tuple[tuple[Operation, float, int], tuple[Operation, float, int]], ...] = (
    ((invert, 0.1, 7), (contrast, 0.2, 6)),
    ((rotate, 0.7, 2), (translate_x, 0.3, 9)),
    ((sharpness, 0.8, 1), (sharpness, 0.9, 3)),
    ((shear_y, 0.5, 8), (translate_y, 0.7, 9)),
    ((autocontrast, 0.5, 8), (equalize, 0.9, 2)),
    ((shear_y, 0.2, 7), (posterize, 0.3, 7)),
    ((color, 0.4, 3), (brightness, 0.6, 7)),
    ((sharpness, 0.3, 9), (brightness, 0.7, 9)),
    ((equalize, 0.6, 5), (equalize, 0.5, 1)),
    ((contrast, 0.6, 7), (sharpness, 0.6, 5)),
    ((color, 0.7, 7), (translate_x, 0.5, 8)),
    ((equalize, 0.3, 7), (autocontrast, 0.4, 8)),
    ((translate_y, 0.4, 3), (sharpness, 0.2, 6)),
    ((brightness, 0.9, 6), (color, 0.2, 8)),
    ((solarize, 0.5, 2), (invert, 0.0, 3)),
    ((equalize, 0.2, 0), (autocontrast, 0.6, 0)),
    ((equalize, 0.2, 8), (equalize, 0.6, 4)),
    ((color, 0.9, 9), (equalize, 0.6, 6)),
    ((autocontrast, 0.8, 4), (solarize, 0.2, 8)),
    ((brightness, 0.1, 3), (color, 0.7, 0)),
    ((solarize, 0.4, 5), (autocontrast, 0.9, 3)),
    ((translate_y, 0.9, 9), (translate_y, 0.7, 9)),
    ((autocontrast, 0.9, 2), (solarize, 0.8, 3)),
    ((equalize, 0.8, 8), (invert, 0.1, 3)),
    ((translate_y, 0.7, 9), (autocontrast, 0.9, 1)),
)


class _Operations:
    """Applies drawn operations, slot after slot, each to all the samples that drew it."""

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        x = x.clone()
        for slot in range(draw["operation"].shape[1]):
            chosen, level, sign = (draw[key][:, slot] for key in ("operation", "level", "sign"))
            for code, operation in enumerate(OPERATIONS):
                mine = (chosen == code).nonzero().flatten()
                if len(mine):
                    x[mine] = operation(x[mine], level[mine], sign[mine])
        return x


class AutoAugment(_Operations):
    """One of 25 sub-policies for each sample: two operations, each with its own probability and strength."""

    def __init__(self) -> None:
        code = {operation: i for i, operation in enumerate(OPERATIONS)}
        self.code = torch.tensor([[code[step[0]] for step in pair] for pair in CIFAR_POLICY])
        self.chance = torch.tensor([[step[1] for step in pair] for pair in CIFAR_POLICY])
        self.level = torch.tensor([[step[2] / 9 for step in pair] for pair in CIFAR_POLICY])

    def draw(self, n: int, generator: Generator) -> Draw:
        which = torch.randint(0, len(CIFAR_POLICY), (n,), generator=generator)
        happens = torch.rand((n, 2), generator=generator) < self.chance[which]
        sign = torch.randint(0, 2, (n, 2), generator=generator) * 2 - 1
        operation = torch.where(happens, self.code[which], NOTHING)
        return {"operation": operation, "level": self.level[which], "sign": sign}


class RandAugment(_Operations):
    """Two operations drawn uniformly (doing nothing is one of them, inverting none), all of one strength."""

    def draw(self, n: int, generator: Generator) -> Draw:
        operation = torch.randint(0, NOTHING, (n, 2), generator=generator)
        operation[operation == OPERATIONS.index(invert)] = NOTHING
        sign = torch.randint(0, 2, (n, 2), generator=generator) * 2 - 1
        return {"operation": operation, "level": torch.full((n, 2), 0.3), "sign": sign}
