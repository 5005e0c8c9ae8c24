"""What the paper printed, as data: Table 1 (summary of approaches), Table 2 (results), Table 3 (hyper-parameters).

Table 2 is balanced test accuracy in per cent, averaged over 3 trials. Numbers which the paper quotes from elsewhere
carry the paper's own marks (``MARKS``); rows with ``multi_stage`` are the faded ones.

>>> number("elm", "cifar100-lt").text
'45.77'
>>> number("cb-focal", "cifar100-lt").text
'39.60‡'
>>> number("cb-focal", "digits-lt") is None
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TITLE = "ELM: Embedding and Logit Margins for Long-Tail Learning (Jitkrittum, Menon, Rawat, Kumar)"
TRIALS = 3

DATASETS = {
    "cifar10-lt": "CIFAR10-LT",
    "cifar100-lt": "CIFAR100-LT",
    "imagenet-lt": "ImageNet-LT",
    "inat2018": "iNaturalist",
}
# Number of classes and of training samples: how we know that a run saw the paper's data set (imbalance ratio 100)
# and not another profile of the same images.
SIZES = {
    "cifar10-lt": (10, 12_406),
    "cifar100-lt": (100, 10_847),
    "imagenet-lt": (1000, 115_846),
    "inat2018": (8142, 437_513),
}
MARKS = {
    "⋆": "“τ-normalised” from Kang et al. (2020), Tables 3 and 7",
    "‡": "“Class-Balanced” from Cui et al. (2019), Tables 2 and 3",
    "†": "“LDAM + DRW” from Cao et al. (2019), Tables 2 and 3",
    "⋄": "“DRO-LT” from Samuel and Chechik (2021), Tables 1 and 2",
}


@dataclass(frozen=True)
class Number:
    """A number in per cent, with the mark of the work that the paper quotes it from (or none)."""

    value: float
    mark: str = ""

    @property
    def text(self) -> str:
        return f"{self.value:.2f}{self.mark}"


@dataclass(frozen=True)
class Result:
    """One row of Table 2; ``method`` is our name for it."""

    method: str
    title: str
    numbers: dict[str, Number] = field(hash=False)
    multi_stage: bool = False


def _row(method: str, title: str, *cells: str, multi_stage: bool = False) -> Result:
    """Cells as printed, in the order of ``DATASETS``: a number with at most one mark after it."""
    numbers = {}
    for data, cell in zip(DATASETS, cells, strict=True):
        mark = cell[-1] if cell[-1] in MARKS else ""
        numbers[data] = Number(float(cell.removesuffix(mark)), mark)
    return Result(method, title, numbers, multi_stage)


TABLE2 = (
    _row("ce", "Cross-entropy (CE)", "72.84", "38.36", "45.20", "61.34"),
    _row("cb-focal", "CB Focal", "74.57‡", "39.60‡", "46.79", "64.16‡"),
    _row("ldam-drw", "LDAM + DRW", "77.03†", "42.04†", "50.15", "68.00†"),
    _row("logadj", "LogAdj", "77.67", "43.89", "50.37", "66.36"),
    _row("dro-lt", "CE + DRO-LT (one-stage)", "72.70", "41.98", "45.70", "62.05"),
    _row("tau-norm", "CE + weight normalisation (multi-stage)", "78.50", "41.34", "50.63", "65.60⋆", multi_stage=True),
    _row("dro-lt-multistage", "CE + DRO-LT (multi-stage)", "80.50", "46.92⋄", "53.00⋄", "69.70⋄", multi_stage=True),
    _row("elm", "ELM (proposed, one-stage)", "77.95", "45.77", "50.60", "68.71"),
)

# The columns of Table 1: our key, the printed heading.
TRAITS = {
    "long_tail": "Long tail?",
    "logit_loss": "Logit loss?",
    "logit_margin": "Logit margin?",
    "embedding_loss": "Embedding loss?",
    "embedding_margin": "Embedding margin?",
}


@dataclass(frozen=True)
class Approach:
    """One row of Table 1: ticks in the order of ``TRAITS``; None where the paper prints “—” (not applicable)."""

    title: str
    methods: tuple[str, ...]
    ticks: tuple[bool | None, ...]


def _approach(title: str, methods: str, ticks: str) -> Approach:
    return Approach(title, tuple(methods.split()), tuple({"+": True, "x": False, "-": None}[t] for t in ticks))


TABLE1 = (
    _approach("Contrastive loss", "contrastive", "---+x"),
    _approach("Supervised contrastive loss", "supcon", "xx-+x"),
    _approach("Triplet loss", "triplet", "xx-++"),
    _approach("Spreadout", "spreadout", "x+x+x"),
    _approach("Center loss", "center", "x+x+x"),
    _approach("Hybrid contrastive learning", "hybrid", "x+x+x"),
    _approach("Softmax with margin", "ldam-drw ldam equalised logadj", "+++x-"),
    _approach("Range loss", "range", "++x++"),
    _approach("DRO-LT", "dro-lt dro-lt-multistage", "++x++"),
    _approach("Ours (ELM)", "elm", "+++++"),
)


@dataclass(frozen=True)
class Recipe:
    """One column of Table 3; the learning rate falls by steps at the milestones, or else as a cosine."""

    model: str
    epochs: int
    batch_size: int
    weight_decay: float
    lr: float = 0.4
    warmup: int = 0
    milestones: tuple[int, ...] = ()


_CIFAR = Recipe("resnet32", epochs=256, batch_size=128, weight_decay=1e-4, warmup=15, milestones=(96, 192, 224))
TABLE3 = {
    "cifar10-lt": _CIFAR,
    "cifar100-lt": _CIFAR,
    "imagenet-lt": Recipe("resnet50", epochs=90, batch_size=512, weight_decay=5e-4),
    "inat2018": Recipe("resnet50", epochs=90, batch_size=1024, weight_decay=1e-4),
}


def result(method: str) -> Result | None:
    """The row of Table 2 for one of our methods."""
    return next((row for row in TABLE2 if row.method == method), None)


def number(method: str, data: str) -> Number | None:
    """The paper's number for a method on a data set, or None where it has none."""
    row = result(method)
    return None if row is None else row.numbers.get(data)


def same_data(data: str, counts: Sequence[int]) -> bool:
    """Whether a data set of this name and these training counts is the one which the paper's numbers are about."""
    return SIZES.get(data) == (len(counts), sum(counts))


def departures(data: str, model: str, epochs: int | None, recipe: Mapping[str, Any]) -> list[str]:
    """In what a run departs from Table 3; warm-up and milestones in proportion to the epochs are the paper's.

    >>> departures("cifar10-lt", "resnet32", 64, {"lr": 0.4, "milestones": [24, 48, 56]})
    ['epochs 64 (paper: 256)']
    """
    printed = TABLE3[data]
    scale = (epochs or printed.epochs) / printed.epochs
    pairs: dict[str, tuple[Any, Any]] = {
        "epochs": (epochs, printed.epochs),
        "model": (model or None, printed.model),
        "batch size": (recipe.get("batch_size"), printed.batch_size),
        "learning rate": (recipe.get("lr"), printed.lr),
        "weight decay": (recipe.get("weight_decay"), printed.weight_decay),
        "schedule": (recipe.get("schedule"), "step" if printed.milestones else "cosine"),
        "epochs of warm-up": (recipe.get("warmup_epochs"), printed.warmup * scale),
        "milestones": (recipe.get("milestones"), [m * scale for m in printed.milestones]),
        "augmentation": (None if recipe.get("augment") == "auto" else recipe.get("augment"), "crop and flip"),
        "average of weights": (recipe.get("ema"), "none"),
    }
    known = {what: pair for what, pair in pairs.items() if pair[0] is not None and not _same(*pair)}
    return [f"{what} {ours} (paper: {theirs})" for what, (ours, theirs) in known.items()]


def _same(ours: Any, theirs: Any) -> bool:
    """Equal up to the rounding of lengths that were scaled."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    both = isinstance(ours, (int, float)) and isinstance(theirs, (int, float))
    return math.isclose(ours, theirs, rel_tol=1e-6) if both else ours == theirs
