"""The estimator's network, and its data as the engine takes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..data.dataset import Split
from ..engine.forward import outputs
from ..evaluate.predictions import Part, Predictions
from ..models import Standardise
from ..plan import Plan
from . import inputs


def build(plan: Plan, features: int, c: int, hidden: tuple[int, ...]) -> nn.Module:
    """The network that the recipe for features has, or with no hidden layers a linear model."""
    head = plan.needed_head if hidden else plan.head
    return models.build("mlp-features", c, (features,), head=head, hidden=hidden)


def split(layer: Standardise, x: Any, labels: Tensor) -> Split:
    dense = torch.cat(list(inputs.dense_blocks(x)))
    return Split(layer(dense).float(), labels, torch.arange(len(labels)))


def predictions(module: nn.Module, train: Split, val: Split | None) -> Predictions:
    def part(split: Split) -> Part:
        logits, embeddings = outputs(module, split, torch.device("cpu"))
        return Part(logits, split.labels, embeddings)

    head: Any = module.head
    return Predictions(
        train=part(train),
        val=None if val is None else part(val),
        head_weight=head.weight.detach(),
        head_bias=None if head.bias is None else head.bias.detach(),
    )
