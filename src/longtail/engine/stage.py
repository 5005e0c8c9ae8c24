"""A stage of training: what it trains of a model, how weights decay, in which precision, and the averages of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.loader import Batch
from ..errors import InputError, RunError
from ..losses.base import Objective, Outputs
from ..models.heads import CosineHead
from ..models.pretrained import Backbone

Trains = Literal["all", "head", "scale"]


class Trained(nn.Module):
    """A model as one stage sees it: all of it, its head on frozen embeddings, or one factor a class on a frozen head.

    What does not train is frozen and stays in evaluation mode, batch norm included.
    """

    def __init__(self, model: nn.Module, trains: Trains, free: Collection[nn.Parameter], needs_logits: bool) -> None:
        """``free`` are the parameters that may train at all: what the user froze stays frozen."""
        super().__init__()
        self.model, self.trains = model, trains
        self.scale: nn.Parameter | None = None
        head: Any = model.head
        # An objective on embeddings alone gives the head no gradient, and distribution would wait for one
        head_trains = trains == "head" or (trains == "all" and needs_logits)
        of_head = set(head.parameters())
        for p in model.parameters():
            p.requires_grad_(p in free and (head_trains if p in of_head else trains == "all"))
        if trains == "scale":
            if isinstance(head, CosineHead):
                raise InputError("a factor a class has no effect on a cosine head: it needs a linear one")
            self.scale = nn.Parameter(torch.ones_like(head.weight[:, 0]))

    def train(self, mode: bool = True) -> Trained:
        super().train(mode and self.trains == "all")
        return self

    def forward(self, x: Tensor) -> Outputs:
        model: Any = self.model
        if self.trains == "all":
            outputs: Outputs = model(x)
            return outputs
        with torch.no_grad():
            z = model.embed(x)
        logits = model.head(z)
        return Outputs(logits if self.scale is None else logits * self.scale, z)

    @torch.no_grad()
    def fold(self) -> None:
        """Multiply the learnt factors into the head, which then is an ordinary one."""
        if self.scale is not None:
            head: Any = self.model.head
            head.weight.mul_(self.scale[:, None])
            if head.bias is not None:
                head.bias.mul_(self.scale)


def needs_logits(objective: Objective) -> bool:
    """Whether any term of the objective that counts reads logits."""
    return any("logits" in term.needs for weight, term in objective.weighted if weight)


def parameter_groups(model: nn.Module, weight_decay: float, backbone_lr: float | None = None) -> list[dict[str, Any]]:
    """Groups for ``SGD``: weights (two dimensions or more) decay; biases and batch norm do not.
    ``share`` is what a group's learning rate is multiplied with: ``backbone_lr`` for parameters of a `Backbone`.

    Frozen parameters are left out, and so is a group that is empty.
    """
    of_backbone = {p for m in model.modules() if isinstance(m, Backbone) for p in m.parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for p in model.parameters():
        if p.requires_grad:
            groups.setdefault((p in of_backbone, p.ndim <= 1), []).append(p)
    share = 1.0 if backbone_lr is None else backbone_lr
    return [
        {"params": groups[key], "weight_decay": 0.0 if key[1] else weight_decay, "share": share if key[0] else 1.0}
        for key in sorted(groups)
    ]


def convolves(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Conv2d) for m in model.modules())


def choose_precision(asked: str, model: nn.Module, device: torch.device) -> Literal["fp32", "bf16"]:
    """What was asked for; ``"auto"`` is bf16 where the network convolves and the processor has instructions for it."""
    helps = asked == "auto" and convolves(model) and has_bf16(device)
    return "bf16" if helps or asked == "bf16" else "fp32"


def has_bf16(device: torch.device) -> bool:
    """Whether the processor computes in bf16 itself; where it is emulated, a step takes ten times as long."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)
    return False


def fitting(state: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """A tensor of a checkpoint that has the shape and the type it should have."""

    def shown(tensor: Tensor | None) -> str:
        return "none" if tensor is None else f"{str(tensor.dtype)[6:]} of shape {tuple(tensor.shape)}"

    found = state.get(name)
    if found is None or (found.shape, found.dtype) != (like.shape, like.dtype):
        raise RunError(f"the checkpoint does not fit this run: {name} is {shown(like)}, and it holds {shown(found)}")
    return found


@torch.no_grad()
def restore(live: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Overwrite tensors by those of a checkpoint."""
    for name, tensor in live.items():
        tensor.copy_(fitting(state, name, tensor))


class Average:
    """An exponential moving average of the trained parameters, not of buffers.

    The decay grows as (1 + t)/(10 + t) up to ``decay``, so that a short run is not held back by its first weights.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), [p.detach() for p in self.live.values()], weight)

    @torch.no_grad()
    def write(self) -> None:
        """Make the average the model's weights."""
        for name, p in self.live.items():
            p.copy_(self.values[name])

    @torch.no_grad()
    def outputs(self, net: nn.Module, x: Tensor) -> Outputs:
        """What the net, in the mode it is in, says with the average as its weights; its buffers stay as they are."""
        buffers = {name: b.clone() for name, b in net.named_buffers()}
        said: Outputs = torch.func.functional_call(net, {**self.values, **buffers}, (x,))
        return said


@torch.no_grad()
def renew_statistics(net: nn.Module, batches: Iterable[Batch]) -> None:
    """Give averaged weights batch-norm statistics of their own: the mean over one pass of training batches.

    Those of the live network belong to other weights. Averaging them as well would need them in every checkpoint, and
    they would still be statistics of other weights.
    """
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # all batches count alike
    for batch in batches:
        net(batch.inputs)
    for m, momentum in zip(norms, momenta):
        m.momentum = momentum


def derive(seed: int, *where: int) -> int:
    """A seed for one place of a run, from the run's seed: 63 bits of a hash.

    >>> derive(0, 1, 2) == derive(0, 1, 2) != derive(0, 2, 1)
    True
    """
    digest = hashlib.sha256(repr((seed, *where)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
