"""Positives beyond the batch: recent embeddings by class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..counts import ClassCounts, class_counts
from ..errors import InputError, whole
from ..numeric import uncompiled
from .inputs import Features, FixedDtype, check_ids, check_size


class ClassMemory(FixedDtype):
    """The most recent embeddings of every class, with the ids of their samples: keys for ``Pull`` and its like.

    A class has ``min(capacity, n_y)`` slots. A sample that is remembered already is updated in place, any other takes
    the slot that was written longest ago; so a memory with room for a whole class holds each of its samples once. What
    is recalled for a batch leaves out the batch's own samples: a sample is never its own positive, and never counted
    both as it is and as it was.

    Everything is on one device and vectorised; the content is in ``state_dict`` (a fresh memory can load it, whatever
    its size), and depends on nothing but the sequence of pushes.

    Args:
        counts: the class counts.
        size: K, the size of an embedding; found out at the first push if None.
        capacity: slots a class.
        max_age: how many pushes an embedding may lie back; None for no limit. Networks move on, and old embeddings with
            them not.
        warmup: recall nothing before this many pushes.
        below: remember only classes with fewer training samples than this.
        dtype: what embeddings are stored in.

    >>> import torch
    >>> memory = ClassMemory([3, 1], size=2, capacity=2)
    >>> memory.push(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 0]), ids=torch.tensor([7, 8]))
    >>> keys = memory.recall(labels=torch.tensor([0, 1]), ids=torch.tensor([8, 9]))  # sample 8 is left out
    >>> keys.ids, keys.labels, keys.embeddings
    (tensor([7]), tensor([0]), tensor([[1., 1.]]))
    """

    embeddings: Tensor | Any  # these three are None until the size is known
    ids: Tensor | Any
    steps: Tensor | Any
    step: Tensor
    slots: Tensor
    starts: Tensor
    classes: Tensor

    def __init__(
        self,
        counts: ClassCounts | Any,
        size: int | None = None,
        *,
        capacity: int = 16,
        max_age: int | None = None,
        warmup: int = 0,
        below: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.counts = class_counts(counts)
        for name, value in (("size", size), ("capacity", capacity), ("max_age", max_age), ("below", below)):
            if value is not None:
                whole(name, value, 1)
        whole("warmup", warmup, 0)
        if not dtype.is_floating_point:
            raise InputError(f"a memory's dtype must be a floating-point one, got {dtype}")
        self.capacity, self.max_age, self.warmup, self.below, self.dtype = capacity, max_age, warmup, below, dtype
        self.widest = 0  # the most slots that a class has
        for name in ("embeddings", "ids", "steps"):
            self.register_buffer(name, None)
        for name in ("slots", "starts", "classes"):  # the layout, which follows from the counts
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        if size is not None:
            self._allocate(size)

    def _allocate(self, size: int) -> None:
        n = self.counts.n if self.below is None else self.counts.n * (self.counts.n < self.below)
        slots = n.clamp(max=self.capacity)
        self.widest = max(int(slots.max()), 1)
        device, total = self.step.device, int(slots.sum())
        self.slots = slots.to(device)
        self.starts = (slots.cumsum(0) - slots).to(device)
        self.classes = torch.repeat_interleave(torch.arange(len(slots)), slots).to(device)
        # One row more than there are slots: where rows go that are not to be kept, without asking how many they are.
        self.embeddings = torch.zeros(total + 1, size, dtype=self.dtype, device=device)
        self.ids = torch.zeros(total + 1, dtype=torch.int64, device=device)
        self.steps = torch.full((total + 1,), -1, dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """What the content takes."""
        return sum(t.nbytes for t in (self.embeddings, self.ids, self.steps) if t is not None)

    def held(self) -> Tensor:
        """How many embeddings each class has in memory, (C,)."""
        if self.steps is None:
            return torch.zeros_like(self.counts.n)
        return torch.bincount(self.classes[self.steps[:-1] >= 0], minlength=self.counts.num_classes)

    @torch.no_grad()
    @uncompiled
    def recall(self, labels: Tensor, ids: Tensor | None) -> Features | None:
        """What there is of the classes in ``labels`` (B,), without the samples named in ``ids`` (B,); None if nothing
        was ever stored. Copies: a push before backward leaves them as they are. On an accelerator this waits for the
        number of keys, once a step: their rows must be known."""
        ids = _needed(ids)
        check_ids("ids", ids, labels.shape)
        if self.embeddings is None:
            return None
        steps = self.steps[:-1]
        present = torch.zeros(self.counts.num_classes, dtype=torch.bool, device=labels.device)
        present[labels] = True
        usable = (steps >= 0) & present[self.classes] & (self.step >= self.warmup)
        if self.max_age is not None:
            usable &= self.step - steps <= self.max_age
        rows = usable.nonzero().flatten()
        rows = rows[~torch.isin(self.ids[rows], ids)]
        return Features(self.embeddings[rows], self.classes[rows], self.ids[rows])

    @torch.no_grad()
    @uncompiled
    def push(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None) -> None:
        """Remember a batch: embeddings (B, K), labels (B,), ids (B,). Of rows with one id the last is kept, of more new
        rows of a class than it has slots the last ones, and none that is not finite: what a step leaves behind that
        overflows in half precision, and is skipped, would otherwise spoil later ones."""
        ids = _needed(ids)
        if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1] or ids.shape != labels.shape:
            got = ", ".join(str(tuple(t.shape)) for t in (embeddings, labels, ids))
            raise InputError(f"a memory takes embeddings (B, K), labels (B,) and ids (B,), got {got}")
        if self.embeddings is None:
            self.to(embeddings.device)
            self._allocate(embeddings.shape[1])
        check_size(embeddings, self.embeddings)
        if len(labels):
            kept = embeddings.detach().to(self.embeddings.dtype)  # which may overflow
            # A sum is finite exactly if all summands are, short of an overflow; and it needs no second tensor.
            finite = kept.sum(1, dtype=torch.float64).isfinite()
            slots = self._slots(labels.long(), ids.long(), finite)
            rows = kept, ids.long(), self.step.expand(len(slots))
            for stored, new, empty in zip((self.embeddings, self.ids, self.steps), rows, (0, 0, -1)):
                stored.index_copy_(0, slots, new)
                stored[-1] = empty
        self.step += 1

    def _slots(self, labels: Tensor, ids: Tensor, finite: Tensor) -> Tensor:
        """Where each row goes, (B,); the row past the last slot for those not kept."""
        nowhere, room = len(self.classes), self.slots[labels]
        kept = _is_last(ids) & (room > 0) & finite
        along = torch.arange(self.widest, device=labels.device)
        inside = along < room[:, None]
        own = torch.where(inside, self.starts[labels][:, None] + along, nowhere)  # (B, widest) the slots of its class
        known = (self.ids[own] == ids[:, None]) & (self.steps[own] >= 0) & inside
        found = known.any(1) & kept
        updated = torch.where(found, own.gather(1, known.to(torch.uint8).argmax(1, keepdim=True))[:, 0], nowhere)
        # New rows take the slots written longest ago, those updated just now last of all.
        steps = self.steps.index_fill(0, updated, torch.iinfo(torch.int64).max - 1)
        oldest = torch.where(inside, steps[own], torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        room = room - torch.zeros_like(self.slots).index_add_(0, labels, found.long())[labels]
        new = kept & ~found
        rank, of = _rank(torch.where(new, labels, -1))
        rank = rank - (of - room).clamp(min=0)
        taken = own.gather(1, oldest.gather(1, rank.clamp(0, len(along) - 1)[:, None]))[:, 0]
        return torch.where(found, updated, torch.where(new & (rank >= 0) & (rank < room), taken, nowhere))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(prefix + "embeddings")
        if stored is None:
            self.embeddings = self.ids = self.steps = None
        elif self.embeddings is None or self.embeddings.shape[1] != stored.shape[1]:
            self._allocate(stored.shape[1])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        knobs = {"capacity": self.capacity, "max_age": self.max_age, "below": self.below}
        given = [f"{name}={value}" for name, value in knobs.items() if value is not None]
        return ", ".join([*given, f"warmup={self.warmup}"] if self.warmup else given)


def _needed(ids: Tensor | None) -> Tensor:
    if ids is None:
        raise InputError("a memory needs the samples' ids, or a sample could be its own positive: pass ids=")
    return ids


def _is_last(ids: Tensor) -> Tensor:
    """Which rows are the last with their id, (B,) bool."""
    ordered, order = ids.sort(stable=True)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return torch.empty_like(last).index_copy_(0, order, last)


def _rank(labels: Tensor) -> tuple[Tensor, Tensor]:
    """How many rows of the same label come before each row, and how many there are in all, (B,) each."""
    ordered, order = labels.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    before = torch.arange(len(labels), device=labels.device) - first
    total = torch.searchsorted(ordered, ordered, right=True) - first
    return tuple(torch.empty_like(t).index_copy_(0, order, t) for t in (before, total))  # type: ignore[return-value]
