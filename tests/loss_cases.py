"""Every term with its naive reference: what the shared contract test runs over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import references as naive
from longtail import ClassCounts
from longtail.losses import (
    Center,
    DroLt,
    Features,
    HardMargin,
    HardPull,
    Hybrid,
    InfoNCE,
    MarginCrossEntropy,
    Pull,
    Range,
    SigmoidFocal,
    Spreadout,
    SupCon,
    Term,
    Triplet,
)
from longtail.margins import Constant, EffectiveNumber, LogPrior, Margin, Power

N = [40, 9, 3, 0]  # the last class has no samples, yet may appear in a batch
COUNTS = ClassCounts(N)
C, K = len(N), 3
CENTROIDS = torch.tensor([[0.5, -0.2, 0.1], [1.0, 0.0, 0.3], [-0.4, 0.6, 0.0], [0.0, 0.0, 0.2]], dtype=torch.float64)

LDAM = [2.0 * max(n, 1) ** -0.25 for n in N]
LOG_PRIOR = [torch.tensor(p, dtype=torch.float64).log().item() for p in naive.prior(N)]
PRIOR = [n / sum(N) for n in N]
WEIGHTS = [0.3, 1.0, 2.5, 1.5]
SCALE = [1.0, 0.9, 0.7, 1.2]
BETA = [(1 - 0.99) / (1 - 0.99 ** max(n, 1)) for n in N]
EFFECTIVE = [b * C / sum(BETA[:3]) for b in BETA]
ALPHA = [0.1 * n for n in N]
EPSILON = [p**-0.5 for p in naive.prior(N)]


class Listed(Power):
    """Any C values as a per-class function, to be used as margins."""

    def __init__(self, values: list[float]) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "values", values)

    def __call__(self, counts: ClassCounts) -> torch.Tensor:
        return torch.tensor(self.values, dtype=torch.float64)


@dataclass
class Case:
    """A term, its reference, and what is to be expected of it.

    Attributes:
        reference: (rows, labels, ids=…, keys=…) -> values.
        logits: whether it reads logits, else embeddings.
        shift: whether a constant added to all logits of a sample, or a vector to all embeddings, changes nothing.
        still: whether identical embeddings have gradient 0.
        keyed: whether it takes keys.
        first: the one case of its class that the slow tests run.
    """

    name: str
    build: Callable[[], Term]
    reference: Callable[..., list[float]]
    logits: bool = False
    shift: bool = False
    still: bool = False
    keyed: bool = False
    ids: bool = False
    first: bool = True

    def run(self, x: torch.Tensor, labels: torch.Tensor, term: Term | None = None, **given: Any) -> torch.Tensor:
        term = self.build() if term is None else term
        if self.ids and "ids" not in given:
            given["ids"] = torch.arange(len(labels)) // 2
        return term((x, None) if self.logits else (None, x), labels, **given)

    def expect(
        self, x: torch.Tensor, labels: torch.Tensor, ids: Any = None, keys: Features | None = None
    ) -> torch.Tensor:
        given: dict[str, Any] = {}
        if self.ids and ids is None:
            ids = torch.arange(len(labels)) // 2
        if ids is not None:
            given["ids"] = ids.tolist()
        if keys is not None:
            key_ids = [None] * len(keys.labels) if keys.ids is None else keys.ids.tolist()
            given["keys"] = list(zip(keys.embeddings.double().tolist(), keys.labels.tolist(), key_ids))
        values = self.reference(x.detach().double().tolist(), labels.tolist(), **given)
        return torch.tensor(values, dtype=torch.float64)

    def __repr__(self) -> str:
        return self.name


def _ce(
    name: str, first: bool = False, shift: bool = True, knobs: dict[str, Any] | None = None, **reference: Any
) -> Case:
    return Case(
        f"ce-{name}",
        lambda: MarginCrossEntropy(COUNTS, **(knobs or {})),
        lambda f, y: naive.margin_cross_entropy(f, y, **reference),
        logits=True,
        shift=shift,
        first=first,
    )


def _keyed(
    name: str,
    kind: type[Term],
    reference: Callable[..., list[float]],
    *values: Any,
    shift: bool = False,
    still: bool = False,
    ids: bool = False,
    first: bool = True,
    **knobs: Any,
) -> Case:
    """A term on embeddings that takes keys, with its knobs; ``values`` are what they are to the reference."""
    return Case(
        name,
        lambda: kind(COUNTS, **knobs),
        lambda x, y, **given: reference(x, y, *values, **given),
        shift=shift,
        still=still,
        keyed=True,
        ids=ids,
        first=first,
    )


TENTH: dict[str, Any] = {"alpha": Power(1.0, scale=0.1, of="count")}
UNIT: dict[str, Any] = {"normalise": True, "temperature": 0.1}
SOFT_MARGIN = Margin(target=Listed(LDAM), other=Power(1.0))

CASES = [
    _ce("plain"),
    _ce("log-ratio", True, knobs={"margin": Margin.log_ratio()}, target=[-v for v in LOG_PRIOR], other=LOG_PRIOR),
    _ce("half-tau", knobs={"margin": Margin(other=LogPrior(0.5))}, other=[v / 2 for v in LOG_PRIOR]),
    _ce("target", knobs={"margin": Margin(target=Listed(LDAM))}, target=LDAM),
    _ce("weights", knobs={"margin": SOFT_MARGIN, "weights": WEIGHTS}, target=LDAM, other=PRIOR, weights=WEIGHTS),
    _ce(
        "scale",
        shift=False,
        knobs={"margin": Margin.log_ratio(), "scale": SCALE},
        scale=SCALE,
        target=[-v for v in LOG_PRIOR],
        other=LOG_PRIOR,
    ),
    _ce("focal", knobs={"focal": 1.5, "weights": WEIGHTS}, focal=1.5, weights=WEIGHTS),
    _ce("focal-margin", knobs={"focal": 0.5, "margin": SOFT_MARGIN}, focal=0.5, target=LDAM, other=PRIOR),
    _ce("smooth", knobs={"label_smoothing": 0.1, "weights": WEIGHTS}, smoothing=0.1, weights=WEIGHTS),
    _ce(
        "smooth-margin",
        knobs={"label_smoothing": 0.1, "margin": SOFT_MARGIN, "weights": WEIGHTS, "focal": 2.0},
        smoothing=0.1,
        target=LDAM,
        other=PRIOR,
        weights=WEIGHTS,
        focal=2.0,
    ),
    Case(
        "hard-margin",
        lambda: HardMargin(COUNTS, margin=SOFT_MARGIN),
        lambda f, y: naive.hard_margin(f, y, LDAM, PRIOR),
        logits=True,
        shift=True,
    ),
    Case(
        "sigmoid-focal",
        lambda: SigmoidFocal(COUNTS, weights=EffectiveNumber(0.99)),
        lambda f, y: naive.sigmoid_focal(f, y, 1.0, EFFECTIVE),
        logits=True,
    ),
    Case(
        "sigmoid-focal-2",
        lambda: SigmoidFocal(COUNTS, gamma=2.0),
        lambda f, y: naive.sigmoid_focal(f, y, 2.0, [1.0] * C),
        logits=True,
        first=False,
    ),
    Case("hybrid", lambda: Hybrid(COUNTS), naive.hybrid, logits=True),
    _keyed("pull", Pull, naive.pull, ALPHA, **TENTH, shift=True, still=True),
    _keyed("hard-pull", HardPull, naive.hard_pull, ALPHA, **TENTH, shift=True, still=True),
    Case("center", lambda: Center(COUNTS), naive.center, shift=True, still=True),
    Case("range", lambda: Range(COUNTS, gamma=30.0), lambda x, y: naive.range_loss(x, y, 30.0), shift=True, still=True),
    Case(
        "range-1", lambda: Range(COUNTS), lambda x, y: naive.range_loss(x, y, 1.0), shift=True, still=True, first=False
    ),
    Case("spreadout", lambda: Spreadout(COUNTS), naive.spreadout),
    _keyed("dro-lt", DroLt, naive.dro_lt, EPSILON, shift=True, still=True),
    _keyed("dro-lt-0", DroLt, naive.dro_lt, [0.0] * C, epsilon=Constant(0.0), shift=True, still=True, first=False),
    _keyed("dro-lt-frozen", DroLt, naive.dro_lt, EPSILON, CENTROIDS.tolist(), centroids=CENTROIDS, first=False),
    _keyed("infonce", InfoNCE, naive.infonce, False, 1.0, ids=True),
    _keyed("infonce-unit", InfoNCE, naive.infonce, True, 0.1, **UNIT, ids=True, first=False),
    _keyed("supcon", SupCon, naive.supcon),
    _keyed("supcon-unit", SupCon, naive.supcon, True, 0.1, **UNIT, first=False),
    _keyed("triplet", Triplet, naive.triplet),
    _keyed("triplet-unit", Triplet, naive.triplet, 0.3, True, gamma=0.3, normalise=True, first=False),
]


def batch(case: Case, size: int = 9, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Any:
    """Random rows and labels for a case."""
    g = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(size, C if case.logits else K, generator=g, dtype=torch.float64)
    return x.to(dtype), torch.randint(0, C, (size,), generator=g)
