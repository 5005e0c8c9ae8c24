"""Every named method of the paper's tables as a ``Plan``, and our own: compositions of losses, nothing else.

>>> from longtail import ClassCounts
>>> plan = build("elm", ClassCounts([90, 9, 1]), lam=0.1)
>>> plan.stages[0].objective.coefficients
[1.0, 0.1]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from . import margins
from .counts import ClassCounts
from .errors import InputError, unknown
from .losses import (
    ELM,
    Center,
    DroLt,
    Hybrid,
    InfoNCE,
    MarginCrossEntropy,
    Objective,
    Range,
    RelativePull,
    SigmoidFocal,
    Spreadout,
    SupCon,
    Term,
    Triplet,
)
from .losses.memory import ClassMemory
from .margins import Constant, EffectiveNumber, Ldam, Margin, PerClass, Power, Relative
from .plan import Plan, Posthoc, Stage

Builder = Callable[..., dict[str, Any]]

# α and λ of the paper's appendix, by data set
PAPER_SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10-lt": {"alpha": Power(1.0), "lam": 0.01},
    "cifar100-lt": {"alpha": Power(0.5, of="count"), "lam": 0.01},
    "imagenet-lt": {"alpha": Power(0.5, scale=10.0), "lam": 0.001},
    "inat2018": {"alpha": Power(0.5, of="count"), "lam": 0.01},
}

KNN_GRID = (1.0, 5.0, 10.0, 20.0, 50.0)
TAU_GRID = tuple(round(0.1 * i, 1) for i in range(21))
# The short stage that fits a classifier again on a frozen network: 10 of 90 epochs in Kang et al. 2020
HEAD_SHARE = 1 / 9


def _ce(counts: ClassCounts) -> Objective:
    return Objective((1.0, MarginCrossEntropy(counts)))


def _margin_method(counts: ClassCounts, margin: Margin, **knobs: Any) -> dict[str, Any]:
    return {"stages": (Stage("train", Objective((1.0, MarginCrossEntropy(counts, margin=margin, **knobs)))),)}


def _regularised(term: Term, lam: float) -> dict[str, Any]:
    return {"stages": (Stage("train", Objective((1.0, MarginCrossEntropy(term.counts)), (lam, term))),)}


def _embedding_only(term: Term, classifier: str, views: int = 1) -> dict[str, Any]:
    embed = Stage("embed", Objective((1.0, term)), views=views)
    if classifier == "knn":
        return {"stages": (embed,), "posthoc": (Posthoc("knn", "k", KNN_GRID),)}
    head = Stage("head", _ce(term.counts), share=HEAD_SHARE, trains="head", reset_head=True, sampler="balanced")
    return {"stages": (embed, head)}


def ce(counts: ClassCounts) -> dict[str, Any]:
    """Softmax cross-entropy."""
    return {"stages": (Stage("train", _ce(counts)),)}


def cb_focal(counts: ClassCounts, gamma: float = 1.0, beta: float = 0.9999) -> dict[str, Any]:
    """Sigmoid focal loss weighted by the effective number of samples (Cui et al. 2019)."""
    loss = SigmoidFocal(counts, gamma=gamma, weights=EffectiveNumber(beta))
    return {
        "stages": (Stage("train", Objective((1.0, loss))),),
        "head_bias": -math.log(max(counts.num_classes - 1, 1)),
    }


def ldam_drw(
    counts: ClassCounts, max_margin: float = 0.5, scale: float = 30.0, beta: float = 0.9999, drw: float = 0.8
) -> dict[str, Any]:
    """Label-distribution-aware margin, cosine head, re-weighted after a share `drw` of training (Cao et al. 2019)."""
    if not 0 < drw < 1:
        raise InputError(f"drw is the share of training before re-weighting, between 0 and 1, got {drw}")
    margin = Margin(target=Ldam(max_margin, scale=scale))
    plain = MarginCrossEntropy(counts, margin=margin, scale=scale)
    weighted = MarginCrossEntropy(counts, margin=margin, scale=scale, weights=EffectiveNumber(beta))
    return {
        "stages": (
            Stage("train", Objective((1.0, plain)), share=drw),
            Stage("reweight", Objective((1.0, weighted)), share=1 - drw, restart=False),
        ),
        "head": "cosine",
    }


def logadj(counts: ClassCounts, tau: float = 1.0) -> dict[str, Any]:
    """Logit-adjusted (balanced) softmax (Ren et al. 2020, Menon et al. 2021)."""
    return _margin_method(counts, Margin.log_ratio(tau))


def equalised(counts: ClassCounts, scale: float = 1.0) -> dict[str, Any]:
    """Cross-entropy with Δ = P(y'), as the paper writes the equalised loss (Tan et al. 2020)."""
    return _margin_method(counts, Margin(other=Power(1.0, scale=scale)))


def vs(counts: ClassCounts, gamma: float = 0.05, tau: float = 0.75) -> dict[str, Any]:
    """Vector scaling: logits times (n/max n)^γ plus τ·log prior (Kini et al. 2021)."""
    return _margin_method(counts, Margin.log_ratio(tau), scale=Relative(gamma))


def dro_lt(counts: ClassCounts, lam: float = 0.01, epsilon: PerClass = Power(-0.5)) -> dict[str, Any]:
    """Cross-entropy + λ·DRO-LT, centroids from the batch: the paper's one-stage form (Samuel and Chechik 2021)."""
    return _regularised(DroLt(counts, epsilon=epsilon), lam)


def dro_lt_multistage(counts: ClassCounts, lam: float = 0.01, epsilon: PerClass = Power(-0.5)) -> dict[str, Any]:
    """Cross-entropy; then + λ·DRO-LT with the centroids frozen; then a new head on class-balanced batches."""
    dro = Objective((1.0, MarginCrossEntropy(counts)), (lam, DroLt(counts, epsilon=epsilon)))
    return {
        "stages": (
            Stage("train", _ce(counts)),
            Stage("dro", dro, share=0.5, centroids=True),
            Stage("head", _ce(counts), share=HEAD_SHARE, trains="head", reset_head=True, sampler="balanced"),
        ),
        "notes": ("the second stage lasts half of the first, which the paper leaves open",),
    }


def tau_norm(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then w/‖w‖^τ without bias, τ from validation data (Kang et al. 2020)."""
    return {**ce(counts), "posthoc": (Posthoc("tau-norm", "tau", TAU_GRID),)}


def crt(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then a new head on class-balanced batches with the network frozen (Kang et al. 2020)."""
    head = Stage("head", _ce(counts), share=HEAD_SHARE, trains="head", reset_head=True, sampler="balanced")
    return {"stages": (Stage("train", _ce(counts)), head)}


def lws(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then one learnt factor a class on the frozen head, class-balanced batches (Kang et al. 2020)."""
    scale = Stage("scale", _ce(counts), share=HEAD_SHARE, trains="scale", sampler="balanced")
    return {"stages": (Stage("train", _ce(counts)), scale)}


def elm(
    counts: ClassCounts,
    lam: float = 0.01,
    alpha: PerClass = Power(0.5, of="count"),
    tau: float = 1.0,
    memory: int = 0,
    memory_age: int = 0,
    memory_below: int = 0,
    memory_warmup: int = 0,
    memory_ema: float = 0.0,
    sampler: Literal["instance", "pairs"] = "instance",
    scaled: bool = False,
) -> dict[str, Any]:
    """Logit adjustment + λ·Ω_pull with margin α: the paper's objective; `memory` keys a class beyond the batch."""
    remembered = _memory(counts, memory, memory_age, memory_below, memory_warmup)
    objective = ELM(counts, alpha=alpha, lam=lam, tau=tau, memory=remembered, scaled=scaled)
    return {"stages": (Stage("train", objective, sampler=sampler, key_ema=_key_ema(memory, memory_ema)),)}


def elm_relative(
    counts: ClassCounts,
    lam: float = 0.01,
    alpha: PerClass = Constant(0.0),
    tau: float = 1.0,
    start: float = 0.0,
    memory: int = 0,
    memory_age: int = 0,
    memory_below: int = 0,
    memory_warmup: int = 0,
    memory_ema: float = 0.0,
    sampler: Literal["instance", "pairs"] = "instance",
    scaled: bool = False,
) -> dict[str, Any]:
    """ELM with distances relative to the spread of the batch, so that λ means the same everywhere: our own form.

    The pull sets in after the share `start` of training.
    """
    if not 0 <= start < 1:
        raise InputError(f"start is the share of training before the pull sets in, at least 0 and below 1, got {start}")
    remembered = _memory(counts, memory, memory_age, memory_below, memory_warmup)
    objective = Objective(
        (1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio(tau))),
        (lam, RelativePull(counts, alpha=alpha, scaled=scaled)),
        memory=remembered,
    )
    pull = Stage(
        "pull", objective, share=1 - start, restart=False, sampler=sampler, key_ema=_key_ema(memory, memory_ema)
    )
    if start == 0:
        return {"stages": (replace(pull, name="train"),)}
    first = Stage("train", Objective((1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio(tau)))), share=start)
    return {"stages": (first, pull)}


def _memory(counts: ClassCounts, capacity: int, age: int, below: int, warmup: int) -> ClassMemory | None:
    """A memory of so many embeddings a class, none for 0; an age or a count of 0 sets no limit."""
    if capacity == 0:
        for name, value in (("memory_age", age), ("memory_below", below), ("memory_warmup", warmup)):
            if value:
                raise InputError(f"{name}={value} limits a memory, and there is none: it needs one, such as memory=16")
        return None
    return ClassMemory(counts, capacity=capacity, max_age=age or None, below=below or None, warmup=warmup)


def _key_ema(capacity: int, decay: float) -> float | None:
    """The decay of the average that a memory's keys come from, none for 0."""
    if not 0 <= decay < 1:
        raise InputError(f"memory_ema is the decay of an average of the weights, at least 0 and below 1, got {decay}")
    if decay and not capacity:
        raise InputError("memory_ema says where a memory's embeddings come from: it needs a memory, such as memory=16")
    return decay or None


def center(counts: ClassCounts, lam: float = 0.01) -> dict[str, Any]:
    """Cross-entropy + λ·center loss (Wen et al. 2016)."""
    return _regularised(Center(counts), lam)


def spreadout(counts: ClassCounts, lam: float = 0.01) -> dict[str, Any]:
    """Cross-entropy + λ·spreadout (Zhang et al. 2017b)."""
    return _regularised(Spreadout(counts), lam)


def range_loss(counts: ClassCounts, lam: float = 0.01, gamma: float = 1.0) -> dict[str, Any]:
    """Cross-entropy + λ·range loss (Zhang et al. 2017)."""
    # One γ for all classes, yet the loss was proposed for long-tailed data: the paper ticks it.
    return {**_regularised(Range(counts, gamma=gamma), lam), "declared": {"long_tail": True}}


def hybrid(counts: ClassCounts, lam: float = 0.01) -> dict[str, Any]:
    """Cross-entropy + λ·contrastive term on logits (Liu et al. 2020b)."""
    return _regularised(Hybrid(counts), lam)


def supcon(
    counts: ClassCounts, temperature: float = 0.1, classifier: Literal["knn", "linear"] = "knn"
) -> dict[str, Any]:
    """Supervised contrastive loss alone, then k-NN or a linear head (Khosla et al. 2020)."""
    return _embedding_only(SupCon(counts, normalise=True, temperature=temperature), classifier)


def triplet(counts: ClassCounts, gamma: float = 1.0, classifier: Literal["knn", "linear"] = "knn") -> dict[str, Any]:
    """Triplet loss alone, then k-NN or a linear head (Weinberger and Saul 2009)."""
    return _embedding_only(Triplet(counts, gamma=gamma), classifier)


def contrastive(
    counts: ClassCounts, temperature: float = 0.1, classifier: Literal["knn", "linear"] = "knn"
) -> dict[str, Any]:
    """InfoNCE between two views of each sample, no labels, then k-NN or a linear head (van den Oord et al. 2018)."""
    # Without labels, whether the method knows the tail or learns logits is not a question: the paper prints dashes.
    plan = _embedding_only(InfoNCE(counts, normalise=True, temperature=temperature), classifier, views=2)
    return {**plan, "declared": {"long_tail": None, "logit_loss": None}}


METHODS: dict[str, Builder] = {
    "ce": ce,
    "cb-focal": cb_focal,
    "ldam-drw": ldam_drw,
    "logadj": logadj,
    "equalised": equalised,
    "vs": vs,
    "dro-lt": dro_lt,
    "dro-lt-multistage": dro_lt_multistage,
    "tau-norm": tau_norm,
    "crt": crt,
    "lws": lws,
    "elm": elm,
    "elm-relative": elm_relative,
    "center": center,
    "spreadout": spreadout,
    "range": range_loss,
    "hybrid": hybrid,
    "supcon": supcon,
    "triplet": triplet,
    "contrastive": contrastive,
}


def names() -> list[str]:
    """All methods, in the order of the paper's tables."""
    return list(METHODS)


def knobs(name: str) -> dict[str, Any]:
    """A method's knobs with their defaults."""
    parameters = list(inspect.signature(_builder(name)).parameters.values())[1:]
    return {p.name: p.default for p in parameters}


def describe(name: str) -> str:
    """The first line of what the method is."""
    return (inspect.getdoc(_builder(name)) or "").splitlines()[0]


def build(name: str, counts: ClassCounts, *, data: str | None = None, **given: Any) -> Plan:
    """The plan of a method for these counts.

    Args:
        data: a data set for which the paper gives settings (α and λ of ELM): they become the defaults.
        given: the method's knobs, as values or as the strings that the command line has.
    """
    builder = _builder(name)
    if not isinstance(counts, ClassCounts):
        counts = ClassCounts(counts)
    defaults = knobs(name)
    if name == "elm" and data in PAPER_SETTINGS:
        defaults |= PAPER_SETTINGS[data]
    for knob in given:
        if knob not in defaults:
            if not defaults:
                raise InputError(f"method {name!r} has no knobs, got {knob!r}")
            raise unknown(f"knob of {name!r}", knob, defaults)
    hints = inspect.get_annotations(builder, eval_str=True)
    values = {k: _read(k, given.get(k, default), hints[k]) for k, default in defaults.items()}
    plain = {k: v.to_data() if isinstance(v, PerClass) else v for k, v in values.items()}
    return Plan(method=name, knobs=plain, **builder(counts, **values))


def _builder(name: str) -> Builder:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def _read(name: str, value: Any, kind: Any) -> Any:
    """A knob's value from what was given: a value of its kind, plain data, or the text of the command line."""
    if kind is PerClass:
        return margins.parse(value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(name, value, [str(a) for a in get_args(kind)])
        return value
    if kind is bool:
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise InputError(f"{name} must be true or false, got {value!r}")
        return text in ("true", "1")
    try:
        number = kind(value) if not isinstance(value, bool) else None
        if number is None or (kind is int and float(value) != number) or not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a {'whole' if kind is int else 'finite'} number, got {value!r}") from None
    return number


__all__ = ["METHODS", "PAPER_SETTINGS", "build", "describe", "knobs", "names"]
