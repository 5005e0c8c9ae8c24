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
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from . import losses, plugins
from .counts import ClassCounts, class_counts
from .errors import InputError, one_of, real, whole
from .knobs import arguments, knobs_of, read
from .losses import MarginCrossEntropy, Objective, Term
from .losses.memory import ClassMemory
from .margins import Constant, EffectiveNumber, Ldam, Margin, PerClass, Power, Relative, short
from .plan import Plan, Posthoc, Stage

Builder = Callable[..., "Objective | dict[str, Any]"]
_Method = TypeVar("_Method", bound=Builder)
_Classifier = Literal["knn", "linear"]
_Head = Literal["linear", "cosine"]

METHODS: dict[str, Builder] = {}
# Knobs that are others by data set: {method: {data: {knob: value}}}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {}
# α and λ of the paper's appendix, by data set
PAPER_SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10-lt": {"alpha": Power(1.0), "lam": 0.01},
    "cifar100-lt": {"alpha": Power(0.5, of="count"), "lam": 0.01},
    "imagenet-lt": {"alpha": Power(0.5, scale=10.0), "lam": 0.001},
    "inat2018": {"alpha": Power(0.5, of="count"), "lam": 0.01},
}
# What the committed runs of the small built-in data used
SMALL_SETTINGS: dict[str, dict[str, Any]] = {"digits-lt": {"lam": 0.01}, "moons": {"lam": 0.01}}

KNN_GRID = (1.0, 5.0, 10.0, 20.0, 50.0)
TAU_GRID = tuple(round(0.1 * i, 1) for i in range(21))
# The short stage that fits a classifier again on a frozen network: 10 of 90 epochs in Kang et al. 2020
HEAD_SHARE = 1 / 9
# More embeddings a class than any long-tailed data set has samples
MOST_REMEMBERED = 10**6


def method(name: str, settings: dict[str, dict[str, Any]] | None = None) -> Callable[[_Method], _Method]:
    """Make a function a method: it is called with the class counts and its knobs, and returns an ``Objective`` (one
    stage of training) or the fields of a ``Plan``.

    Every parameter after the counts is a knob and has a default; its annotation says what it is read as. Parameters
    behind a bare ``*`` came later and are off by default: a plan lists them only where they are on, so that the folders
    of earlier runs keep their names. ``settings`` are other defaults for some data sets, by name.
    """

    def register(function: _Method) -> _Method:
        METHODS[name] = function
        SETTINGS[name] = settings or {}
        return function

    return register


def _ce(counts: ClassCounts, **knobs: Any) -> Objective:
    """Cross-entropy alone, with a margin, a scale or weights where they are given."""
    return Objective((1.0, MarginCrossEntropy(counts, **knobs)))


def _regularised(term: Term, lam: float) -> Objective:
    return Objective((1.0, MarginCrossEntropy(term.counts)), (lam, term))


def _new_head(counts: ClassCounts) -> Stage:
    return Stage("head", _ce(counts), share=HEAD_SHARE, trains="head", reset_head=True, sampler="balanced")


def _embedding_only(term: Term, classifier: str, views: int = 1) -> dict[str, Any]:
    embed = Stage("embed", Objective((1.0, term)), views=views)
    if classifier == "knn":
        return {"stages": (embed,), "posthoc": (Posthoc("knn", "k", KNN_GRID),)}
    return {"stages": (embed, _new_head(term.counts))}


@method("ce")
def ce(
    counts: ClassCounts, *, sampler: Literal["instance", "balanced", "sqrt", "progressive"] = "instance"
) -> dict[str, Any]:
    """Softmax cross-entropy; with another `sampler`, on batches drawn by class (Kang et al. 2020)."""
    return {"stages": (Stage("train", _ce(counts), sampler=sampler),)}


@method("cb-focal")
def cb_focal(counts: ClassCounts, gamma: float = 1.0, beta: float = 0.9999) -> dict[str, Any]:
    """Sigmoid focal loss weighted by the effective number of samples (Cui et al. 2019)."""
    loss = losses.SigmoidFocal(counts, gamma=gamma, weights=EffectiveNumber(beta))
    stage = Stage("train", Objective((1.0, loss)))
    return {"stages": (stage,), "head_bias": -math.log(max(counts.num_classes - 1, 1))}


@method("ldam-drw")
def ldam_drw(
    counts: ClassCounts, max_margin: float = 0.5, scale: float = 30.0, beta: float = 0.9999, drw: float = 0.8
) -> dict[str, Any]:
    """Label-distribution-aware margin, cosine head, re-weighted after a share `drw` of training (Cao et al. 2019)."""
    drw = real("drw, the share of training before re-weighting,", drw, above=0, below=1)
    loss: dict[str, Any] = {"margin": Margin(target=Ldam(max_margin, scale=scale)), "scale": scale}
    plain = Stage("train", _ce(counts, **loss), share=drw)
    weighted = _ce(counts, **loss, weights=EffectiveNumber(beta))
    return {"stages": (plain, Stage("reweight", weighted, share=1 - drw, restart=False)), "head": "cosine"}


@method("logadj")
def logadj(
    counts: ClassCounts, tau: float = 1.0, *, head: _Head = "linear", head_scale: float = 30.0
) -> dict[str, Any]:
    """Logit-adjusted (balanced) softmax (Ren et al. 2020, Menon et al. 2021)."""
    objective = _ce(counts, margin=Margin.log_ratio(tau), scale=_scale(head, head_scale))
    return {"stages": (Stage("train", objective),), "head": head}


def _scale(head: str, scale: float) -> float:
    """What the loss multiplies logits by: cosines need it, the logits of a linear head have a scale of their own."""
    return scale if head == "cosine" else 1.0


@method("equalised")
def equalised(counts: ClassCounts, scale: float = 1.0) -> Objective:
    """Cross-entropy with Δ = P(y'), as the paper writes the equalised loss (Tan et al. 2020)."""
    return _ce(counts, margin=Margin(other=Power(1.0, scale=scale)))


@method("vs")
def vs(counts: ClassCounts, gamma: float = 0.05, tau: float = 0.75) -> Objective:
    """Vector scaling: logits times (n/max n)^γ plus τ·log prior (Kini et al. 2021)."""
    return _ce(counts, margin=Margin.log_ratio(tau), scale=Relative(gamma))


@method("dro-lt")
def dro_lt(counts: ClassCounts, lam: float = 0.01, epsilon: PerClass = Power(-0.5)) -> Objective:
    """Cross-entropy + λ·DRO-LT, centroids from the batch: the paper's one-stage form (Samuel and Chechik 2021)."""
    return _regularised(losses.DroLt(counts, epsilon=epsilon), lam)


@method("dro-lt-multistage")
def dro_lt_multistage(counts: ClassCounts, lam: float = 0.01, epsilon: PerClass = Power(-0.5)) -> dict[str, Any]:
    """Cross-entropy; then + λ·DRO-LT with the centroids frozen; then a new head on class-balanced batches."""
    dro = Stage("dro", _regularised(losses.DroLt(counts, epsilon=epsilon), lam), share=0.5, centroids=True)
    return {
        "stages": (Stage("train", _ce(counts)), dro, _new_head(counts)),
        "notes": ("the second stage lasts half of the first, which the paper leaves open",),
    }


@method("tau-norm")
def tau_norm(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then w/‖w‖^τ without bias, τ from validation data (Kang et al. 2020)."""
    return {**ce(counts), "posthoc": (Posthoc("tau-norm", "tau", TAU_GRID),)}


@method("crt")
def crt(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then a new head on class-balanced batches with the network frozen (Kang et al. 2020)."""
    return {"stages": (Stage("train", _ce(counts)), _new_head(counts))}


@method("lws")
def lws(counts: ClassCounts) -> dict[str, Any]:
    """Cross-entropy, then one learnt factor a class on the frozen head, class-balanced batches (Kang et al. 2020)."""
    scale = Stage("scale", _ce(counts), share=HEAD_SHARE, trains="scale", sampler="balanced")
    return {"stages": (Stage("train", _ce(counts)), scale)}


@dataclass(frozen=True)
class Positives:
    """Where a pull finds positives beside its batch: knobs that ``elm`` and ``elm-relative`` share.

    Attributes:
        memory: embeddings remembered a class; 0 for no memory.
        memory_age, memory_below, memory_warmup: limits of ``ClassMemory``; 0 for none.
        memory_ema: decay of the average of the weights that remembered embeddings come from; 0 for the weights.
        sampler: ``pairs`` puts two samples of a class next to one another.
        scaled: the scaled form of ``Pull``.
    """

    memory: int = 0
    memory_age: int = 0
    memory_below: int = 0
    memory_warmup: int = 0
    memory_ema: float = 0.0
    sampler: Literal["instance", "pairs"] = "instance"
    scaled: bool = False

    def remembered(self, counts: ClassCounts) -> ClassMemory | None:
        if self.memory:
            whole("memory", self.memory, 1, MOST_REMEMBERED)
            age, below = self.memory_age or None, self.memory_below or None
            return ClassMemory(counts, capacity=self.memory, max_age=age, below=below, warmup=self.memory_warmup)
        for name in ("memory_age", "memory_below", "memory_warmup", "memory_ema"):
            if value := getattr(self, name):
                raise InputError(f"{name}={short(value)} is of a memory, and there is none: set one, such as memory=16")
        return None

    def stage(self, name: str, objective: Objective, **fields: Any) -> Stage:
        ema = real("memory_ema, the decay of an average of the weights,", self.memory_ema, at_least=0, below=1)
        return Stage(name, objective, sampler=self.sampler, key_ema=ema or None, **fields)


@method("elm", settings={**PAPER_SETTINGS, **SMALL_SETTINGS})
def elm(
    counts: ClassCounts,
    lam: float | Literal["auto"] = "auto",
    alpha: PerClass = Power(0.5, of="count"),
    tau: float = 1.0,
    positives: Positives = Positives(),
    *,
    normalise: bool = False,
    pull_scale: float = 1.0,
    head: _Head = "linear",
    head_scale: float = 30.0,
) -> dict[str, Any]:
    """Logit adjustment + λ·Ω_pull with margin α: the paper's objective; `memory` keys a class beyond the batch."""
    objective = losses.ELM(
        counts, lam=lam, alpha=alpha, tau=tau, memory=positives.remembered(counts), scaled=positives.scaled,
        normalise=normalise, pull_scale=pull_scale, head_scale=_scale(head, head_scale),
    )  # fmt: skip
    return {"stages": (positives.stage("train", objective),), "head": head}


@method("elm-relative")
def elm_relative(
    counts: ClassCounts,
    lam: float = 0.01,
    alpha: PerClass = Constant(0.0),
    tau: float = 1.0,
    start: float = 0.0,
    positives: Positives = Positives(),
) -> dict[str, Any]:
    """ELM with distances relative to the spread of the batch, so that λ means the same everywhere: our own form.

    The pull sets in after the share `start` of training.
    """
    start = real("start, the share of training before the pull sets in,", start, at_least=0, below=1)
    adjusted = (1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio(tau)))
    relative = (lam, losses.RelativePull(counts, alpha=alpha, scaled=positives.scaled))
    objective = Objective(adjusted, relative, memory=positives.remembered(counts))
    if start == 0:
        return {"stages": (positives.stage("train", objective, restart=False),)}
    first = Stage("train", Objective(adjusted), share=start)
    return {"stages": (first, positives.stage("pull", objective, share=1 - start, restart=False))}


@method("center")
def center(counts: ClassCounts, lam: float = 0.01) -> Objective:
    """Cross-entropy + λ·center loss (Wen et al. 2016)."""
    return _regularised(losses.Center(counts), lam)


@method("spreadout")
def spreadout(counts: ClassCounts, lam: float = 0.01) -> Objective:
    """Cross-entropy + λ·spreadout (Zhang et al. 2017b)."""
    return _regularised(losses.Spreadout(counts), lam)


@method("range")
def range_loss(counts: ClassCounts, lam: float = 0.01, gamma: float = 1.0) -> dict[str, Any]:
    """Cross-entropy + λ·range loss (Zhang et al. 2017)."""
    # One γ for all classes, yet the loss was proposed for long-tailed data: the paper ticks it.
    stage = Stage("train", _regularised(losses.Range(counts, gamma=gamma), lam))
    return {"stages": (stage,), "declared": {"long_tail": True}}


@method("hybrid")
def hybrid(counts: ClassCounts, lam: float = 0.01) -> Objective:
    """Cross-entropy + λ·contrastive term on logits (Liu et al. 2020b)."""
    return _regularised(losses.Hybrid(counts), lam)


@method("supcon")
def supcon(counts: ClassCounts, temperature: float = 0.1, classifier: _Classifier = "knn") -> dict[str, Any]:
    """Supervised contrastive loss alone, then k-NN or a linear head (Khosla et al. 2020)."""
    return _embedding_only(losses.SupCon(counts, normalise=True, temperature=temperature), classifier)


@method("triplet")
def triplet(counts: ClassCounts, gamma: float = 1.0, classifier: _Classifier = "knn") -> dict[str, Any]:
    """Triplet loss alone, then k-NN or a linear head (Weinberger and Saul 2009)."""
    return _embedding_only(losses.Triplet(counts, gamma=gamma), classifier)


@method("contrastive")
def contrastive(counts: ClassCounts, temperature: float = 0.1, classifier: _Classifier = "knn") -> dict[str, Any]:
    """InfoNCE between two views of each sample, no labels, then k-NN or a linear head (van den Oord et al. 2018)."""
    # Without labels, whether the method knows the tail or learns logits is not a question: the paper prints dashes.
    plan = _embedding_only(losses.InfoNCE(counts, normalise=True, temperature=temperature), classifier, views=2)
    return {**plan, "declared": {"long_tail": None, "logit_loss": None}}


def names() -> list[str]:
    """All methods, in the order of the paper's tables."""
    return list(METHODS)


def knobs(name: str) -> dict[str, Any]:
    """A method's knobs with their defaults; those of a group such as ``Positives`` one by one."""
    return {knob.name: knob.default for knob in knobs_of(_builder(name), f"method {name!r}")}


def describe(name: str) -> str:
    """The first line of what the method is."""
    return (inspect.getdoc(_builder(name)) or "").strip().split("\n")[0]


def settings(name: str) -> dict[str, dict[str, Any]]:
    """Other defaults of a method's knobs, by data set."""
    return SETTINGS.get(name, {})


def build(name: str, counts: ClassCounts, *, data: str | None = None, **given: Any) -> Plan:
    """The plan of a method for these counts.

    Args:
        name: one of ``names()``, or ``"package.module:function"``: see ``method`` for what such a function is.
        data: a data set for which the method has other defaults, such as the paper's α and λ of ELM.
        given: the method's knobs, as values or as the strings that the command line has.
    """
    builder, what = _builder(name), f"method {name!r}"
    counts = class_counts(counts)
    known = knobs_of(builder, what)
    defaults = {knob.name: knob.default for knob in known}
    for knob in given:
        if not defaults:
            raise InputError(f"{what} has no knobs, got {knob!r}")
        one_of(f"knob of {name!r}", knob, defaults)
    chosen = {**defaults, **settings(name).get(data or "", {}), **given}
    values = {knob.name: read(knob.name, chosen[knob.name], knob.kind) for knob in known}
    listed = {knob.name: values[knob.name] for knob in known if not knob.late or values[knob.name] != knob.default}
    plain = {k: v.to_data() if isinstance(v, PerClass) else v for k, v in listed.items()}
    try:
        made = builder(counts, **arguments(builder, what, values))
    except InputError:
        raise
    except (Exception, SystemExit) as e:
        if ":" not in name:
            raise
        raise InputError(f"{what} failed: {plugins.brief(e)}") from e
    if isinstance(made, Objective):
        made = {"stages": (Stage("train", made),)}
    if not isinstance(made, dict) or "stages" not in made:
        raise InputError(f"{what} must return an Objective or the fields of a Plan, got {type(made).__name__}")
    return Plan(method=name, knobs=plain, **made)


def _builder(name: str) -> Builder:
    if ":" in name:
        return plugins.load("method", name)
    return METHODS[one_of("method", name, [*METHODS, "package.module:function"])]


__all__ = ["METHODS", "PAPER_SETTINGS", "Positives", "build", "describe", "knobs", "method", "names", "settings"]
