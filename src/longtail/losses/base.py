"""What every loss shares: its inputs, the checks on them, and the one place where values are reduced."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..counts import ClassCounts, class_counts
from ..errors import InputError, real
from ..margins import PerClass
from ..numeric import check_range, compute_dtype
from . import inputs
from .inputs import Features, Gathered, Outputs, full_precision, widened
from .memory import ClassMemory

__all__ = ["Features", "Objective", "Outputs", "Term"]


class Term(nn.Module):
    """One summand of an objective: ``term((logits, embeddings), labels) -> (B,)``, never reduced.

    Subclasses implement ``values`` and may assume checked inputs in float32 or float64, outside autocast. Per-class
    vectors are float64 on the CPU (``register_vector``) and reach the batch's device and dtype through ``vector``, so
    ``.half()``, ``.double()`` and ``.to()`` do them no harm.

    Class attributes:
        name: its key in ``return_parts``.
        needs: which of ``"logits"`` and ``"embeddings"`` the term reads.
        scope: ``"sample"`` if a value depends on its own sample only; ``"batch"`` if on others too: then the samples of
            all ranks are brought together first.
        takes_keys: whether positives and negatives may come from elsewhere.
        soft_labels: whether labels may be a distribution (B, C).
        any_size: whether embeddings of any size will do, since they are scaled to norm 1 first.
    """

    name: ClassVar[str] = "term"
    needs: ClassVar[tuple[str, ...]] = ("embeddings",)
    scope: ClassVar[Literal["sample", "batch"]] = "batch"
    takes_keys: ClassVar[bool] = False
    soft_labels: ClassVar[bool] = False
    any_size: bool = False
    ignore_index: int | None = None

    def __init__(self, counts: ClassCounts | Any) -> None:
        super().__init__()
        self.counts = class_counts(counts)
        self._vectors: dict[str, Tensor] = {}
        self._cast: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def register_vector(self, name: str, of: PerClass | Tensor | float) -> None:
        """Keep a per-class vector, given as a function of the counts, a number or C values."""
        c = self.counts.num_classes
        if isinstance(of, PerClass):
            vector = of(self.counts)
        else:
            try:
                vector = torch.as_tensor(of, dtype=torch.float64).detach().cpu()
            except (TypeError, ValueError, RuntimeError):
                kinds = f"a per-class function such as Power(0.5), a number or {c} values"
                raise InputError(f"{name} must be {kinds}, got {of!r}") from None
            vector = vector.expand(c).clone() if vector.ndim == 0 else vector
        if vector.shape != (c,):
            raise InputError(f"{name} must have one value for each of the {c} classes, got shape {tuple(vector.shape)}")
        if not bool(torch.isfinite(vector).all()):
            raise InputError(f"{name} must be finite for every class, got {vector[~torch.isfinite(vector)][0].item()}")
        self._vectors[name] = vector
        self._cast = {key: cast for key, cast in self._cast.items() if key[0] != name}  # copies of the one replaced

    @property
    def vectors(self) -> Mapping[str, Tensor]:
        """The per-class vectors by name, float64 (C,) each on the CPU: what the term depends on the counts through."""
        return MappingProxyType(self._vectors)

    def has(self, name: str) -> bool:
        """Whether there is a per-class vector ``name``."""
        return name in self._vectors

    def vector(self, name: str, like: Tensor) -> Tensor:
        """The per-class vector ``name`` on the device and in the dtype of ``like``."""
        key = (name, like.device, like.dtype)
        if key not in self._cast:
            # A compiler needs no cache, and what is made in inference mode could not be trained with later.
            if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
                return self._vectors[name].to(like.device, like.dtype)
            self._cast[key] = self._vectors[name].to(like.device, like.dtype)
        return self._cast[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cast": {}}

    def forward(
        self,
        outputs: Outputs | tuple[Tensor | None, Tensor | None] | Tensor,
        labels: Tensor,
        keys: Features | None = None,
        ids: Tensor | None = None,
        extra: Features | None = None,
    ) -> Tensor:
        """The values (B,). ``keys`` replace the batch as positives and negatives; ``extra`` (a memory's) join it."""
        out = self._checked(outputs, labels, keys, ids)
        labels = inputs.indices(labels)
        if keys is not None:
            keys = Features(keys.embeddings.to(out.embeddings.dtype), keys.labels.long(), keys.ids)
        if extra is not None:
            if ids is None or extra.ids is None:
                raise InputError("keys beside the batch are told from its samples by ids, and there are none: pass ids")
            inputs.check_size(out.embeddings, extra.embeddings)
        with full_precision(labels.device.type):
            if labels.numel() == 0:
                values = labels.new_zeros(0, dtype=(out.logits if out.logits is not None else out.embeddings).dtype)
            elif extra is None:
                values = self.values(out, labels, keys, ids)
            else:
                values = self.values_with_extra(out, labels, extra, ids)
            # A value that is identically 0 must still belong to the graph, or backward() would fail on it.
            if torch.is_grad_enabled() and not values.requires_grad:
                for x in out:
                    if x is not None and x.requires_grad:
                        values = values + (x.flatten()[:0]).sum()
        return values

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        """One value a sample, (B,)."""
        raise NotImplementedError

    def values_with_extra(self, out: Outputs, labels: Tensor, extra: Features, ids: Tensor | None) -> Tensor:
        """As ``values`` with the batch and ``extra`` together as keys."""
        return self.values(out, labels, extra.after(Features(out.embeddings, labels, ids)), ids)

    def alive(self, labels: Tensor, keys: Features | None = None, ids: Tensor | None = None) -> Tensor | None:
        """Which anchors have a positive, (B,) bool; None for a term that does without."""
        return None

    def growth(self, out: Outputs, labels: Tensor) -> Tensor | None:
        """``−dℓ/dt`` of each sample as its logits grow to (1 + t)·f, (B,), at t = 0; None for a term without logits."""
        return None

    def shrinkage(self, values: Tensor, labels: Tensor) -> Tensor | None:
        """``dΩ/dt`` of each sample as embeddings grow to (1 + t)·Φ, (B,), at t = 0; None where shrinking is no gain."""
        return None

    def weights(self, labels: Tensor, like: Tensor) -> Tensor | None:
        """What a mean of the values is divided by the sum of: one weight a sample, or None for the batch's size."""
        return None

    def check_labels(self, labels: Tensor, what: str = "labels", soft: bool = False) -> None:
        """Class indices (B,) of the counts, or where ``soft`` shares (B, C)."""
        inputs.check_labels(what, labels, self.counts.num_classes, soft, self.ignore_index)

    def _checked(self, outputs: Any, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Outputs:
        kind, c = type(self).__name__, self.counts.num_classes
        if isinstance(outputs, Tensor):
            outputs = Outputs(outputs, None) if self.needs == ("logits",) else Outputs(None, outputs)
        if not isinstance(outputs, tuple) or len(outputs) != 2:
            raise InputError(f"{kind} takes (logits, embeddings), got {type(outputs).__name__}")
        given, used = dict(zip(Outputs._fields, outputs)), dict.fromkeys(Outputs._fields)
        self.check_labels(labels, soft=self.soft_labels)
        for what in self.needs:
            x = given[what]
            if x is None:
                raise InputError(f"{kind} needs {what}, but the outputs have none: pass (logits, embeddings)")
            inputs.check_floats(what, x, f"(B, {'C' if what == 'logits' else 'K'})")
            if what == "logits" and x.shape[1] != c:
                raise InputError(f"logits have {x.shape[1]} columns, but the counts have {c} classes")
            if x.shape[0] != labels.shape[0]:
                raise InputError(f"{what} have {x.shape[0]} rows, but there are {labels.shape[0]} labels")
            inputs.check_device(what, x, labels)
            used[what] = widened(x)
            if what == "embeddings" and not self.any_size:
                check_range(what, x)
        if ids is not None:
            inputs.check_ids("ids", ids, labels.shape[:1])
        if keys is not None:
            self._check_keys(keys, used["embeddings"])
        return Outputs(**used)

    def _check_keys(self, keys: Features, embeddings: Any) -> None:
        if not self.takes_keys:
            raise InputError(f"{type(self).__name__} takes no keys: its samples are the batch")
        if not isinstance(keys, Features):
            raise InputError(f"keys must be Features(embeddings, labels[, ids]), got {type(keys).__name__}")
        x = keys.embeddings
        inputs.check_floats("keys", x, f"(M, {embeddings.shape[1]})", embeddings.shape[1])
        self.check_labels(keys.labels, "the keys' labels")
        if keys.labels.shape != x.shape[:1]:
            raise InputError(f"keys have {x.shape[0]} embeddings, but labels of shape {tuple(keys.labels.shape)}")
        if keys.ids is not None:
            inputs.check_ids("the keys' ids", keys.ids, x.shape[:1])
        inputs.check_device("the keys", x, embeddings)
        if not self.any_size:
            check_range("the keys", x)


class Objective(nn.Module):
    """A weighted sum of terms, reduced to the mean over the batch: what a training loop minimises.

    ``objective((logits, embeddings), labels)`` is a scalar; with ``return_parts=True`` also the unweighted mean of each
    term, detached, by the term's name. A term of weight 0 is not computed at all.

    With ``distributed=True`` under ``torch.distributed`` the value, on every rank, is that of one process holding the
    samples of all ranks, and its gradients are right after the averaging that DistributedDataParallel does: terms of
    ``scope="batch"`` see the gathered batch, and means run over all ranks.

    With a ``memory``, terms that take keys get what it remembers of the batch's classes beside the batch itself, and
    the batch is remembered afterwards; both in training mode only, so that evaluation depends on its own batch alone. A
    memory needs ``ids``. All ranks remember the gathered batch, so their memories are the same.

    ``sample_weight``, a tensor that ids point into, multiplies each sample's value before the mean; None by default.

    A pull can be satisfied by shrinking all embeddings, and where its weight is too large for the data at hand, logits
    shrink with them and nothing is learnt. With ``bound`` b the weight of such a term is an upper limit: in each batch
    it is lowered until shrinking takes back at most the share b of what the terms on logits gain by growing logits. The
    weight used is then ``parts["lam"]``.

    >>> import torch
    >>> from longtail import ClassCounts
    >>> from longtail.losses import MarginCrossEntropy, Pull
    >>> counts = ClassCounts([90, 10])
    >>> objective = Objective((1.0, MarginCrossEntropy(counts)), (0.01, Pull(counts)))
    >>> loss, parts = objective((torch.zeros(4, 2), torch.zeros(4, 3)), torch.tensor([0, 0, 1, 1]), return_parts=True)
    >>> sorted(parts)
    ['logit', 'pull']
    """

    def __init__(
        self,
        *weighted: tuple[float, Term],
        distributed: bool = False,
        memory: ClassMemory | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        if not weighted:
            raise InputError("an objective needs at least one (weight, term)")
        for pair in weighted:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Term)):
                raise InputError(f"an objective is made of (weight, term) pairs, got {pair!r}")
        self.coefficients = [real(f"the weight of {type(term).__name__}", w, at_least=0) for w, term in weighted]
        self.terms = nn.ModuleList(term for _, term in weighted)
        self.distributed = distributed
        self.bound = None if bound is None else real("bound", bound, at_least=0)
        if memory is not None:
            if not isinstance(memory, ClassMemory):
                raise InputError(f"memory must be a ClassMemory such as ClassMemory(counts), got {memory!r}")
            if not any(term.takes_keys for _, term in weighted):
                raise InputError("a memory serves terms that take keys (Pull, SupCon, …), and this objective has none")
            if (has := memory.counts.num_classes) != (c := self.counts.num_classes):
                raise InputError(f"the memory has {has} classes, but the terms have {c}")
        self.memory = memory
        self.sample_weight: Tensor | None = None

    @property
    def weighted(self) -> list[tuple[float, Term]]:
        """The (weight, term) pairs."""
        return [(w, t) for w, t in zip(self.coefficients, self.terms) if isinstance(t, Term)]

    @property
    def counts(self) -> ClassCounts:
        return self.weighted[0][1].counts

    def part_names(self) -> list[str]:
        """The keys of ``return_parts``, in the order of the terms; a repeated name gets a number."""
        names: list[str] = []
        for _, term in self.weighted:
            same = sum(n.split("#")[0] == term.name for n in names)
            names.append(term.name if not same else f"{term.name}#{same + 1}")
        return names

    def forward(
        self,
        outputs: Outputs | tuple[Tensor | None, Tensor | None] | Tensor,
        labels: Tensor,
        ids: Tensor | None = None,
        return_parts: bool = False,
        key_embeddings: Tensor | None = None,
    ) -> Any:
        """The loss. A bare tensor is the logits, or the embeddings if no term reads logits. ``key_embeddings`` (B, K)
        are what a memory remembers in place of the batch's own embeddings, such as those of an averaged network.

        With soft labels (B, C), as of mixed images, terms that take no soft labels leave out the samples whose label
        is not one class."""
        if isinstance(outputs, Tensor):
            reads_logits = any(weight > 0 and "logits" in term.needs for weight, term in self.weighted)
            outputs = Outputs(outputs, None) if reads_logits else Outputs(None, outputs)
        total: Tensor | None = None
        parts: dict[str, Tensor] = {}
        batch = Gathered(outputs, labels, ids, self.distributed)
        remembered = self._recall(batch)
        growth: list[Tensor] = []
        for (weight, term), name in zip(self.weighted, self.part_names()):
            if weight == 0:
                continue
            values, of, counting = self._values(term, batch, remembered if term.takes_keys else None)
            mean = _mean(values if isinstance(counting, float) else values * counting, term.weights(of, values))
            parts[name] = mean.detach()
            factor: float | Tensor = weight
            if self.bound is not None:
                grown, shrinkage = self._growth(term, batch), term.shrinkage(values.detach(), of)
                growth += [] if grown is None else [weight * grown]
                if growth and shrinkage is not None and len(shrinkage):
                    allowed = self.bound * torch.stack(growth).sum()
                    factor = parts["lam"] = _limited(weight, allowed, (shrinkage * counting).mean())
            mean = mean if factor is weight and weight == 1 else factor * mean
            total = mean if total is None else total + mean
        if total is None:
            raise InputError("every term of the objective has weight 0: nothing is left to minimise")
        self._remember(batch, key_embeddings)
        return (total, parts) if return_parts else total

    def alive(self, labels: Tensor, ids: Tensor | None = None) -> Tensor | None:
        """Which samples of a batch have a positive, (B,) bool: in the batch, of all ranks, or in the memory as it is
        now, so ask before the step. None if no term of weight above 0 speaks of positives. Every rank must ask."""
        batch = Gathered((None, None), labels, ids, self.distributed)
        _, all_labels, all_ids = batch.everywhere(())
        for weight, term in self.weighted:
            found = term.alive(all_labels, ids=all_ids) if weight > 0 else None
            if found is None:
                continue
            remembered = self._recall(batch)
            if remembered is not None and (more := term.alive(all_labels, keys=remembered, ids=all_ids)) is not None:
                found = found | more
            return batch.own_rows(found)
        return None

    def _values(
        self, term: Term, batch: Gathered, remembered: Features | None
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """A term's values over the samples of all ranks, their labels, and what each sample counts."""
        if term.scope == "batch" or (batch.soft and not term.soft_labels):
            outputs, labels, ids = batch.everywhere(term.needs)
            values: Tensor = term(outputs, labels, ids=ids, extra=remembered)
        else:
            values = batch.gather(term(batch.outputs, batch.labels, ids=batch.ids))
            labels, ids = batch.all_labels, None if self.sample_weight is None else batch.all_ids
        return values, inputs.indices(labels), self._counting(ids, values)

    def _counting(self, ids: Tensor | None, like: Tensor) -> Tensor | float:
        if self.sample_weight is None:
            return 1.0
        if ids is None:
            raise InputError("sample weights are found by the samples' ids: pass ids=")
        return self.sample_weight.to(like)[ids]

    @torch.no_grad()
    def _growth(self, term: Term, batch: Gathered) -> Tensor | None:
        """The mean of ``term.growth`` over the samples of all ranks."""
        logits = batch.outputs[0]
        if logits is None or not len(batch.labels):
            return None
        found = term.growth(Outputs(logits.detach().to(compute_dtype(logits))), inputs.indices(batch.labels))
        return None if found is None else batch.gather(found * self._counting(batch.ids, found)).mean()

    def _memory_in_use(self) -> ClassMemory | None:
        """The memory while training, if a term that is computed takes keys."""
        return self.memory if self.training and any(w > 0 and t.takes_keys for w, t in self.weighted) else None

    def _recall(self, batch: Gathered) -> Features | None:
        if (memory := self._memory_in_use()) is None:
            return None
        _, labels, ids = batch.everywhere(())
        self.weighted[0][1].check_labels(labels)
        return memory.recall(labels.long(), ids)

    def _remember(self, batch: Gathered, key_embeddings: Tensor | None) -> None:
        if (memory := self._memory_in_use()) is None:
            return
        if key_embeddings is not None:
            batch = Gathered((None, key_embeddings.detach()), batch.labels, batch.ids, self.distributed)
        outputs, labels, ids = batch.everywhere(("embeddings",))
        memory.push(outputs[1], labels, ids)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return values.sum().div(max(values.numel(), 1))
    total = weights.sum()
    return values.sum().div(torch.where(total > 0, total, torch.ones_like(total)))


def _limited(weight: float, allowed: Tensor, shrinkage: Tensor) -> Tensor:
    """``min(weight, allowed/shrinkage)``, and at least 0: ``weight`` where nothing shrinks."""
    shrinks = shrinkage > 0
    most = allowed.clamp(min=0) / torch.where(shrinks, shrinkage, 1.0)
    return torch.where(shrinks, most, weight).clamp(max=weight)
