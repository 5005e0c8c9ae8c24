"""Squared distances where labels agree: the work under ``Pull`` and ``HardPull``.

Most pairs of a long-tailed batch have different labels and count for nothing. On the CPU, rows are grouped by label,
groups of like size are padded to one width and multiplied together in pieces that stay in the cache; where a few
classes fill the batch one dense product is cheaper, and a rough price decides. On other devices the dense product is
always taken: grouping needs the group sizes on the host, and waiting for them would cost more than it saves.

Distances come from a Gram matrix of embeddings relative to one key of their own class. That key is itself a positive of
(nearly) every anchor of the class, so what cancels is never large beside the value, however far the class lies from the
origin, and identical embeddings have distance and gradient exactly 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..numeric import transformed, uncompiled
from .inputs import Features, full_precision
from .pairs import pair

# Stands for log 0. Finite, so that no difference of two of them is NaN; its exponential is 0 all the same.
FLOOR = -1e30
# A piece of work of this many bytes stays in the cache, and its memory is reused instead of mapped anew.
PIECE = 1 << 21
# Prices in nanoseconds of a forward and a backward pass on one CPU core, fitted to measurements (batches of 128 × 64 to
# 1024 × 2048): a multiply-add, what else there is to do for a pair, moving a number, and a block.
MAC, PAIR, MOVE, BLOCK = 0.045, 6.0, 2.0, 2.4e5


class _Block(NamedTuple):
    """G groups of at most a anchors and k keys each. Row indices are flat, (G·a,) and (G·k,); ``write`` indices send
    the padding to one row past the end. None for indices means all rows in their own order (the dense block)."""

    mask: Tensor  # (G, a, k): the pairs that count
    anchors: Tensor | None = None
    write_anchors: Tensor | None = None
    keys: Tensor | None = None
    write_keys: Tensor | None = None


class _Dense(NamedTuple):
    """One block of everything; the row of ``keys`` that each anchor and each key is taken relative to."""

    block: _Block
    anchor_origin: Tensor
    key_origin: Tensor


@uncompiled  # which groups there are depends on data: not for a compiler
def log_sum(
    x: Tensor,
    labels: Tensor,
    ids: Tensor | None = None,
    keys: Features | None = None,
    hard: bool = False,
    scale: Tensor | None = None,
) -> Tensor:
    """``log Σ exp(s·‖x_i − z_j‖²)`` over the keys z_j of x_i's label but not of its id; ``hard``: the largest s·‖·‖².

    Without keys the batch is its own, and without ids a row is excluded by its position. An anchor with no positive
    gets ``FLOOR`` and no gradient. x (B, K) in float32 or float64, labels (B,); the result is (B,). The scale s ≥ 0 is
    a tensor of one number, 1 by default, and takes a gradient like the embeddings.
    """
    ids, keys = _comparable(ids, keys)
    if transformed():
        return _plain(x, None if keys is None else keys.embeddings, scale, labels, ids, keys, hard)
    if keys is not None and keys.labels.numel() == 0:
        return x.new_full((len(x),), FLOOR)
    plan = _plan(x, labels, ids, keys)
    z = None if keys is None else keys.embeddings
    x = x if torch.is_grad_enabled() else x.detach()
    values: Tensor = _LogSum.apply(x, z, scale, plan, (labels, ids, keys, hard))
    return values


def _plain(
    x: Tensor,
    z: Tensor | None,
    scale: Tensor | None,
    labels: Tensor,
    ids: Tensor | None,
    keys: Features | None,
    hard: bool,
) -> Tensor:
    """The same by operations that torch itself differentiates, any number of times and under ``torch.func``."""
    if z is not None and keys is not None:
        z = z.to(x.dtype)
        if len(z) == 0:
            return x.sum(1) * 0 + FLOOR
        pairs, key_labels = pair(x, labels, Features(z, keys.labels, keys.ids), ids), keys.labels
    else:
        pairs, key_labels = pair(x, labels, None, ids), labels
    z = pairs.keys
    # As in the written-out form, everything is relative to the first key of its class.
    first = pairs.same.to(torch.uint8).argmax(1)
    key_first = (key_labels[:, None] == key_labels[None, :]).to(torch.uint8).argmax(1)
    a, b = x - z[first], z - z[key_first]
    distances = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2 * a @ b.T
    distances = distances.clamp(min=0)
    t = torch.where(pairs.positives, distances if scale is None else distances * scale, FLOOR)
    return t.max(1).values if hard else t.logsumexp(1)


def count(labels: Tensor, ids: Tensor | None, keys: Features | None, num_classes: int) -> Tensor:
    """How many keys ``log_sum`` sums over for each anchor, (B,)."""
    ids, keys = _comparable(ids, keys)
    key_labels, key_ids = (labels, ids) if keys is None else (keys.labels, keys.ids)
    same = _occurrences(key_labels, labels) - int(ids is None and keys is None)
    if ids is None or key_ids is None:
        return same
    short = torch.unique(torch.cat([ids, key_ids]), return_inverse=True)[1] * num_classes
    return same - _occurrences(short[len(ids) :] + key_labels, short[: len(ids)] + labels)


def _occurrences(of: Tensor, wanted: Tensor) -> Tensor:
    ordered = of.sort().values
    return torch.searchsorted(ordered, wanted, right=True) - torch.searchsorted(ordered, wanted)


def _comparable(ids: Tensor | None, keys: Features | None) -> tuple[Tensor | None, Features | None]:
    """Ids exclude only where anchors and keys both have them; a batch that is its own keys excludes by position."""
    if keys is None:
        return ids, None
    return (None, keys._replace(ids=None)) if ids is None or keys.ids is None else (ids, keys)


def _plan(x: Tensor, labels: Tensor, ids: Tensor | None, keys: Features | None) -> _Dense | list[_Block]:
    n_anchors, n_keys, size = len(labels), len(labels) if keys is None else len(keys.labels), x.shape[1]
    dense_price = n_anchors * n_keys * (MAC * size + PAIR) + n_keys * size * MOVE
    if x.device.type != "cpu" or dense_price < BLOCK:
        return _dense(labels, ids, keys)
    blocks = _grouped(labels, ids, keys, size, x.element_size(), dense_price)
    return _dense(labels, ids, keys) if blocks is None else blocks


def _dense(labels: Tensor, ids: Tensor | None, keys: Features | None) -> _Dense:
    key_labels = labels if keys is None else keys.labels
    mask = labels[:, None] == key_labels[None, :]
    key_ids = ids if keys is None else keys.ids
    if keys is None and ids is None:
        mask.fill_diagonal_(False)
    elif ids is not None and key_ids is not None:
        mask &= ids[:, None] != key_ids[None, :]
    # The first key of a row's label, found without asking the host for a number; any key where there is none.
    ordered, order = key_labels.sort(stable=True)
    key_origin = order[torch.searchsorted(ordered, key_labels)]
    if keys is None:
        return _Dense(_Block(mask[None]), key_origin, key_origin)
    anchor_origin = order[torch.searchsorted(ordered, labels).clamp_(max=len(order) - 1)]
    return _Dense(_Block(mask[None]), anchor_origin, key_origin)


def _groups(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return order, ordered[starts], starts, np.diff(np.append(starts, len(labels)))


def _width(sizes: np.ndarray) -> np.ndarray:
    """Powers of two up to 64, multiples of 32 beyond: few widths for small groups, little padding for large ones."""
    power = 1 << np.ceil(np.log2(sizes)).astype(np.int64)
    return np.where(sizes <= 64, power, -(-sizes // 32) * 32)


def _grouped(
    labels: Tensor, ids: Tensor | None, keys: Features | None, size: int, itemsize: int, at_most: float = math.inf
) -> list[_Block] | None:
    """The blocks of a grouped plan, None if they would cost more than ``at_most``."""
    # A plan is a lot of small work with integers, for which NumPy has a third of the overhead.
    y, own_ids = labels.numpy(), None if ids is None else ids.numpy()
    order, classes, starts, sizes = _groups(y)
    key_ids: np.ndarray | None
    if keys is None:
        own_ids = np.arange(len(y)) if own_ids is None else own_ids
        kept = np.flatnonzero(sizes > 1)
        starts = key_starts = starts[kept]
        sizes = key_sizes = sizes[kept]
        key_order, key_ids = order, own_ids
    else:
        key_ids = None if keys.ids is None else keys.ids.numpy()
        key_order, key_classes, key_starts, key_sizes = _groups(keys.labels.numpy())
        at = np.minimum(np.searchsorted(key_classes, classes), len(key_classes) - 1)
        kept = np.flatnonzero(key_classes[at] == classes)
        starts, sizes, key_starts, key_sizes = starts[kept], sizes[kept], key_starts[at[kept]], key_sizes[at[kept]]
    widths, key_widths = _width(sizes), _width(key_sizes)
    code = widths * (1 << 32) + key_widths
    moved = widths if keys is None else widths + key_widths
    price = BLOCK * len(np.unique(code)) + float((widths * key_widths).sum()) * (MAC * size + PAIR)
    if price + float(moved.sum()) * size * MOVE > at_most:
        return None
    blocks: list[_Block] = []
    for c in np.unique(code):
        a, k = int(c >> 32), int(c & 0xFFFFFFFF)
        group = np.flatnonzero(code == c)
        step = max(PIECE // ((a + k) * size * itemsize), 1)
        for first in range(0, len(group), step):
            g = group[first : first + step]
            at, valid = _padded(starts[g], sizes[g], a)
            key_at, key_valid = (at, valid) if keys is None else _padded(key_starts[g], key_sizes[g], k)
            anchors, members = order[at], key_order[key_at]
            mask = valid[:, :, None] & key_valid[:, None, :]
            if own_ids is not None and key_ids is not None:
                mask &= own_ids[anchors][:, :, None] != key_ids[members][:, None, :]
            arrays = [anchors, np.where(valid, anchors, len(y))]
            if keys is not None:
                arrays += [members, np.where(key_valid, members, len(key_order))]
            blocks.append(_Block(torch.from_numpy(mask), *(torch.from_numpy(t.reshape(-1)) for t in arrays)))
    return blocks


def _padded(starts: np.ndarray, sizes: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (G, width) of each group's members, the last one repeated, and which are not repeats."""
    along = np.arange(width)[None, :]
    return starts[:, None] + np.minimum(along, sizes[:, None] - 1), along < sizes[:, None]


def _centred(x: Tensor, z: Tensor | None, plan: _Dense | list[_Block], block: _Block) -> tuple[Tensor, Tensor]:
    """Anchors (G, a, K) and keys (G, k, K) of a block, relative to a key of their class."""
    if isinstance(plan, _Dense):
        if z is None:
            own = x.sub(x.index_select(0, plan.key_origin))[None]
            return own, own
        z = z.to(x.dtype)
        return (x - z.index_select(0, plan.anchor_origin))[None], (z - z.index_select(0, plan.key_origin))[None]
    groups, a, k = block.mask.shape
    assert block.anchors is not None
    anchors = x.index_select(0, block.anchors).view(groups, a, -1)
    if z is None:
        anchors -= anchors[:, :1].clone()
        return anchors, anchors
    assert block.keys is not None
    keys = z.index_select(0, block.keys).to(x.dtype).view(groups, k, -1)
    origin = keys[:, :1].clone()
    anchors -= origin
    keys -= origin
    return anchors, keys


def _reduce(
    anchors: Tensor, keys: Tensor, mask: Tensor, scale: Tensor | None, hard: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values (G, a), each pair's share in a value's gradient (G, a, k), and with a scale ∂value/∂scale (G, a)."""
    norms = torch.linalg.vector_norm(anchors, dim=-1).square_()
    key_norms = norms if anchors is keys else torch.linalg.vector_norm(keys, dim=-1).square_()
    distances = torch.baddbmm(key_norms[:, None, :], anchors, keys.mT, alpha=-2).add_(norms[:, :, None])
    distances.clamp_(min=0)
    t = torch.where(mask, distances if scale is None else distances * scale, FLOOR)
    if hard:
        value, where = t.max(dim=-1, keepdim=True)
        share = torch.zeros_like(t).scatter_(-1, where, 1.0)
    else:
        # The largest share tells the sum's logarithm, so that one softmax is all; and it is much faster than exp()
        # where that calls a vendor's library. Without positives shares mean nothing, but there is no gradient either.
        share = t.softmax(-1)
        value = t.amax(-1, keepdim=True) - share.amax(-1, keepdim=True).log()
    return value[..., 0], share, None if scale is None else (share * distances).sum(-1)


class _LogSum(torch.autograd.Function):
    """``log_sum`` with its gradient written out: for shares p and incoming gradients g, the weights of the pairs are
    w = s·g·p, and ∂/∂x_i Σ w_ij ‖x_i − z_j‖² = 2 (x_i Σ_j w_ij − Σ_j w_ij z_j).

    Where keys take no gradient, 2s (x_i − Σ_j p_ij z_j) is all that backward needs: it is computed at once, and neither
    keys nor pairs are kept. A gradient that is itself to be differentiated comes from ``_plain``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor | None, scale: Tensor | None, plan: _Dense | list[_Block], of: tuple[Any, ...]
    ) -> Tensor:
        ctx.of, hard = of, of[-1]
        ctx.blocks = [plan.block] if isinstance(plan, _Dense) else plan
        ctx.own, ctx.fixed_keys = z is None, z is not None and not ctx.needs_input_grad[1]
        ctx.shapes = x.shape, None if z is None else z.shape
        values = slopes = direction = None
        saved: list[Tensor] = []
        for block in ctx.blocks:
            anchors, keys = _centred(x, z, plan, block)
            value, share, slope = _reduce(anchors, keys, block.mask, scale, hard)
            values = _written(values, block.write_anchors, value, len(x), FLOOR)
            if slope is not None and scale is not None:
                slopes = _written(slopes, block.write_anchors, slope, len(x))
                share = share * scale
            if not any(ctx.needs_input_grad):
                continue
            if ctx.fixed_keys:
                direction = _written(direction, block.write_anchors, _pulled(anchors, keys, share), len(x))
            else:
                saved += [anchors, share] if z is None else [anchors, keys, share]
        ctx.save_for_backward(x, z, scale, slopes, direction, *saved)
        return x.new_full((len(x),), FLOOR) if values is None else values[: len(x)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, z, scale, slopes, direction, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph=True only
            # Views: the scale, or keys, may depend on x, and what goes through them is not x's own part.
            inputs: list[Any] = [None if t is None else t.view_as(t) for t in (x, z, scale)]
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad) if needed]
            found = iter(torch.autograd.grad(_plain(*inputs, *ctx.of), wanted, grad, create_graph=True))
            return *(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None
        x_shape, z_shape = ctx.shapes
        n = x_shape[0]
        to_scale = None if slopes is None else torch.dot(grad, slopes[:n])
        if not ctx.blocks:  # nowhere do labels agree
            return grad.new_zeros(x_shape), None if ctx.own else grad.new_zeros(z_shape), to_scale, None, None
        if ctx.fixed_keys:
            return grad[:, None] * direction[:n], None, to_scale, None, None
        to_x = to_z = None
        padded = grad if ctx.blocks[0].write_anchors is None else torch.cat([grad, grad.new_zeros(1)])
        width = 2 if ctx.own else 3
        with full_precision(grad.device.type):
            for i, block in enumerate(ctx.blocks):
                anchors, *keys, share = saved[width * i : width * (i + 1)]
                g = grad if block.write_anchors is None else padded.index_select(0, block.write_anchors)
                weight = share * g.view(len(share), -1, 1)
                if ctx.own:
                    pulled = _pulled(anchors, anchors, weight + weight.mT)
                    to_x = _written(to_x, block.write_anchors, pulled, n)
                else:
                    to_x = _written(to_x, block.write_anchors, _pulled(anchors, keys[0], weight), n)
                    to_z = _written(to_z, block.write_keys, _pulled(keys[0], anchors, weight.mT), z_shape[0])
        assert to_x is not None
        return to_x[:n], None if to_z is None else to_z[: z_shape[0]], to_scale, None, None


def _pulled(x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """``2 (x_i Σ_j w_ij − Σ_j w_ij z_j)``."""
    return torch.baddbmm(x * weight.sum(-1, keepdim=True), weight, z, beta=2, alpha=-2)


def _written(out: Tensor | None, rows: Tensor | None, values: Tensor, n: int, empty: float = 0.0) -> Tensor:
    """``out`` (n + 1, …), made if it is not there, with a block's values (G, a, …) in their rows. The dense block's
    values are all there is, and become it."""
    if rows is None:
        return values[0]
    values = values.reshape(len(rows), *values.shape[2:])
    out = values.new_full((n + 1, *values.shape[1:]), empty) if out is None else out
    return out.index_copy_(0, rows, values)
