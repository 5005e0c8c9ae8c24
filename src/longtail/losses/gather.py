"""One batch from all ranks, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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


def gather(x: Tensor) -> Tensor:
    """The rows of all ranks, in rank order; each rank must hold the same number of rows.

    The gradient that comes back is scaled by the number of ranks, since ``DistributedDataParallel`` averages.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x) if x.requires_grad else _Gather.forward(_NoContext(), x)
    return gathered


class _NoContext:
    rows: tuple[int, int, int]
