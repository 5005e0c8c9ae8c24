"""The estimator's network, and its data as the engine takes it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..data.dataset import Split
from ..engine.forward import outputs
from ..evaluate.predictions import Part, Predictions
from ..models import CosineHead, Standardise
from ..models.standardise import NORM
from ..plan import Plan
from . import inputs

# Chosen on the validation part of CIFAR100-LT features, as the defaults of the estimator were.
COSINE_SCALE = 16.0


def build(plan: Plan, features: int, c: int, hidden: tuple[int, ...]) -> nn.Module:
    """Hidden layers beside their own input, under a cosine head unless the method works on a linear one."""
    module = models.build("mlp", c, (features,), head=plan.head, hidden=hidden, skip=True)
    for layer in module.layers:  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear):
            # Fan-out, so that hidden layers are as long as the input (‖x‖ ≈ 2), however few features it has; and
            # kinks spread over the data, where with biases of 0 they would all pass through its centre.
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.normal_(layer.bias, std=NORM * math.sqrt(2 / layer.out_features))
    of_the_head = plan.head_bias is not None or any(p.kind == "tau-norm" for p in plan.posthoc)
    of_the_head |= any(s.trains == "scale" for s in plan.stages)
    if plan.head == "linear" and hidden and not of_the_head:
        module.head = CosineHead(int(module.embedding_size), c, scale=COSINE_SCALE)  # type: ignore[arg-type]
    return module


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
