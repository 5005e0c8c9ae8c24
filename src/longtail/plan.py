"""What a method is: stages of training, then post-hoc steps. Plain data around objectives; the loop executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch

from .losses.base import Objective, Term


@dataclass(frozen=True)
class Stage:
    """One stretch of training with one objective.

    Attributes:
        share: epochs, as a share of the recipe's.
        restart: whether warm-up and schedule begin anew (the first stage's always do); otherwise the stage goes on in
            the schedule of the one before, as deferred re-weighting does.
        trains: ``"all"`` parameters; the ``"head"`` alone on a frozen network (cRT); one ``"scale"`` a class on a
            frozen head (LWS).
        reset_head: initialise the head again before the stage.
        sampler: how batches are drawn: ``instance``, ``balanced``, ``sqrt``, ``progressive`` or ``pairs``.
        views: augmentations of each sample in a batch.
        centroids: before the stage, class means of the training embeddings go to every term that takes them.
        key_ema: decay of an average of the weights whose embeddings the objective's memory keeps, at the cost of one
            more forward pass a step; None keeps those of the weights as they are.
    """

    name: str
    objective: Objective
    share: float = 1.0
    restart: bool = True
    trains: Literal["all", "head", "scale"] = "all"
    reset_head: bool = False
    sampler: str = "instance"
    views: int = 1
    centroids: bool = False
    key_ema: float | None = None

    @property
    def drawn_by(self) -> float:
        """The power of the class counts that batches show classes in proportion to, at the stage's end."""
        return {"balanced": 0.0, "progressive": 0.0, "sqrt": 0.5}.get(self.sampler, 1.0)

    def same(self, other: Stage) -> bool:
        """Whether it trains in every respect as another stage does."""
        plain = [f.name for f in fields(Stage) if f.name != "objective"]
        a, b = self.objective, other.objective
        mine, its = dict(a.named_buffers()), dict(b.named_buffers())
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and (str(a), a.coefficients) == (str(b), b.coefficients)
            and mine.keys() == its.keys()
            and all(torch.equal(mine[name], its[name]) for name in mine)
        )


@dataclass(frozen=True)
class Posthoc:
    """A step after training; its knob is chosen from the grid on validation data, never on test."""

    kind: Literal["tau-norm", "knn"]
    knob: str
    grid: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """A method with its knobs resolved: what a run does from the first step to the last.

    Attributes:
        knobs: the method's settings as plain data, complete: with the method's name they rebuild the plan.
        head: which classifier the network ends in.
        head_bias: what the head's bias starts at (None: zero); like every bias it does not decay.
        notes: what a reader should know of the choices, one sentence each.
    """

    method: str
    knobs: Mapping[str, Any]
    stages: tuple[Stage, ...]
    posthoc: tuple[Posthoc, ...] = ()
    head: Literal["linear", "cosine"] = "linear"
    head_bias: float | None = None
    notes: tuple[str, ...] = ()
    declared: Mapping[str, bool | None] = field(default_factory=dict)

    def traits(self) -> dict[str, bool | None]:
        """The ticks of the paper's Table 1; None stands for "not applicable".

        Computed from the stages that train the network: a logit loss is a term that classifies each sample by its own
        logits, an embedding loss one that looks at other samples of the batch, a margin is what those terms have; the
        method knows the long tail if a per-class vector, a sampler or a post-hoc step depends on the counts. Where
        structure does not tell (`declared`), the method's definition says it.
        """
        terms = [t for s in self.stages if s.trains == "all" for w, t in s.objective.weighted if w > 0]
        logit = [t for t in terms if t.scope == "sample"]
        embedding = [t for t in terms if t.scope == "batch"]
        traits: dict[str, bool | None] = {
            "long_tail": any(_depends_on_counts(t) for t in terms)
            or any(s.drawn_by != 1 for s in self.stages)
            or self.normalises_head,
            "logit_loss": bool(logit),
            "logit_margin": any(_has_logit_margin(t) for t in logit) if logit else None,
            "embedding_loss": bool(embedding),
            "embedding_margin": any(_has_embedding_margin(t) for t in embedding) if embedding else None,
        }
        return {**traits, **self.declared}

    @property
    def normalises_head(self) -> bool:
        """Whether a post-hoc step rescales the rows of the head, which then prefers no class."""
        return any(step.kind == "tau-norm" for step in self.posthoc)

    @property
    def needed_head(self) -> str | None:
        """The head that a model must have: the method's own, or a linear one where it works on that one's bias or norm;
        None leaves it to the model."""
        scales = any(stage.trains == "scale" for stage in self.stages)
        works_on_it = self.head_bias is not None or self.normalises_head or scales
        return self.head if works_on_it or self.head != "linear" else None

    def begins_with(self, first: Plan, own_head: str = "linear") -> bool:
        """Whether its first stages are the whole of another plan, so that on the same data, with the same recipe and
        seed, training them again would give the same bits. ``own_head`` is the head of a model to which it is left."""
        n = len(first.stages)
        return (
            len(self.stages) >= n
            and (self.needed_head or own_head, self.head_bias) == (first.needed_head or own_head, first.head_bias)
            and all(a.same(b) for a, b in zip(self.stages, first.stages))
            # A stage that goes on in the schedule of the one before would have changed that one's
            and all(following.restart for following in self.stages[n : n + 1])
        )

    def epochs(self, recipe_epochs: int) -> list[int]:
        """How many epochs each stage lasts, given the recipe's; stages of one schedule add up exactly.

        >>> from longtail import ClassCounts, methods
        >>> methods.build("ldam-drw", ClassCounts([9, 1])).epochs(64)
        [51, 13]
        """
        epochs: list[int] = []
        share, done = 0.0, 0
        for stage in self.stages:
            if stage.restart:
                share, done = 0.0, 0
            share += stage.share
            now = max(round(share * recipe_epochs) - done, 1)
            epochs.append(now)
            done += now
        return epochs


def _depends_on_counts(term: Term) -> bool:
    """Whether a per-class vector of the term differs between classes of different counts."""
    n = term.counts.n
    for vector in term.vectors.values():
        if not torch.allclose(vector, vector[:1], rtol=1e-12, atol=0) and bool((n != n[0]).any()):
            return True
    return False


def _has_logit_margin(term: Term) -> bool:
    return term.has("other") or term.has("own")


def _has_embedding_margin(term: Term) -> bool:
    """Pull and DRO-LT have a margin a class, triplet and range loss one for all."""
    per_class = [v for name, v in term.vectors.items() if name in ("alpha", "epsilon")]
    return any(bool((v != 0).any()) for v in per_class) or getattr(term, "gamma", 0) > 0
