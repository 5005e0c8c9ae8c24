"""Contrastive losses on embeddings: InfoNCE, supervised contrastive, triplet, as the paper writes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..counts import ClassCounts
from ..errors import InputError, real
from ..numeric import unit_rows
from .base import Features, Outputs, Term
from .pairs import log_sum_exp, pair, softplus


class _Similarity(Term):
    """``s(x, x') = Φ(x)ᵀΦ(x')/T``, on unit-norm embeddings if asked."""

    takes_keys = True

    def __init__(self, counts: ClassCounts | Any, *, normalise: bool = False, temperature: float = 1.0) -> None:
        super().__init__(counts)
        self.normalise = self.any_size = bool(normalise)
        self.temperature = real("temperature", temperature, above=0)

    def extra_repr(self) -> str:
        return f"normalise={self.normalise}, temperature={self.temperature}"

    def similarities(self, x: Tensor, keys: Tensor) -> Tensor:
        if self.normalise:
            x, keys = unit_rows(x), unit_rows(keys)
        return (x / self.temperature) @ keys.T


def _contrast(similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Mean over positives of ``log[1 + Σ_neg exp(s_neg − s_pos)]``; 0 without positives or without negatives."""
    excess = log_sum_exp(similarities, negatives)[:, None] - similarities
    counted = positives & negatives.any(1, keepdim=True)
    return torch.where(counted, softplus(excess), 0.0).sum(1) / positives.sum(1).clamp(min=1)


class InfoNCE(_Similarity):
    """Contrast of two views of a sample with all other samples, without labels:

    ``mean_{x⁺} log[1 + Σ_{x⁻} exp(s(x, x⁻) − s(x, x⁺))]``,  ``s(x, x') = Φ(x)ᵀΦ(x')/T``

    The positives are the keys with the anchor's id (the other views of the same sample), the negatives all keys of
    other ids; so ids must be given. Labels are not looked at.

    Args:
        counts: the class counts, which every term has; they are not used.
        normalise: scale embeddings to norm 1 first.
        temperature: T.

    Shape:
        embeddings (B, K); labels and ids (B,); result (B,).

    Example:
        >>> views = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> InfoNCE([9, 1])((None, views), torch.tensor([0, 0, 0, 0]), ids=torch.tensor([7, 8, 7, 8]))
        tensor([0.5514, 0.5514, 0.5514, 0.5514])

    References:
        van den Oord et al., Representation learning with contrastive predictive coding, 2018; Chen et al., A simple
        framework for contrastive learning, 2020; as the ELM paper writes them.
    """

    name = "infonce"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        if ids is None or (keys is not None and keys.ids is None):
            whose = "the batch" if ids is None else "the keys"
            raise InputError(f"InfoNCE finds a sample's second view by its id, but {whose} came without ids: pass ids")
        batch = Features(out.embeddings, labels, ids)
        return self._against(out.embeddings, ids, batch if keys is None else keys, own_batch=keys is None)

    def values_with_extra(self, out: Outputs, labels: Tensor, extra: Features, ids: Tensor | Any) -> Tensor:
        keys = extra.after(Features(out.embeddings, labels, ids))
        return self._against(out.embeddings, ids, keys, own_batch=True)

    def _against(self, x: Tensor, ids: Tensor, keys: Features, own_batch: bool) -> Tensor:
        """``own_batch``: the first keys are the batch itself, so the anchor's own row is not another view of it."""
        assert keys.ids is not None
        same_id = positives = ids[:, None] == keys.ids[None, :]
        if own_batch:
            positives = same_id & ~torch.eye(*same_id.shape, dtype=torch.bool, device=ids.device)
        return _contrast(self.similarities(x, keys.embeddings), positives, ~same_id)


class SupCon(_Similarity):
    """Supervised contrastive loss: ``mean_{x⁺} log[1 + Σ_{x⁻} exp(s(x, x⁻) − s(x, x⁺))]``, ``s(x, x') = Φ(x)ᵀΦ(x')/T``.

    The positives are the keys of the anchor's label without the anchor, the negatives those of other labels; without
    either the value is 0.

    Args:
        counts: the class counts, which every term has; they are not used.
        normalise: scale embeddings to norm 1 first.
        temperature: T.

    Shape:
        embeddings (B, K); labels (B,); keys (M, K), by default the batch; result (B,).

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> SupCon([9, 1])((None, embeddings), torch.tensor([0, 0, 1]))
        tensor([0.3133, 0.3133, 0.0000])

    References:
        Khosla et al., Supervised contrastive learning, 2020, as the ELM paper writes it.
    """

    name = "supcon"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        pairs = pair(out.embeddings, labels, keys, ids)
        return _contrast(self.similarities(out.embeddings, pairs.keys), pairs.positives, pairs.negatives)


class Triplet(_Similarity):
    """Triplet loss with margin: ``mean_{x⁺, x⁻} [γ + Φ(x)ᵀΦ(x⁻) − Φ(x)ᵀΦ(x⁺)]_+`` over all pairs of a positive and a
    negative key; without either the value is 0.

    All B·M² triplets count, but none is formed: sorting tells how many negatives violate the margin of each positive
    and the other way round, which takes O(B·M) memory and O(B·M·log M) time.

    Args:
        counts: the class counts, which every term has; they are not used.
        gamma: γ, the same for all classes.
        normalise: scale embeddings to norm 1 first.

    Shape:
        embeddings (B, K); labels (B,); keys (M, K), by default the batch; result (B,).

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]])
        >>> Triplet([9, 1])((None, embeddings), torch.tensor([0, 0, 1]))
        tensor([0.5000, 0.5000, 0.0000])

    References:
        Weinberger and Saul, Distance metric learning for large margin nearest neighbor classification, 2009; Schroff
        et al., FaceNet, 2015; as the ELM paper writes them.
    """

    name = "triplet"

    def __init__(self, counts: ClassCounts | Any, *, gamma: float = 1.0, normalise: bool = False) -> None:
        super().__init__(counts, normalise=normalise)
        self.gamma = real("gamma", gamma, at_least=0)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, normalise={self.normalise}"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        pairs = pair(out.embeddings, labels, keys, ids)
        positives, negatives = pairs.positives, pairs.negatives
        s = self.similarities(out.embeddings, pairs.keys)
        with torch.no_grad():
            # Both counts come from the same comparison s⁻ > s⁺ − γ, so rounding cannot make them disagree.
            needed = s - self.gamma
            below = torch.where(positives, needed, torch.inf).sort(1).values
            above = torch.where(negatives, s, -torch.inf).sort(1).values
            violated = (torch.searchsorted(below, s.contiguous()) * negatives).to(s.dtype)
            violators = ((s.shape[1] - torch.searchsorted(above, needed, right=True)) * positives).to(s.dtype)
            # Violations are differences, so a constant in all similarities of an anchor cancels: take a large one out.
            centre = torch.where(positives, s, 0.0).sum(1, keepdim=True) / positives.sum(1, keepdim=True).clamp(min=1)
        total = ((s - centre) * (violated - violators)).sum(1) + self.gamma * violators.sum(1)
        # Never below 0: where few hinges are active, the two sums may cancel to a rounding error.
        return F.relu(total) / (positives.sum(1) * negatives.sum(1)).clamp(min=1)
