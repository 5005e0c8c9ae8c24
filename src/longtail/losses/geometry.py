"""Losses on the geometry of embeddings: center, range, spreadout, DRO-LT, as the paper writes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..counts import ClassCounts
from ..errors import InputError, real
from ..margins import PerClass, Power
from ..numeric import class_means, compute_dtype, unit_rows
from .base import Features, Outputs, Term
from .inputs import FixedDtype
from .pairs import log1p_sum_exp, near_origin, pair, squared_distances


def _present_means(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class means of a batch, without asking the device how many classes there are.

    Returns:
        means (B, K), of which as many rows are used as classes are present; used (B,) says which; and the row of each
        sample's class (B,).
    """
    ordered, order = labels.sort()
    starts = torch.cat([ordered.new_zeros(1), (ordered[1:] != ordered[:-1]).long()]).cumsum(0)
    row = torch.empty_like(starts).scatter(0, order, starts)
    means, n = class_means(x, row, len(x), x.dtype)
    return means, n > 0, row


class Center(Term):
    """Squared distance to the class mean: ``‖Φ(x) − μ_y‖²``, with μ_y the mean of the class over the batch.

    Shape:
        embeddings (B, K); labels (B,); result (B,).

    Example:
        >>> Center([9, 1])((None, torch.tensor([[0.0], [2.0], [5.0]])), torch.tensor([0, 0, 1]))
        tensor([1., 1., 0.])

    References:
        Wen et al., A discriminative feature learning approach for deep face recognition, 2016, as the ELM paper
        writes it (the original learns the centres with a rate of their own).
    """

    name = "center"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        (x,) = near_origin(out.embeddings)
        means, _, row = _present_means(x, labels)
        return (x - means[row]).square().sum(1)


class Range(Term):
    """Keeps class means apart: ``max_{y≠y'} [γ − ‖μ_y − μ_y'‖²]_+`` over the classes present in the batch.

    The same value for every sample; 0 with fewer than two classes.

    Args:
        counts: the class counts, which every term has; they are not used.
        gamma: γ, the same for all classes.

    Shape:
        embeddings (B, K); labels (B,); result (B,).

    Example:
        >>> Range([9, 1])((None, torch.tensor([[0.0], [0.2], [0.6]])), torch.tensor([0, 0, 1]))
        tensor([0.7500, 0.7500, 0.7500])

    References:
        Zhang et al., Range loss for deep face recognition with long-tailed training data, 2017, as the ELM paper
        writes it.
    """

    name = "range"

    def __init__(self, counts: ClassCounts | Any, *, gamma: float = 1.0) -> None:
        super().__init__(counts)
        self.gamma = real("gamma", gamma, at_least=0)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}"

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        (x,) = near_origin(out.embeddings)
        means, used, _ = _present_means(x, labels)
        with torch.no_grad():
            pairs = (used[:, None] & used[None, :]).triu(1)
            closest = torch.where(pairs, squared_distances(means, means), torch.inf).flatten().argmin(0, keepdim=True)
        a, b = means.index_select(0, closest // len(x)), means.index_select(0, closest % len(x))
        value = F.relu(self.gamma - (a - b).square().sum())
        return torch.where(pairs.any(), value, 0.0).expand(len(x))


class Spreadout(Term):
    """Embeddings like points spread evenly over the sphere: ``M₁² + max(0, M₂ − 1/d)``.

    M₁ and M₂ are the means of ``u(x)ᵀu(x')`` and of its square over all pairs x ≠ x' of the batch, u = Φ/‖Φ‖, and d is
    the size of the embedding. The same value for every sample; 0 for a batch of one.

    Shape:
        embeddings (B, K); labels (B,); result (B,).

    Example:
        >>> Spreadout([9, 1])((None, torch.tensor([[1.0, 0.0], [2.0, 0.0]])), torch.tensor([0, 1]))
        tensor([1.5000, 1.5000])

    References:
        Zhang et al., Learning spread-out local feature descriptors, 2017, as the ELM paper writes it.
    """

    name = "spreadout"
    any_size = True

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        x = out.embeddings
        u = unit_rows(x)
        apart = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
        cosines = torch.where(apart, u @ u.T, 0.0)
        pairs = max(len(x) * (len(x) - 1), 1)
        first, second = cosines.sum() / pairs, cosines.square().sum() / pairs
        return (first.square() + F.relu(second - 1 / max(x.shape[1], 1))).expand(len(x))


class DroLt(FixedDtype, Term):
    """Distributionally robust contrast with class means:

    ``log Σ_{x'} exp(−‖Φ(x') − μ_y‖² + ‖Φ(x) − μ_y‖² + ε_y·1(y' ≠ y))``

    The sum runs over the keys and the anchor itself, so the value is ≥ 0. μ_y is the mean of the class over keys and
    anchor, with gradient, unless centroids were given: those stay as they are.

    Args:
        counts: the class counts.
        epsilon: ε, as a function of the counts or as C values; ``Constant(0.0)`` is Wang et al. 2021's loss.
        centroids: frozen μ (C, K); also with ``set_centroids``. Part of the state dict once given.

    Shape:
        embeddings (B, K); labels (B,); keys (M, K), by default the batch; result (B,).

    Example:
        >>> from longtail.margins import Constant
        >>> DroLt([9, 1], epsilon=Constant(0.0))((None, torch.zeros(4, 2)), torch.tensor([0, 0, 1, 1]))
        tensor([1.3863, 1.3863, 1.3863, 1.3863])

    References:
        Samuel and Chechik, Distributional robustness loss for long-tail learning, 2021, as the ELM paper writes it
        (the authors' released code has unsquared distances, a learnt ε and a temperature).
    """

    name = "dro"
    takes_keys = True
    centroids: Tensor | None

    def __init__(
        self,
        counts: ClassCounts | Any,
        *,
        epsilon: PerClass | Tensor | float = Power(-0.5),
        centroids: Tensor | None = None,
    ) -> None:
        super().__init__(counts)
        self.register_vector("epsilon", epsilon)
        self.register_buffer("centroids", None)
        if centroids is not None:
            self.set_centroids(centroids)

    def extra_repr(self) -> str:
        return f"centroids={'of the batch' if self.centroids is None else 'frozen'}"

    def set_centroids(self, centroids: Tensor) -> None:
        """Freeze the class means to these, (C, K); the row of a class without samples may be anything."""
        c = self.counts.num_classes
        if not isinstance(centroids, Tensor) or centroids.ndim != 2 or len(centroids) != c:
            got = tuple(centroids.shape) if isinstance(centroids, Tensor) else type(centroids).__name__
            raise InputError(f"centroids must be a tensor of shape ({c}, K), got {got}")
        centroids = centroids.detach().to(compute_dtype(centroids), copy=True)
        empty = (self.counts.n == 0).to(centroids.device)
        centroids[empty] = centroids[empty].nan_to_num(0.0, 0.0, 0.0)
        wrong = ~torch.isfinite(centroids).all(1)
        if bool(wrong.any()):
            raise InputError(f"centroids must be finite, but that of class {int(wrong.nonzero()[0])} is not")
        self.centroids = centroids

    def values(self, out: Outputs, labels: Tensor, keys: Features | None, ids: Tensor | None) -> Tensor:
        frozen = self.centroids
        pairs = pair(out.embeddings, labels, keys, ids)
        if frozen is None:
            x, k = near_origin(out.embeddings, pairs.keys)
            positives = pairs.positives.to(x.dtype)
            means = (positives @ k + x) / (positives.sum(1, keepdim=True) + 1)
        else:
            if frozen.shape[1] != out.embeddings.shape[1]:
                raise InputError(f"centroids have {frozen.shape[1]} columns, embeddings {out.embeddings.shape[1]}")
            x, k, means = near_origin(out.embeddings, pairs.keys, frozen.to(out.embeddings)[labels])
        scores = (x - means).square().sum(1)[:, None] - squared_distances(means, k)
        scores = scores + torch.where(pairs.same, 0.0, self.vector("epsilon", x)[labels][:, None])
        # The anchor's own summand is exp(0) = 1.
        return log1p_sum_exp(scores, ~pairs.itself)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A term that has no centroids yet takes those of the state.
        saved = state_dict.get(prefix + "centroids")
        if isinstance(saved, Tensor) and saved.ndim == 2 and len(saved) == self.counts.num_classes:
            device = saved.device if self.centroids is None else self.centroids.device
            self.centroids = torch.zeros_like(saved, device=device)
        super()._load_from_state_dict(state_dict, prefix, *args)
