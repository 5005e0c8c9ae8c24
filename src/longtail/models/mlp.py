"""Multi-layer perceptrons: for digits, moons and frozen features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..errors import InputError
from .heads import Classifier, make_head


class MLP(Classifier):
    """Linear layers with ReLU after each, then the head; the last hidden layer, after its ReLU, is the embedding.

    ``hidden=()`` is a linear model, whose embedding is the (flattened) input itself. Weights are He-normal (fan-in),
    biases start at ``bias``: small networks whose last layers are narrow need it above 0, or units die at birth.
    ``dropout`` acts on the input of every layer but the first.
    """

    def __init__(
        self,
        inputs: int,
        num_classes: int,
        hidden: Sequence[int] = (128, 64),
        head: str = "linear",
        dropout: float = 0.0,
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        if any(not isinstance(h, int) or isinstance(h, bool) or h < 1 for h in hidden):
            raise InputError(f"hidden sizes must be whole numbers of at least 1, got {tuple(hidden)}")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be in [0, 1), got {dropout}")
        layers: list[nn.Module] = []
        sizes = [inputs, *hidden]
        for a, b in itertools.pairwise(sizes):
            linear = nn.Linear(a, b)
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.constant_(linear.bias, bias)
            layers += [linear, nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers)
        self.embedding_size = sizes[-1]
        self.head = make_head(head, sizes[-1], num_classes)

    def embed(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x.flatten(1))
        return z


def mlp(num_classes: int, input_shape: Sequence[int], head: str = "linear", **options: float) -> MLP:
    """An MLP for inputs of any shape: they are flattened."""
    return MLP(math.prod(input_shape), num_classes, head=head, **options)  # type: ignore[arg-type]
