"""What every backbone is, whichever library it comes from: as it embeds, faster, and as its weights train."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from ... import plugins
from ...errors import InputError, one_of
from ..wrap import Wrapped, set_submodule, wrap
from .preprocessing import Preprocessing

PARTS = ("head", "norms", "last", "all")


class Backbone(nn.Module):
    """Normalised images (B, 3, S, S) to embeddings (B, K).

    It stays in evaluation mode while its weights train: few images are no ground to renew running statistics on.

    Attributes:
        name: what `load` was called with.
        network: the network, whose output is the embedding.
        preprocessing: how its images are prepared.
        embedding_size: K.
    """

    def __init__(
        self, name: str, network: nn.Module, preprocessing: Preprocessing, weights_digest: str | None = None
    ) -> None:
        super().__init__()
        self.name, self.network, self.preprocessing = name, network.eval(), preprocessing
        self._weights_digest = weights_digest
        blank = torch.zeros(2, 3, preprocessing.size, preprocessing.size)
        with plugins.foreign(f"backbone {name!r} cannot take images of {preprocessing.size}"), torch.no_grad():
            z = self.network(blank)
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != 2:
            what = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(f"backbone {name!r} must give embeddings (B, K), and gives {what} for B = 2")
        self.embedding_size = z.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.network(x)
        return z

    def train(self, mode: bool = True) -> Backbone:
        return super().train(False)

    @functools.cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any weight."""
        if self._weights_digest is not None:
            return self._weights_digest
        found = hashlib.sha256(type(self.network).__name__.encode())
        for name, value in sorted(self.network.state_dict().items()):
            found.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """Plain data that says which backbone this is: a cache's key, and what a run's config keeps."""
        return {
            "name": self.name,
            "digest": self.digest,
            "embedding_size": self.embedding_size,
            "preprocessing": self.preprocessing.to_dict(),
        }

    def check_trainable(self) -> None:
        """Refuse a network whose weights torch does not have."""
        if not any(True for _ in self.network.parameters()):
            raise InputError(f"backbone {self.name!r} has no weights that torch could train: use --train head")


@torch.no_grad()
def folded(network: nn.Module, images: Tensor) -> nn.Module:
    """A copy whose convolutions have taken over the scale and shift of the batch norms that follow them.

    What follows what is seen by running the network on ``images``. Where there is nothing to fold, or the copy would
    say something else of them (a convolution's output may be used elsewhere too), it is the network itself.
    """
    pairs = _pairs(network, images)
    if not pairs:
        return network
    made = copy.deepcopy(network)
    for conv, norm in pairs:
        one: Any = nn.utils.fuse_conv_bn_eval(made.get_submodule(conv), made.get_submodule(norm))  # type: ignore[type-var,arg-type]
        set_submodule(made, conv, one)
        set_submodule(made, norm, nn.Identity())
    before, after = network(images), made(images)
    close = torch.allclose(before, after, rtol=1e-3, atol=1e-4 * float(before.abs().max()))
    return made if close else network


def _pairs(network: nn.Module, images: Tensor) -> list[tuple[str, str]]:
    """Names of convolutions, each used once, and of the batch norms that are given their outputs."""
    outputs: list[tuple[Tensor, str]] = []  # kept, so that none is mistaken for another at its place in memory
    inputs: list[tuple[Tensor, str]] = []

    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and not module.training:
            hooks.append(
                module.register_forward_hook(lambda _, given, output, name=name: outputs.append((output, name)))
            )
        elif isinstance(module, nn.BatchNorm2d) and not module.training and module.running_mean is not None:
            hooks.append(module.register_forward_pre_hook(lambda _, given, name=name: inputs.append((given[0], name))))
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
    calls = Counter(name for _, name in (*outputs, *inputs))
    return [(c, n) for x, n in inputs for y, c in outputs if x is y and calls[c] == calls[n] == 1]


class Fit(nn.Module):
    """Normalised images (B, 3, H, W) as the squares that a backbone takes; what is such a square stays as it is."""

    def __init__(self, how: Preprocessing) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[2] == x.shape[3] == self.how.size else self.how.squares(x)


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
