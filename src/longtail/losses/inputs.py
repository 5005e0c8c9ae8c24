"""What losses are given: a network's outputs, keys, and a batch or the batch of all ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import InputError
from ..numeric import compute_dtype, transformed


class Outputs(NamedTuple):
    """What a network says of a batch: logits (B, C) and the embeddings (B, K) that the last layer saw, None for what
    there is not. A term's ``values`` may rely on what the term says that it needs."""

    logits: Tensor | Any
    embeddings: Tensor | Any = None


class Features(NamedTuple):
    """Embeddings (M, K) with labels (M,) and, where they matter, sample ids (M,): the keys of a term."""

    embeddings: Tensor
    labels: Tensor
    ids: Tensor | None = None

    def after(self, batch: Features) -> Features:
        """One set of keys, the batch's samples first; all of them have ids."""
        mine = self.embeddings.to(batch.embeddings.dtype), self.labels, self.ids
        return Features(*(torch.cat([its, more]) for its, more in zip(batch, mine)))  # type: ignore[list-item]


def check_ids(what: str, ids: object, shape: torch.Size) -> None:
    """Ids are whole numbers, one a sample: fractions would be cut off where a memory stores them."""
    if not isinstance(ids, Tensor) or ids.shape != shape:
        got = str(tuple(ids.shape)) if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(f"{what} must be a tensor of one a sample, shape {tuple(shape)}, got {got}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"{what} must be whole numbers, got dtype {ids.dtype}")


def check_floats(what: str, x: object, shape: str, columns: int | None = None) -> None:
    """Dense floats in rows, of ``columns`` where given; ``shape`` is how a message writes it."""
    if isinstance(x, Tensor):
        if x.is_floating_point() and x.ndim == 2 and x.layout == torch.strided and columns in (None, x.shape[1]):
            return
        got = f"{'' if x.layout == torch.strided else 'sparse '}{x.dtype} of shape {tuple(x.shape)}"
    else:
        got = type(x).__name__
    raise InputError(f"{what} must be floats of shape {shape}, got {got}")


def check_labels(what: str, labels: Tensor, num_classes: int, soft: bool, ignored: int | None) -> None:
    """Class indices (B,), or where ``soft`` shares (B, C); ``ignored`` may stand for no class."""
    c = num_classes
    if not isinstance(labels, Tensor):
        raise InputError(f"{what} must be a tensor of class indices, got {type(labels).__name__}")
    if soft and labels.is_floating_point() and labels.ndim == 2:
        if labels.shape[1] != c:
            raise InputError(f"soft {what} must have shape (B, {c}), got {tuple(labels.shape)}")
        return
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{what} must be whole numbers (class indices), got dtype {labels.dtype}")
    if labels.ndim != 1:
        raise InputError(f"{what} must have shape (B,), got {tuple(labels.shape)}")
    # Looking at values on an accelerator would wait for it; there the kernel's own assertion speaks.
    if labels.device.type == "cpu" and labels.numel() and not (torch.compiler.is_compiling() or transformed()):
        labels = labels.long()  # not every integer type can be compared
        low, high = (int(v) for v in labels.aminmax())
        if low < 0 or high >= c:
            outside = (labels < 0) | (labels >= c)
            if ignored is not None:
                outside &= labels != ignored
            if bool(outside.any()):
                raise InputError(f"label {int(labels[outside][0])} in {what} is outside [0, {c})")


def indices(labels: Tensor) -> Tensor:
    """Labels that index: uint8 would be taken for a mask. Soft labels stay as they are."""
    return labels if labels.is_floating_point() else labels.long()


def check_device(what: str, x: Tensor, like: Tensor) -> None:
    """What is computed with one another is on one device, and has values."""
    if "meta" in (x.device.type, like.device.type):
        raise InputError(f"{what} or labels are meta tensors, which have no values to compute a loss of")
    if x.device != like.device:
        raise InputError(f"{what} are on {x.device}, but the batch is on {like.device}: move them to one device")


def check_size(embeddings: Tensor, remembered: Tensor) -> None:
    """Embeddings beside those of a memory have their size."""
    if (given := embeddings.shape[1]) != (size := remembered.shape[1]):
        raise InputError(f"the memory holds embeddings of size {size}, got some of size {given}")


class FixedDtype(nn.Module):
    """Buffers that ``.half()`` and ``.double()`` leave alone, as they do per-class values: only the device follows."""

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, kept in before.items():
            moved = self._buffers[name]
            if kept is not None and moved is not None and moved.dtype != kept.dtype:
                self._buffers[name] = kept.to(moved.device)
        return self


class _Widened(torch.autograd.Function):
    """float16 as float32, and a gradient that float16 cannot hold as its largest number instead of infinity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        most = torch.finfo(torch.float16).max
        return grad.clamp(-most, most).half()


def widened(x: Tensor) -> Tensor:
    """x in the dtype that losses are computed in."""
    if x.dtype == torch.float16:
        wide: Tensor = _Widened.apply(x)
        return wide
    return x.to(compute_dtype(x))


def full_precision(device_type: str) -> AbstractContextManager[None]:
    """A context without autocast; where there is none to switch off, one that costs nothing."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        ctx.rows = (world, rank * x.shape[0], x.shape[0])
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # Every rank computes the same global loss, so it already has the whole gradient of its own rows: nothing to
        # communicate. DDP divides by the number of ranks what must be a sum, hence the factor.
        world, start, rows = ctx.rows
        own: Tensor = grads[0][start : start + rows] * world
        return own


class Gathered:
    """A batch, and on demand the same batch of all ranks; without distribution the two are one.

    Ranks stand in their order and must hold the same number of rows each. The gradient that comes back from what was
    gathered is scaled by the number of ranks, since ``DistributedDataParallel`` averages.
    """

    def __init__(self, outputs: Any, labels: Tensor, ids: Tensor | None, distributed: bool) -> None:
        self.outputs, self.labels, self.ids = outputs, labels, ids
        ranks = dist.get_world_size() if distributed and dist.is_available() and dist.is_initialized() else 1
        self.distributed = ranks > 1
        self.soft = isinstance(labels, Tensor) and labels.is_floating_point() and labels.ndim == 2
        self._outputs: dict[str, Tensor | None] = {}

    def gather(self, x: Any) -> Any:
        """The rows of all ranks; None stays None."""
        return _Gather.apply(x) if self.distributed and x is not None else x

    @cached_property
    def all_labels(self) -> Tensor:
        labels: Tensor = self.gather(self.labels)
        return labels

    @cached_property
    def all_ids(self) -> Tensor | None:
        ids: Tensor | None = self.gather(self.ids)
        return ids

    @cached_property
    def _definite(self) -> Tensor:
        """Where soft labels name one class: the rows of all ranks."""
        return (self.all_labels.amax(1) == 1).nonzero().flatten()

    def own_rows(self, x: Tensor) -> Tensor:
        """This rank's rows of what was computed for ``everywhere``; 0 for samples that had no part in it."""
        if self.soft:
            x = x.new_zeros(len(self.all_labels)).index_copy(0, self._definite, x)
        rows = len(self.labels)
        return x if len(x) == rows else x[dist.get_rank() * rows :][:rows]

    def everywhere(self, needs: tuple[str, ...]) -> tuple[Outputs, Tensor, Tensor | None]:
        """The batch of all ranks with class indices for labels: of soft labels, the samples that have one class."""
        outputs, labels, ids = self.outputs, self.all_labels, self.all_ids
        if self.distributed and isinstance(outputs, tuple):
            for name, x in zip(Outputs._fields, outputs):
                if name in needs and name not in self._outputs:
                    self._outputs[name] = self.gather(x)
            outputs = Outputs(*(self._outputs[name] if name in needs else None for name in Outputs._fields))
        if not self.soft:
            return outputs, labels, ids
        # What is no batch of this length is left for the term to refuse
        taken = [
            x.index_select(0, self._definite) if isinstance(x, Tensor) and x.shape[:1] == labels.shape[:1] else x
            for x in (*outputs, ids)
        ]
        return Outputs(taken[0], taken[1]), labels.argmax(1).index_select(0, self._definite), taken[2]
