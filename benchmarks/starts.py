"""How much of the luck of training lies in the first weights: a ResNet-20 that starts the same, whatever the seed.

    longtail train logadj --model benchmarks.starts:resnet20 --seed 1 …

With it the seed decides the order of the batches and the augmentation alone.
"""

from __future__ import annotations

import torch
from torch import nn

from longtail import models


def resnet20(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.build("resnet20", num_classes, input_shape)
