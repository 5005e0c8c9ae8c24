"""Any classifier ``nn.Module`` as one that returns ``Outputs``: the input of its last linear layer is the embedding."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..losses import Outputs
from .heads import CosineHead

_LINEAR = (nn.Linear, CosineHead)


def wrap(module: nn.Module, head: nn.Module | str | None = None) -> Wrapped:
    """Make a classifier return ``Outputs(logits, embeddings)``.

    Args:
        module: any network whose output is that of a linear layer: a tensor (B, C), or an object with ``.logits``. The
            layer may also see a whole sequence (B, T, K) of which the output is one position's, as in the sequence
            classifiers of decoders (GPT-2, Llama): that position's input is the embedding.
        head: that layer, or its name in ``module.named_modules()``; by default the ``nn.Linear`` registered last.

    That the layer's output is the model's is verified at the first call: nothing (a softmax, a sum) may come after it.

    >>> net = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> logits, embeddings = net(torch.randn(5, 4))
    >>> tuple(logits.shape), tuple(embeddings.shape), net.embedding_size
    ((5, 3), (5, 8), 8)
    """
    if isinstance(module, Wrapped):
        return module
    if not isinstance(module, nn.Module):
        raise InputError(f"wrap takes a torch.nn.Module, got {type(module).__name__}")
    return Wrapped(module, _find(module, head))


def _find(module: nn.Module, head: nn.Module | str | None) -> str:
    linear: dict[str, nn.Module] = {name: m for name, m in module.named_modules() if isinstance(m, _LINEAR)}
    kind = type(module).__name__
    if head is None:
        if not linear:
            raise InputError(
                f"{kind} has no linear layer (torch.nn.Linear), so its embedding cannot be found: end it with one"
            )
        return list(linear)[-1]
    if isinstance(head, str):
        if head not in linear:
            raise InputError(
                f"head must name a linear layer of {kind}: one of {', '.join(linear) or 'none'}; got {head!r}"
            )
        return head
    for name, m in linear.items():
        if m is head:
            return name
    raise InputError(
        f"head must be a linear layer inside {kind}, got {type(head).__name__}, which is not one of its modules"
    )


def set_submodule(module: nn.Module, name: str, child: nn.Module) -> None:
    """Put ``child`` in the place that ``name`` has in ``module.named_modules()``, as torch 2.5 and later can."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, child)


class Wrapped(nn.Module):
    """What ``wrap`` returns; ``module`` is the network as it was given, and its parameters are prefixed ``module.``."""

    def __init__(self, module: nn.Module, head_name: str) -> None:
        super().__init__()
        self.module = module
        self.head_name = head_name
        self._seen: Tensor | None = None
        self._said: Tensor | None = None
        self._verified = False
        self._listen()

    def _listen(self) -> None:
        # A bound method, not a closure: it is copied and pickled along with the module.
        self._handle = self.head.register_forward_hook(self._notice)

    def _notice(self, head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # A copy as long as it is to be compared: what comes after may change the output in place
        self._seen, self._said = inputs[0], output if self._verified else output.detach().clone()

    def __getattr__(self, name: str) -> Any:
        if name == "head":
            return self.module.get_submodule(self.head_name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "head":
            super().__setattr__(name, value)
            return
        self._handle.remove()
        if self.head_name:
            set_submodule(self.module, self.head_name, value)
        else:
            self.module = value
        self._listen()

    @property
    def embedding_size(self) -> int:
        return cast(int, self.head.in_features)

    @property
    def num_classes(self) -> int:
        return cast(int, self.head.out_features)

    def embed(self, *args: Any, **kwargs: Any) -> Tensor:
        """The embeddings (B, K)."""
        return cast(Tensor, self(*args, **kwargs).embeddings)

    def forward(self, *args: Any, **kwargs: Any) -> Outputs:
        said = self.module(*args, **kwargs)
        logits = said if isinstance(said, Tensor) else getattr(said, "logits", None)
        # Let go of both: a kept tensor would keep the whole graph of the batch alive.
        embeddings, heard = self._seen, self._said
        self._seen = self._said = None
        if embeddings is not None and embeddings.ndim == 3 and isinstance(logits, Tensor) and logits.ndim == 2:
            embeddings, heard = _position(logits, embeddings, cast(Tensor, heard))
        if not self._verified:
            self._verify(said, logits, embeddings, heard)
        return Outputs(logits, embeddings)

    def _verify(self, said: Any, logits: Any, embeddings: Tensor | None, heard: Tensor | None) -> None:
        kind, name = type(self.module).__name__, self.head_name or "itself"
        hint = "pass wrap(module, head=…) the linear layer that makes its logits"
        if not isinstance(logits, Tensor):
            raise InputError(
                f"{kind} returns {type(said).__name__}: wrap needs a tensor of logits (B, C) or an object with .logits"
            )
        if embeddings is None or heard is None:
            raise InputError(f"{kind} did not use its linear layer {name!r} in this call: {hint}")
        if embeddings.ndim != 2:
            raise InputError(
                f"the linear layer {name!r} of {kind} sees inputs of shape {tuple(embeddings.shape)}, and the output "
                f"is no single position of them: {hint}, or a module that pools before that layer"
            )
        # Comparing values cannot be compiled; the first eager call does it.
        same = logits.shape == heard.shape
        if not torch.compiler.is_compiling():
            same = same and torch.allclose(logits, heard.to(logits.dtype), rtol=0, atol=0, equal_nan=True)
            self._verified = same
        if not same:
            raise InputError(
                f"the output of {kind} is not that of its linear layer {name!r} (a softmax after it?): {hint}"
            )


def _position(logits: Tensor, embeddings: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Of a sequence (B, T, K) and what the layer said of it (B, T, C), the position whose logits the model returned."""
    if heard.shape[0] != logits.shape[0] or heard.shape[2:] != logits.shape[1:]:
        return embeddings, heard
    at = (heard.detach().to(logits.dtype) == logits.detach()[:, None]).sum(-1).argmax(1)
    rows = torch.arange(len(at), device=at.device)
    return embeddings[rows, at], heard[rows, at]
