"""What a run leaves behind: facts of its data, predictions, post-hoc steps, the model's file, the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import models, posthoc
from ..counts import ClassCounts
from ..data import Dataset, Split
from ..evaluate.predictions import Part, Predictions
from ..margins import PerClass
from ..plan import Plan
from ..probabilities import reading
from ..runs.folder import RunFolder
from ..summary import summarise
from .forward import margins_of, outputs

if TYPE_CHECKING:
    from .job import Prepared

# Training logits beyond this many numbers are not kept: ImageNet-LT's are 0.5 GB, iNaturalist's would be 14
MOST_LOGITS = 2 * 10**8
# Accuracy on its own training data below which a training did not get far
UNDERFIT = 0.6


def too_many_logits(data: Dataset) -> bool:
    """Whether of the training data only margins and predicted classes are kept."""
    return len(data.train) * data.num_classes > MOST_LOGITS


def space_needed(data: Dataset, model: nn.Module) -> int:
    """Bytes that the run will write: three checkpoints at once (weights, momentum, average), and the predictions."""
    weights = 4 * models.parameter_count(model)
    width = data.num_classes + int(model.embedding_size)  # type: ignore[arg-type]
    whole = [data.val, data.test] if too_many_logits(data) else [data.train, data.val, data.test]
    samples = sum(len(split) for split in whole if split is not None)
    return 10 * weights + 4 * samples * width + 1_000_000


def split_facts(data: Dataset) -> dict[str, Any]:
    """What a run says of its data, for those who read it without the data."""
    return {
        "fingerprint": data.fingerprint,
        "counts": data.counts.n.tolist(),
        "class_names": list(data.class_names),
        "train": len(data.train),
        "val": 0 if data.val is None else len(data.val),
        "test": len(data.test),
        "input": {
            "kind": data.kind,
            "shape": list(data.input_shape),
            "mean": None if data.train.mean is None else list(data.train.mean),
            "std": None if data.train.std is None else list(data.train.std),
            **({} if data.train.columns is None else {"columns": list(data.train.columns)}),
        },
        "notes": list(data.notes),
    }


def predict(
    model: nn.Module,
    splits: Mapping[str, Split | None],
    device: torch.device,
    workers: int = 0,
    scale: float = 1.0,
    counts: ClassCounts | None = None,
) -> Predictions:
    """Logits, embeddings and labels of those of train, val and test that there are, and the head.

    ``scale`` is what the loss multiplied logits with: LDAM's cosines are logits only times its s.
    """
    parts = {}
    for name, split in splits.items():
        if split is not None:
            logits, embeddings = outputs(model, split, device, workers)
            parts[name] = Part(logits if scale == 1 else logits * scale, split.labels, embeddings)
    head: Any = model.head
    return Predictions(
        **parts,
        head_weight=head.weight.detach().cpu(),
        head_bias=None if head.bias is None else head.bias.detach().cpu(),
        counts=counts,
    )


def after(model: nn.Module, plan: Plan, predictions: Predictions) -> tuple[Predictions, list[dict[str, Any]]]:
    """Do the plan's post-hoc steps: each knob is chosen on the validation part, the test part only rewritten.

    What is still a linear head afterwards (τ-normalisation) becomes the model's own.
    """
    steps = []
    for step in plan.posthoc:
        applied = posthoc.apply(predictions, step.kind, grid=step.grid)
        predictions = applied.predictions
        steps.append(applied.step)
        if step.kind == "tau-norm":
            predictions = _new_head(model, predictions, float(applied.step["value"]))
        elif step.kind == "knn":
            predictions = posthoc.knn_on_train(predictions, int(applied.step["value"]))
    return predictions, steps


@torch.no_grad()
def _new_head(model: nn.Module, predictions: Predictions, tau: float) -> Predictions:
    head: Any = model.head
    weight = posthoc.tau_normalise(head.weight.detach(), tau)
    head.weight.copy_(weight)
    if head.bias is not None:
        head.bias.zero_()
    train = predictions.train
    if train is not None:
        train = replace(train, logits=posthoc.tau_norm(train.embeddings, weight.cpu(), 0.0))
    return replace(
        predictions,
        train=train,
        head_weight=weight.cpu(),
        head_bias=None if predictions.head_bias is None else torch.zeros_like(predictions.head_bias),
    )


def finish(run: RunFolder, ready: Prepared) -> list[str]:
    """Write predictions, model and, last, the summary: after it the run is finished. Returns its ``concerns``."""
    model, plan, data, workers = ready.model, ready.plan, ready.data, ready.job.workers
    scale = reading(plan, data.counts).scale
    splits = {"train": None if too_many_logits(data) else data.train, "val": data.val, "test": data.test}
    predictions, steps = after(model, plan, predict(model, splits, ready.device, workers, scale, data.counts))
    tensors = predictions.to_tensors()
    if predictions.train is None:
        brief = margins_of(model, data.train, ready.device, workers)
        brief["margins"] *= scale
        tensors |= {"train_labels": data.train.labels} | {f"train_{name}": t for name, t in brief.items()}
    run.write_model(model.state_dict(), tensors)
    summary = summarise(
        predictions, data.counts, class_names=data.class_names, alpha=_alpha(plan), seed=ready.job.seed, posthoc=steps
    )
    if predictions.train is None:
        summary["train"] = _train_accuracy(tensors["train_predicted"] == data.train.labels, data.train.labels)
    found = concerns(run.metrics(), summary["train"]["balanced"], data.num_classes, summary["train"]["accuracy"])
    summary["concerns"] = found
    parts = {name: summary[name] for name in ("val", "test") if summary[name]}
    for name, part in parts.items():
        groups = {group: value["accuracy"] for group, value in part["groups"].items()}
        run.add_to_last_row(**{name: {"balanced": part["balanced"], "accuracy": part["accuracy"], "groups": groups}})
    run.finish(summary)
    return found


def concerns(rows: Sequence[Mapping[str, Any]], balanced: float, classes: int, accuracy: float = 0.0) -> list[str]:
    """What is wrong with a training, one sentence each: a loss that grew, a result that is a guess, or far from what
    could be learnt, and whether the terms on embeddings are to blame.

    Args:
        rows: of metrics.jsonl.
        balanced, accuracy: on the training data.

    >>> concerns([{"stage": "train", "loss": 2.0}, {"stage": "train", "loss": 9.0}], 0.1, 10)
    ['the loss of stage train grew from 2 to 9: a lower --lr may help', 'balanced accuracy on the training data itself
    is 10.0 %, and guessing has 10.0 %: nothing was learnt']
    """
    found = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        losses = [row["loss"] for row in rows if row["stage"] == stage]
        if losses[-1] > 1.05 * losses[0] > 0:
            grew = f"the loss of stage {stage} grew from {losses[0]:.4g} to {losses[-1]:.4g}"
            found.append(f"{grew}: a lower --lr may help")
    if classes < 2:
        return found
    last = rows[-1] if rows else {}
    groups = [group for group in (last.get("groups") or {}).values() if group]
    loss = sum(g["loss"] * g["n"] for g in groups) / max(sum(g["n"] for g in groups), 1)
    learnt = max(balanced, accuracy)
    nothing, little = balanced < 1.1 / classes, learnt < UNDERFIT or loss > max(1.0, 0.3 * math.log(classes))
    if nothing:
        found.append(
            f"balanced accuracy on the training data itself is {100 * balanced:.1f} %, and guessing has "
            f"{100 / classes:.1f} %: nothing was learnt"
        )
    elif little:
        at_end = f", cross-entropy {loss:.2f} on the last epoch's batches" if groups else ""
        found.append(
            f"training did not get far: {100 * learnt:.0f} % of the training data are right at the end{at_end}; more "
            "--epochs, another --lr or a milder --augment may help"
        )
    parts = last.get("parts") or {}
    # A collapsed embedding costs a pull nothing, so its share of the loss does not tell; an automatic weight is bounded
    if (nothing or little) and "logit" in parts and len(parts) > 1 and "lam" not in parts:
        others = ", ".join(name for name in parts if name != "logit")
        found.append(f"its term on embeddings ({others}) may hold the logits down: lower its weight (--set lam=…)")
    return found


def _train_accuracy(correct: Tensor, labels: Tensor) -> dict[str, float]:
    hits, n = torch.bincount(labels, correct.double()), torch.bincount(labels)
    return {"accuracy": float(correct.double().mean()), "balanced": float((hits[n > 0] / n[n > 0]).mean())}


def _alpha(plan: Plan) -> PerClass | None:
    """The embedding margin that the plan trained with, or None."""
    for stage in plan.stages:
        for weight, term in stage.objective.weighted:
            alpha = getattr(term, "alpha", None)
            if weight and isinstance(alpha, PerClass):
                return alpha
    return None
