"""A run's evidence as plain JSON: all that the report needs, small enough to commit.

Numbers have six significant digits; NaN becomes null. ``test.correct`` is one bit a test sample, so that any two runs
on the same data can be compared in pairs: ``unpack_correct`` reads it, ``unpack_labels`` the labels beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from . import posthoc as tools
from .counts import GROUPS, ClassCounts, class_counts
from .errors import InputError
from .evaluate import accuracy, diagnostics, theory
from .evaluate.maps import maps
from .evaluate.packing import pack_correct, pack_labels, rounded, unpack_correct, unpack_labels
from .evaluate.predictions import Part, Predictions
from .margins import PerClass, Power

__all__ = ["pack_correct", "pack_labels", "pick_labels", "summarise", "unpack_correct", "unpack_labels"]

FORMAT = 1
KNN = 10
# 0 is first: of equally good values the model stays as it is
TAUS = (0.0, *(round(0.1 * sign * i, 1) for i in range(1, 21) for sign in (1, -1)))


def summarise(
    predictions: Predictions,
    counts: ClassCounts | Any,
    *,
    class_names: Sequence[str] | None = None,
    alpha: PerClass | Sequence[float] | Tensor | None = None,
    seed: int = 0,
    posthoc: Iterable[dict[str, Any]] = (),
    tsne: bool | Literal["auto"] = "auto",
) -> dict[str, Any]:
    """Everything the report shows of one run, as plain JSON data.

    Args:
        predictions: with a test part; what needs training logits or embeddings is null without them.
        counts: training samples a class.
        class_names: kept beside the picked labels.
        alpha: of Proposition 1; ``Power(0.5, of="count")`` if not given.
        seed: of the bootstrap, of samples drawn for figures and of t-SNE.
        posthoc: the steps of ``posthoc.apply`` that led to these logits.
        tsne: whether to compute Figure 5's map; ``"auto"`` does, of fewer points where the data are small.
    """
    counts = class_counts(counts, predictions.num_classes)
    if predictions.test is None:
        raise InputError("a summary needs the predictions of a test part")
    if class_names is not None and len(class_names) != counts.num_classes:
        raise InputError(f"there are {counts.num_classes} classes, but {len(class_names)} class names")
    train, val, test = predictions.train, predictions.val, predictions.test
    on_test = accuracy.summary(test.logits, test.labels, counts)
    result: dict[str, Any] = {
        "format": FORMAT,
        "test": {
            **_accuracy(on_test, seed),
            "correct": pack_correct(on_test.correct),
            "labels": pack_labels(on_test.labels),
            "confusion": {"top": [list(row) for row in on_test.top_confusions(50)]},
        },
        "val": None if val is None else _accuracy(accuracy.summary(val.logits, val.labels, counts), seed),
        "train": None,
        "posthoc": list(posthoc),
        "adjusted": _adjusted(predictions, counts),
        "tradeoff": _tradeoff(test, counts),
    }
    if train is not None:
        on_train = accuracy.summary(train.logits, train.labels, counts)
        result["train"] = {"accuracy": on_train.accuracy, "balanced": on_train.balanced}
    picks = pick_labels(counts, test.labels)
    result["diagnostics"] = {
        "labels": picks,
        "names": None if class_names is None else [class_names[i] for i in picks],
        **_margins(train, test, picks, counts),
        **_geometry(predictions, counts, picks),
        **maps(train, counts, seed, tsne),
    }
    result["theory"] = _theory(predictions, counts, alpha)
    plain: dict[str, Any] = rounded(result)
    return plain


def _accuracy(s: accuracy.Summary, seed: int) -> dict[str, Any]:
    interval = s.interval(seed=seed)
    sizes = s.per_class_n
    groups = s.counts.groups()
    return {
        "n": s.n,
        "balanced": s.balanced,
        "balanced_ci": [interval.low, interval.high],
        "accuracy": s.accuracy,
        "evaluated": s.evaluated,
        "groups": {
            name: {"accuracy": value, "classes": k, "evaluated": int((sizes[groups[name]] > 0).sum())}
            for name, (value, k) in s.groups.items()
        },
        "per_class": s.per_class.tolist(),
        "per_class_n": sizes.tolist(),
        "worst_class": {"label": s.worst.label, "accuracy": s.worst.accuracy},
        "geometric_mean": s.geometric_mean,
        "harmonic_mean": s.harmonic_mean,
        "ece": s.ece,
        "ece_groups": s.ece_groups,
    }


def _adjusted(predictions: Predictions, counts: ClassCounts) -> dict[str, Any] | None:
    """Test accuracy after ``f − τ log π`` with τ chosen on the validation part: other than trained, head and tail are
    traded against one another as validation data would have it."""
    val, test = predictions.val, predictions.test
    if val is None or test is None or not len(val):
        return None
    chosen = tools.choose(lambda tau: tools.logit_adjust(val.logits, counts, tau), TAUS, val.labels, counts)
    after = accuracy.summary(tools.logit_adjust(test.logits, counts, chosen.value), test.labels, counts)
    return {"tau": chosen.value, "val": chosen.scores[chosen.value], **_short(after)}


def _tradeoff(test: Part, counts: ClassCounts) -> dict[str, Any]:
    """Test accuracy by group along ``f − τ log π``: head against tail, wherever training itself put the balance."""
    taus = sorted(TAUS)
    predicted = (tools.logit_adjust(test.logits, counts, tau).argmax(1) for tau in taus)
    groups = [accuracy.of_labels(labels, test.labels, counts).groups for labels in predicted]
    return {"tau": taus, **{name: [by_group[name][0] for by_group in groups] for name in GROUPS}}


def pick_labels(counts: ClassCounts, labels: Tensor | None = None) -> list[int]:
    """Up to three labels to look at closely: one of each group that exists.

    Classes are ranked by training count; head, torso and tail give the class nearest to the first, fifth and ninth
    tenth of that ranking (10, 50 and 90 on CIFAR100-LT, the paper's). A missing group is made up for by those ranks.

    >>> pick_labels(ClassCounts([int(500 * 100 ** (-i / 99)) for i in range(100)]))
    [10, 50, 90]
    """
    usable = counts.n > 0
    if labels is not None:
        tested = torch.bincount(labels.cpu(), minlength=counts.num_classes) > 0
        usable = usable & tested if bool((usable & tested).any()) else tested
    ranked = [y for y in counts.n.argsort(descending=True, stable=True).tolist() if bool(usable[y])]
    ranks = [min(int(q * len(ranked)), len(ranked) - 1) for q in (0.1, 0.5, 0.9)]
    position = {y: i for i, y in enumerate(ranked)}
    picks: list[int] = []
    for rank, group in zip(ranks, counts.groups().values()):
        members = [position[y] for y in group.tolist() if y in position]
        if members:
            picks.append(ranked[min(members, key=lambda i: (abs(i - rank), i))])
    for rank in ranks:
        if len(picks) < min(3, len(ranked)) and ranked[rank] not in picks:
            picks.append(ranked[rank])
    return sorted(picks, key=lambda y: position[y])


def _distribution(values: Tensor) -> dict[str, Any]:
    v = values.double()
    heights, edges = np.histogram(v.cpu().numpy(), bins=30)
    return {
        "edges": edges.tolist(),
        "counts": heights.tolist(),
        "quantiles": diagnostics.cdf(v, points=101)[0].tolist(),
        "mean": float(v.mean()),
        "var": float(v.var(correction=0)),
    }


def _by_label(values: Tensor, labels: Tensor, picks: list[int]) -> dict[str, Any]:
    return {str(y): _distribution(values[labels == y]) for y in picks if bool((labels == y).any())}


def _margins(train: Part | None, test: Part, picks: list[int], counts: ClassCounts) -> dict[str, Any]:
    by_label: dict[str, Any] = {"train": None, "test": None}
    variance: dict[str, Any] = {"train": None, "test": None}
    for name, part in (("train", train), ("test", test)):
        if part is not None and counts.num_classes > 1:
            gamma = diagnostics.margins(part.logits, part.labels)
            by_label[name] = _by_label(gamma, part.labels, picks)
            variance[name] = diagnostics.class_variances(gamma.unsqueeze(1), part.labels, counts.num_classes).tolist()
    return {"margins": by_label, "margin_variance": variance}


def _embedded(part: Part | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """Embeddings, labels and logits of a part that has embeddings."""
    if part is None or part.embeddings is None or not len(part):
        return None
    return part.embeddings, part.labels, part.logits


def _geometry(predictions: Predictions, counts: ClassCounts, picks: list[int]) -> dict[str, Any]:
    names = ("dmax", "class_variance", "intra_inter", "neural_collapse", "knn", "ncm")
    found: dict[str, Any] = dict.fromkeys(names)
    train, test = _embedded(predictions.train), _embedded(predictions.test)
    known = {name: part for name, part in (("train", train), ("test", test)) if part is not None}
    scatters = {name: diagnostics.scatter(x, y, counts.num_classes) for name, (x, y, _) in known.items()}
    if not scatters:
        return found
    found["class_variance"] = {
        "train": None,
        "test": None,
        **{name: s.variances.tolist() for name, s in scatters.items()},
        "by_group": {name: accuracy.group_means(s.variances, counts) for name, s in scatters.items()},
    }
    found["intra_inter"] = {"train": None, "test": None, **{name: s.ratio for name, s in scatters.items()}}
    if train is None:
        return found
    x, y, logits = train
    d = diagnostics.max_intra_distance(x, y)
    norm = float(diagnostics.max_norm(x))
    unit = d.double() / (norm or 1.0)
    per_class = torch.zeros(counts.num_classes, dtype=torch.float64, device=d.device).index_add_(0, y, unit)
    per_class = per_class / torch.bincount(y, minlength=counts.num_classes)
    found["dmax"] = {
        "train": _by_label(unit, y, picks),
        "normaliser": norm,
        "by_class": per_class.tolist(),
        "mean_by_group": accuracy.group_means(per_class, counts),
        "mean": float(unit.mean()),
    }
    weight = predictions.head_weight
    collapse = diagnostics.neural_collapse(x, y, counts.num_classes, head_weight=weight, logits=logits)
    found["neural_collapse"] = collapse._asdict()
    if test is not None:
        k = min(KNN, len(y))
        found["knn"] = {"k": k, **_short(diagnostics.knn_accuracy(x, y, *test[:2], counts, k))}
        found["ncm"] = _short(diagnostics.ncm_accuracy(x, y, *test[:2], counts))
    return found


def _short(s: accuracy.Summary) -> dict[str, Any]:
    return {"balanced": s.balanced, "groups": {k: {"accuracy": v, "classes": n} for k, (v, n) in s.groups.items()}}


def _theory(predictions: Predictions, counts: ClassCounts, alpha: Any) -> dict[str, Any]:
    train, test = _embedded(predictions.train), _embedded(predictions.test)
    found: dict[str, Any] = {"proposition1": None, "gaussian": None}
    if train is None:
        return found
    alpha = Power(0.5, of="count") if alpha is None else alpha
    values = alpha(counts) if isinstance(alpha, PerClass) else alpha
    x, y, _ = train
    one = theory.proposition1(x, y, values)
    found["proposition1"] = {
        "classes": one.classes.tolist(),
        "lower": one.lower.tolist(),
        "pull": one.pull.tolist(),
        "holds": int(one.holds.sum()),
        "of": one.classes.numel(),
        "alpha": repr(alpha) if isinstance(alpha, PerClass) else "as trained",
    }
    fit = theory.gaussianity(x, y, counts.num_classes)
    found["gaussian"] = {**fit._asdict(), "sigma2": None, "test_balanced": None, "head": None}
    if math.isnan(fit.isotropy):  # every class is a single point: there is no variance to share
        return found
    head = theory.gaussian_head(x, y, counts, balanced=True)
    found["gaussian"]["sigma2"] = head.sigma2
    if test is not None:
        points, labels, _ = test
        found["gaussian"]["test_balanced"] = accuracy.summary(head.logits(points), labels, counts).balanced
        if predictions.head_weight is not None:
            likeness = theory.compare_heads(head, predictions.head_weight, predictions.head_bias, points)
            found["gaussian"]["head"] = likeness._asdict()
    return found
