"""The last layer, and what every model is: something that embeds, and a head on the embedding."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..errors import one_of
from ..losses import Outputs
from ..numeric import compute_dtype, unit_rows

HEADS = ("linear", "cosine", "scaled")
# Of a cosine head whose loss has no scale of its own; chosen on the validation part of CIFAR100-LT features.
SCALE = 16.0


class LinearHead(nn.Linear):
    """``f_y = w_y·Φ + b_y``: weight (C, K) drawn uniformly from ±1/√K as ``nn.Linear`` does, bias (C,) from 0."""

    def __init__(self, embedding_size: int, num_classes: int) -> None:
        super().__init__(embedding_size, num_classes)

    def reset_parameters(self) -> None:
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.bias)


class CosineHead(nn.Module):
    """``f_y = s·cos(w_y, Φ)``: weight (C, K), no bias.

    The scale s is 1 by default, since losses that need one (LDAM's s = 30) apply it themselves. An embedding or a
    weight of norm 0 has cosine 0 and a finite gradient. Computed in float32 at least: in bf16 a cosine times 30 is off
    by a tenth.

    >>> head = CosineHead(2, 3)
    >>> bool((head(torch.randn(4, 2)).abs() <= 1 + 1e-6).all()), head(torch.zeros(1, 2)).tolist()
    (True, [[0.0, 0.0, 0.0]])
    """

    bias: None

    def __init__(self, embedding_size: int, num_classes: int, scale: float = 1.0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale = embedding_size, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_classes, embedding_size))
        self.bias = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Directions drawn evenly over the sphere: a normal draw of unit norm on average."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(device_type=x.device.type, enabled=False):
            dtype = torch.promote_types(compute_dtype(x), self.weight.dtype)
            return linear(unit_rows(x.to(dtype)), self.scale * unit_rows(self.weight.to(dtype)))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, scale={self.scale:g}"


Head = LinearHead | CosineHead


def make_head(kind: str, embedding_size: int, num_classes: int) -> Head:
    """A head by name: ``"linear"``, ``"cosine"``, or ``"scaled"``, which is cosines times 16."""
    if one_of("head", kind, HEADS) == "linear":
        return LinearHead(embedding_size, num_classes)
    return CosineHead(embedding_size, num_classes, scale=SCALE if kind == "scaled" else 1.0)


class Classifier(nn.Module):
    """A network that returns ``Outputs(logits (B, C), embeddings (B, K))``.

    ``embed(x)`` gives the embeddings alone; ``head`` is the last layer, with ``weight`` (C, K) and ``bias`` (C,) or
    None; assigning to ``head`` replaces it, whatever its name among the parameters (``head_name``) is. ``own_head`` is
    the kind that suits the network best.
    """

    head_name = "head"
    own_head = "linear"
    embedding_size: int

    def embed(self, x: Tensor) -> Tensor:
        """The embeddings (B, K)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Outputs:
        z = self.embed(x)
        return Outputs(self.get_submodule(self.head_name)(z), z)

    def __getattr__(self, name: str) -> Any:
        if name == "head":
            name = type(self).head_name
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(type(self).head_name if name == "head" else name, value)

    @property
    def num_classes(self) -> int:
        return cast(int, self.head.out_features)


def he_init(model: nn.Module) -> None:
    """He et al.'s initialisation of convolutions (normal, fan-out), batch norm at 1 and 0; heads keep their own."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
