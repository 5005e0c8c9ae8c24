"""How the logits of a trained plan are to be read: what turns them into probabilities, and under which prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .counts import ClassCounts
from .losses import SigmoidFocal
from .plan import Plan


@dataclass(frozen=True)
class Reading:
    """Scores whose softmax is a probability, from a network's logits.

    Attributes:
        log_prior: (C,), the class frequencies that those probabilities assume.
        scale: what logits are multiplied with: the loss's own scale (LDAM's 30), which the head does not have.
        sigmoid: whether each logit was trained as a sigmoid (CB focal): then scores are log σ(f).
    """

    log_prior: Tensor
    scale: float = 1.0
    sigmoid: bool = False

    def scores(self, logits: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(logits) if self.sigmoid else self.scale * logits


def reading(plan: Plan, counts: ClassCounts) -> Reading:
    """How to read what the plan's last stage trained.

    A softmax trained on ``f + other`` with class weights w, on batches of class frequencies q, makes f itself the
    logits of a problem with prior ``∝ q·w·exp(−other)``: uniform for logit adjustment at τ = 1, and q for plain
    cross-entropy.

    >>> from longtail import methods
    >>> counts = ClassCounts([90, 10])
    >>> reading(methods.build("logadj", counts), counts).log_prior.exp()
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    stage = plan.stages[-1]
    log_prior = stage.drawn_by * counts.safe_n.double().log()
    if plan.normalises_head:
        log_prior = torch.zeros_like(log_prior)
    scale, sigmoid = 1.0, False
    for weight, term in stage.objective.weighted:
        if not weight or "logits" not in term.needs:
            continue
        vectors = term.vectors
        sigmoid |= isinstance(term, SigmoidFocal)
        if "weights" in vectors:
            log_prior = log_prior + vectors["weights"].clamp(min=1e-300).log()
        if "other" in vectors:
            log_prior = log_prior - vectors["other"]
        # Factors that differ by class (VS) are of the training loss alone: the method decides by plain logits.
        if "scale" in vectors and bool((vectors["scale"] == vectors["scale"][0]).all()):
            scale = float(vectors["scale"][0])
    return Reading(log_prior.log_softmax(0), scale, sigmoid)
