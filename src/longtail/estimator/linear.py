"""Linear models from all samples at once (L-BFGS), without a learning rate or a seed; a sparse matrix stays sparse.

A linear model's embedding is its input, which does not train: of an objective only the terms that read logits matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from torch import Tensor, nn

from ..errors import RunError
from ..losses.base import Term
from ..models import CosineHead
from ..plan import Plan, Stage

Array = NDArray[Any]

ITERATIONS = 200
# Numbers in one block of logits: 32 MB in float64, however many samples there are
_BLOCK = 1 << 22


def suits(plan: Plan) -> bool:
    """Whether every stage trains logits, each sample by its own: the rest needs embeddings or batches."""
    terms = [_logit_terms(stage) for stage in plan.stages]
    return all(own and all(term.scope == "sample" for _, term in own) for own in terms)


def fit(
    module: nn.Module,
    plan: Plan,
    x: Any,
    labels: Tensor,
    weights: Tensor,
    *,
    weight_decay: float,
    iterations: int,
    show: Callable[[str, float, float], None],
) -> list[dict[str, Any]]:
    """Train the head of ``module`` (in float64) on features (N, K), a numpy array or a scipy CSR matrix.

    Returns a row for every iteration, in the form of a run's ``metrics.jsonl``; ``show`` is told its stage, its loss
    and the share of training that is done.
    """
    head: Any = module.head
    if isinstance(head, CosineHead):
        x = _unit_rows(x)
    rows: list[dict[str, Any]] = []
    for number, stage in enumerate(plan.stages):
        # A linear head starts from 0, so the result depends on no seed; cosines need a direction to start from
        if (number == 0 or stage.reset_head) and not isinstance(head, CosineHead):
            nn.init.zeros_(head.weight)
            nn.init.constant_(head.bias, plan.head_bias or 0.0)

        def after(row: dict[str, Any], before: int = number) -> None:
            rows.append(row)
            show(row["stage"], row["loss"], (before + row["epoch"] / iterations) / len(plan.stages))

        _Problem(head, stage, x, labels, weights, weight_decay).solve(iterations, after)
    return rows


def logits(head: Any, x: Any) -> Tensor:
    """What a head says of features (N, K), an array or a CSR matrix, a block of rows at a time."""
    x = _unit_rows(x) if isinstance(head, CosineHead) else x
    with torch.no_grad():
        weight, bias = _effective(head)
        return torch.from_numpy(np.asarray(x @ weight.numpy().T)) + (0.0 if bias is None else bias)


class _Problem:
    """One stage: what trains as one flat vector, and the loss of all samples with its gradient."""

    def __init__(self, head: Any, stage: Stage, x: Any, labels: Tensor, weights: Tensor, weight_decay: float) -> None:
        self.head, self.stage, self.x, self.labels, self.weight_decay = head, stage, x, labels, weight_decay
        n = stage.objective.counts.safe_n
        self.weights = weights * n.pow(stage.drawn_by - 1)[labels]  # as often as the sampler would draw it
        self.scale = torch.ones(len(n), dtype=torch.float64) if stage.trains == "scale" else None
        self.trained = list(head.parameters()) if self.scale is None else [self.scale]
        for p in self.trained:
            p.requires_grad_(True)
        like = torch.zeros(len(labels), dtype=torch.float64)
        self.terms = []
        for coefficient, term in _logit_terms(stage):
            own = term.weights(labels, like)
            total = float((self.weights if own is None else self.weights * own).sum())
            self.terms.append((coefficient / max(total, 1e-300), term))

    def solve(self, iterations: int, say: Callable[[dict[str, Any]], None]) -> None:
        began, done = time.monotonic(), 0

        def after(intermediate_result: Any) -> None:
            nonlocal done
            done += 1
            row = {"stage": self.stage.name, "epoch": done, "loss": float(intermediate_result.fun), "parts": {}}
            say({**row, "alive": None, "seconds": round(time.monotonic() - began, 3)})

        start = torch.cat([p.detach().flatten() for p in self.trained]).numpy()
        options = {"maxiter": iterations, "gtol": 1e-6, "ftol": 64 * np.finfo(float).eps}
        found = minimize(self.loss, start, jac=True, method="L-BFGS-B", callback=after, options=options)
        if not np.isfinite(found.fun):
            raise RunError("the loss of the linear model is not finite: are some features huge?")
        self._set(found.x)
        for p in self.trained:
            p.requires_grad_(False)
        if self.scale is not None:
            self.head.weight.mul_(self.scale[:, None])
            if self.head.bias is not None:
                self.head.bias.mul_(self.scale)

    def loss(self, flat: Array) -> tuple[float, Array]:
        self._set(flat)
        total = 0.0
        for p in self.trained:
            p.grad = None
        rows = max(_BLOCK // len(self.head.weight), 1)
        for start in range(0, len(self.labels), rows):
            block = slice(start, start + rows)
            weight, bias = _effective(self.head)
            out: Tensor = _Product.apply(weight, self.x[block] if len(self.labels) > rows else self.x)
            out = out if bias is None else out + bias
            out = out if self.scale is None else out * self.scale
            values = [c * (self.weights[block] @ term(out, self.labels[block])) for c, term in self.terms]
            loss = torch.stack(values).sum()
            loss.backward()
            total += float(loss.detach())
        for p in self.trained:
            if p.ndim > 1 and p.grad is not None:  # biases do not decay, nor do factors
                p.grad.add_(p.detach(), alpha=self.weight_decay)
                total += 0.5 * self.weight_decay * float(p.detach().square().sum())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        return total, torch.cat([g.flatten() for g in gradients]).numpy()

    def _set(self, flat: Array) -> None:
        with torch.no_grad():
            for p, values in zip(self.trained, torch.from_numpy(flat).split([p.numel() for p in self.trained])):
                p.copy_(values.view_as(p))


class _Product(torch.autograd.Function):
    """``x @ weightᵀ`` for an x that takes no gradient: a numpy array or a scipy matrix."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Any) -> Tensor:
        ctx.x = x
        return torch.from_numpy(np.asarray(x @ weight.detach().numpy().T))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.from_numpy(np.ascontiguousarray((ctx.x.T @ grad.numpy()).T)), None


def _logit_terms(stage: Stage) -> list[tuple[float, Term]]:
    return [(weight, term) for weight, term in stage.objective.weighted if weight and "logits" in term.needs]


def _effective(head: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias as they meet an input; a cosine head's rows have length ``scale``."""
    if isinstance(head, CosineHead):
        norm = head.weight.norm(dim=1, keepdim=True)
        return head.scale * head.weight / norm.clamp(min=1e-12), None
    return head.weight, head.bias


def _unit_rows(x: Any) -> Any:
    if sparse.issparse(x):
        norm = np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel())
        return (sparse.diags_array(1 / np.where(norm > 1e-12, norm, 1.0)) @ x).tocsr()
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norm > 1e-12, norm, 1.0)
