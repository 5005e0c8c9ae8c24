"""Models for tests, by ``tiny_models:factory``."""

from __future__ import annotations

from torch import nn


def with_everything(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Batch norm's running statistics and dropout's random numbers: what a checkpoint easily forgets."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(input_shape[0], 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(24, num_classes),
    )
