"""Multi-layer perceptrons: for digits, moons and frozen features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import whole
from .heads import Classifier, make_head
from .standardise import NORM


class MLP(Classifier):
    """Linear layers with ReLU after each, then the head; the last hidden layer, after its ReLU, is the embedding.

    ``hidden=()`` is a linear model, whose embedding is the (flattened) input itself. With ``skip`` the input stands
    beside the last hidden layer in the embedding, so the network is a linear model and a correction of it. Weights are
    He-normal (fan-in), biases start at ``bias``: narrow layers need it above 0, or their units die at birth. ``inputs``
    comes first and does nothing, until a ``Standardise`` takes its place.
    """

    def __init__(
        self,
        inputs: int,
        num_classes: int,
        hidden: Sequence[int] = (128, 64),
        head: str = "linear",
        bias: float = 0.0,
        skip: bool = False,
    ) -> None:
        super().__init__()
        hidden = [whole("a hidden size", size, 1) for size in hidden]
        layers: list[nn.Module] = []
        sizes = [inputs, *hidden]
        for a, b in itertools.pairwise(sizes):
            linear = nn.Linear(a, b)
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.constant_(linear.bias, bias)
            layers += [linear, nn.ReLU()]
        self.inputs: nn.Module = nn.Identity()
        self.layers = nn.Sequential(*layers)
        self.in_features = inputs
        self.skip = skip and len(hidden) > 0
        self.embedding_size = sizes[-1] + (inputs if self.skip else 0)
        self.head = make_head(head, self.embedding_size, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        x = self.inputs(x.flatten(1))
        z: Tensor = self.layers(x)
        return torch.cat((z, x), 1) if self.skip else z


class FeatureMLP(MLP):
    """An MLP for standardised features (‖x‖ ≈ 2), beside its own input: what the estimator and the recipe for features
    train."""

    own_head = "scaled"

    def __init__(self, inputs: int, num_classes: int, hidden: Sequence[int] = (256,), head: str = "linear") -> None:
        super().__init__(inputs, num_classes, hidden, head, skip=True)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                # Fan-out, so that hidden layers are as long as the input, however few features it has; and kinks spread
                # over the data, where with biases of 0 they would all pass through its centre.
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.normal_(layer.bias, std=NORM * math.sqrt(2 / layer.out_features))
