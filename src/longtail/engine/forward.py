"""Forward passes: what a model says of a whole split, without gradients, in float32 whatever it was trained in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import numeric
from ..data.dataset import Split
from ..data.loader import Loader


def outputs(model: nn.Module, split: Split, device: torch.device, workers: int = 0) -> tuple[Tensor, Tensor]:
    """Logits (N, C) and embeddings (N, K) of all samples of a split in order, on the CPU."""
    found = [
        (out.logits.float().cpu(), out.embeddings.float().cpu()) for out, _ in _pass(model, split, device, workers)
    ]
    logits, embeddings = zip(*found)
    return torch.cat(logits), torch.cat(embeddings)


def margins_of(model: nn.Module, split: Split, device: torch.device, workers: int = 0) -> dict[str, Tensor]:
    """The predicted class and the margin ``f_y − max_{y'≠y} f_y'`` of every sample (N,), without keeping its logits."""
    predicted: list[Tensor] = []
    margins: list[Tensor] = []
    for out, labels in _pass(model, split, device, workers):
        logits = out.logits.float()
        predicted.append(logits.argmax(1).cpu())
        margins.append(numeric.logit_margins(logits, labels).cpu())
    return {"predicted": torch.cat(predicted), "margins": torch.cat(margins)}


def _pass(model: nn.Module, split: Split, device: torch.device, workers: int) -> Iterator[tuple[Any, Tensor]]:
    """What the model, in evaluation mode, says of each batch of a split in order, and the batch's labels; afterwards
    every module is in the mode it was in."""
    at_a_time = 125 if device.type == "cpu" else 500  # what stays in a processor's cache, or keeps an accelerator busy
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            for batch in Loader(split, at_a_time, train=False, device=device, workers=workers).epoch(0):
                yield model(batch.inputs), batch.labels
    finally:
        for module, mode in modes.items():
            module.training = mode


def class_means(model: nn.Module, split: Split, num_classes: int, device: torch.device, workers: int = 0) -> Tensor:
    """The mean embedding of each class (C, K), summed in float64; 0 for a class without samples."""
    _, x = outputs(model, split, device, workers)
    return numeric.class_means(x, split.labels, num_classes)[0].to(device, x.dtype)
