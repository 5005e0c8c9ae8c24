"""Class priors estimated from logits, and logits moved from one prior to another.

>>> shift_prior(torch.tensor([[0.0, 0.0]]), source=[0.5, 0.5], target=[0.9, 0.1]).softmax(1)
tensor([[0.9000, 0.1000]])
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import Tensor

from .counts import class_counts
from .errors import InputError
from .numeric import compute_dtype, matrix, tensor

P = ParamSpec("P")


def same_kind(function: Callable[P, Tensor]) -> Callable[P, Any]:
    """Give back numpy where the first argument is no tensor."""
    name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        result = function(*args, **kwargs)
        first = args[0] if args else kwargs[name]
        return result if isinstance(first, Tensor) else result.cpu().numpy()

    return call


def _samples(logits: Any) -> Tensor:
    """Logits in float64, of at least one sample: a mean over none would be NaN."""
    f = matrix(logits, "logits").double()
    if len(f) == 0:
        raise InputError(f"a prior is estimated from samples, and there are none: logits have shape {tuple(f.shape)}")
    return f


def log_prior_of(counts: Any, prior: Any, classes: int) -> Tensor:
    if (counts is None) == (prior is None):
        raise InputError("give either the training counts or a prior, and not both")
    if counts is not None:
        return class_counts(counts, classes).safe_prior.log()
    return log_prior(prior, classes)


def log_prior(prior: Any, classes: int) -> Tensor:
    """The logarithm of a prior in any scale, float64 (C,); of the uniform one if None."""
    if prior is None:
        return torch.full((classes,), -math.log(classes), dtype=torch.float64)
    p = tensor(prior, "prior").double()
    if p.shape != (classes,) or not bool((p > 0).all()) or not bool(torch.isfinite(p).all()):
        raise InputError(f"a prior must be {classes} positive numbers, one a class")
    return (p / p.sum()).log()


@same_kind
def mean_prior(logits: Any) -> Tensor:
    """Mean softmax (C,), float64: on samples of the training distribution, an estimate of the training prior."""
    return _samples(logits).softmax(1).mean(0)


@same_kind
def em_prior(logits: Any, source: Any = None, *, iterations: int = 1000, tolerance: float = 1e-8) -> Tensor:
    """The class prior of the *given, unlabelled* samples by EM (Saerens et al. 2002), (C,), float64.

    ``softmax(logits)`` are posteriors under the prior ``source`` of training (uniform if not given, as after logit
    adjustment).
    """
    f = _samples(logits)
    c = f.shape[1]
    f = f - log_prior(source, c).to(f.device)
    prior = torch.full((c,), 1 / c, dtype=torch.float64, device=f.device)
    for _ in range(iterations):
        updated = (f + prior.log()).softmax(1).mean(0)
        done = float((updated - prior).abs().max()) < tolerance
        prior = updated
        if done:
            break
    return prior


@same_kind
def implied_prior(logits: Any, target: Any = None, *, iterations: int = 1000, tolerance: float = 1e-8) -> Tensor:
    """The prior that a model was trained under, from its logits on samples whose prior is ``target`` (uniform if not
    given): what logit adjustment needs where training counts are unknown. (C,), float64.

    It is the π for which the adjusted posteriors ``softmax(f − log π + log target)`` average to ``target``, found by
    Sinkhorn's alternation. No labels are used.
    """
    f = _samples(logits)
    c = f.shape[1]
    found, log_target = log_prior(None, c).to(f.device), log_prior(target, c).to(f.device)
    for _ in range(iterations):
        mean = (f - found + log_target).softmax(1).mean(0).clamp(min=1e-300)
        step = mean.log() - log_target
        found = (found + step).log_softmax(0)
        if float(step.abs().max()) < tolerance:
            break
    return found.exp()


@same_kind
def shift_prior(logits: Any, source: Any, target: Any) -> Tensor:
    """Logits for another class prior: ``f_y + log target_y − log source_y``; their softmax is the new posterior."""
    f = matrix(logits, "logits")
    dtype = compute_dtype(f)
    shift = log_prior(target, f.shape[1]) - log_prior(source, f.shape[1])
    return f.to(dtype) + shift.to(f.device, dtype)
