"""A backbone whose weights train: which of them, and the network that it makes with a classifier of its embeddings."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from ...errors import InputError, one_of
from ..wrap import Wrapped, wrap
from .backbone import Backbone
from .preprocessing import Preprocessing

PARTS = ("head", "norms", "last", "all")


class Fit(nn.Module):
    """Normalised images (B, 3, H, W) as the squares that a backbone takes; what is such a square stays as it is."""

    def __init__(self, how: Preprocessing) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        size, old = self.how.size, (x.shape[2], x.shape[3])
        if old == (size, size):
            return x
        shape = self.how.shape(*old)
        top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
        resized = interpolate(x, shape, mode=self.how.resample, antialias=True)
        return resized[:, :, top : top + size, left : left + size]


def tuned(backbone: Backbone, classifier: Any, part: str) -> Wrapped:
    """The two as one network, in which ``part`` of the backbone may train besides the classifier.

    Args:
        part: ``"norms"``, biases and the parameters of normalisation layers; ``"last"``, the last of the network's
            blocks and what follows it; ``"all"``.
    """
    one_of("part of a backbone to train", part, PARTS[1:])
    backbone.check_trainable()
    network = backbone.network
    free = {"norms": _norms, "last": _last, "all": lambda n: list(n.parameters())}[part](network)
    if not free:
        raise InputError(f"backbone {backbone.name!r} has neither biases nor normalisation layers: --train last or all")
    network.requires_grad_(False)
    for p in free:
        p.requires_grad_(True)
    return joined(backbone, classifier)


def joined(backbone: Backbone, classifier: Any) -> Wrapped:
    """Normalised images to logits: the classifier of the backbone's embeddings."""
    return wrap(nn.Sequential(Fit(backbone.preprocessing), backbone, classifier), head=classifier.head)


def _norms(network: nn.Module) -> list[nn.Parameter]:
    return [
        p
        for module in network.modules()
        for name, p in module.named_parameters(recurse=False)
        if name.endswith("bias") or "Norm" in type(module).__name__
    ]


def _last(network: nn.Module) -> list[nn.Parameter]:
    """The last part of the largest list of parts that the network has, and what is registered after it."""
    lists: list[nn.Module] = [
        m for m in network.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(_parts(m)) > 1
    ]
    largest = max(lists or [network], key=lambda m: sum(p.numel() for p in m.parameters()))
    begins = next(_parts(largest)[-1].parameters()) if _parts(largest) else None
    every = list(network.parameters())
    return every[next((i for i, p in enumerate(every) if p is begins), 0) :]


def _parts(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if any(True for _ in child.parameters())]
