"""What every backbone is, whichever library it comes from."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...plugins import brief
from .preprocessing import Preprocessing


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
        try:
            with torch.no_grad():
                z = self.network(blank)
        except Exception as error:  # the network is somebody else's
            raise InputError(f"backbone {name!r} cannot take images of {preprocessing.size}: {brief(error)}") from error
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
