"""Class-balanced CutMix: a rectangle of another image, of a class drawn evenly, is pasted over half of the samples.

Yun et al., CutMix, 2019; Park et al., The majority can help the minority, 2022 (foregrounds from the rare classes).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from .augment import rectangles
from .policy import Draw
from .samplers import ByClass

CHANCE = 0.5


def draw(labels: Tensor, by_class: ByClass, generator: Generator) -> Draw:
    """For background samples of these labels: foreground samples, the share that stays, the place, and who is mixed.

    The foreground's class is drawn evenly among all, then a member of it; the share λ that the background keeps is
    uniform, which is Beta(1, 1). Two images of one class are not mixed: their label would not show it.
    """
    n = len(labels)
    foreground = by_class.draw((by_class.n > 0).double(), n, generator)
    share, centre = torch.rand(n, generator=generator), torch.rand((n, 2), generator=generator)
    other = by_class.label[foreground] != labels
    return {
        "foreground": foreground,
        "share": share,
        "centre": centre,
        "mixed": (torch.rand(n, generator=generator) < CHANCE) & other,
    }


def paste(inputs: Tensor, foreground: Tensor, labels: Tensor, others: Tensor, num_classes: int, drawn: Draw) -> Tensor:
    """Paste ``foreground`` (M, …) into the mixed rows of ``inputs`` (B, …), in place; returns labels as shares (B, C).

    The rectangle has sides √(1 − λ) of the image's, is centred anywhere and clipped at the border; the label's share is
    that of the pixels that are left.
    """
    rows = drawn["mixed"].nonzero().flatten()
    sides = torch.tensor(inputs.shape[2:])
    half = (1 - drawn["share"][rows]).sqrt()[:, None] * sides / 2
    middle = drawn["centre"][rows] * sides
    hole = rectangles((middle - half).round(), (middle + half).round(), inputs.shape[2:])
    kept = 1 - hole.flatten(1).float().mean(1)
    device = inputs.device
    at_rows = rows.to(device)
    inputs[at_rows] = torch.where(hole[:, None].to(device), foreground, inputs[at_rows])
    targets = torch.nn.functional.one_hot(labels, num_classes).float()
    mixture = torch.nn.functional.one_hot(others, num_classes).float()
    kept = kept[:, None].to(device)
    targets[at_rows] = kept * targets[at_rows] + (1 - kept) * mixture
    return targets
