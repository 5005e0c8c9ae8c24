"""The figures that a set of runs allows: each a name, a caption and a function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from ..counts import GROUPS
from ..errors import InputError
from ..runs.read import Run
from ..runs.schema import Distribution, Epoch, GroupTraining, Points
from . import claims, figures, paper, style
from .comparison import accuracy_error, mean_curve, partner
from .document import Picture
from .grouping import SHORT, SYMBOL, DataSet, Group, knob_text, slug
from .style import Style

MOST_CURVES = 8
_PANELS = ("logadj", "elm", "dro-lt", "ce")  # the paper's panels of figures 1 and 5 come first


def pictures(data: DataSet, looks: Mapping[str, Style]) -> list[Picture]:
    """Every figure that the runs on this data set allow: those for a first look, then the paper's in its order."""
    groups = shown(data)
    return [*_first_look(data, groups, looks), *_of_the_paper(data, groups, looks)]


def looks_for(sets: Sequence[DataSet]) -> dict[str, Style]:
    """One look a label, over all data sets; configurations with default knobs get the method's plain look."""
    groups = [group for data in sets for group in data.groups]
    groups.sort(key=lambda g: len(g.changed) > 0)
    return style.styles({group.label: group.method for group in groups})


def shown(data: DataSet) -> list[Group]:
    """The groups that figures 2, 3, 4 and 6 draw: no sweep's other values, and not too many.

    Where some must go, those go first that were not run under the circumstances of the others.
    """
    swept = [g for sweep in claims.sweeps(data) for g in sweep.groups if g.changed]
    kept = [g for g in data.groups if g not in swept] or data.groups
    comparable = data.comparable
    best = sorted(kept, key=lambda g: (g not in comparable, _importance(g)))[:MOST_CURVES]
    return [g for g in data.groups if g in best]


def _importance(group: Group) -> int:
    """The paper's one-stage methods first, then variants of ELM, other methods, and their variants."""
    row = paper.result(group.method)
    if group.changed:
        return 1 if group.method == "elm" else 3
    return 0 if row is not None and not row.multi_stage else 2


def _first_look(data: DataSet, groups: Sequence[Group], looks: Mapping[str, Style]) -> Iterator[Picture]:
    title, rest = data.title, _rest(len(data.groups) - len(groups))
    how: dict[str, Any] = {"title": title, "looks": looks}
    accuracy = {g.label: [g.class_accuracy(c) for c in range(data.counts.num_classes)] for g in groups}
    ends = "; ".join(
        f"{g.label} {_percent(g, 'head')} % on the head, {_percent(g, 'tail')} % on the tail" for g in groups[:4]
    )
    caption = f"Test accuracy of every class on {title} against its training samples, mean over seeds. {ends}.{rest}"
    limits = (data.parts.head, data.parts.tail)
    make = partial(figures.class_accuracy, data.first.split.counts, accuracy, limits, **how)
    yield Picture(f"classes-{data.slug}", caption, make, "answer")
    part = "tail" if data.sizes["tail"] else "torso"
    trades = {g.label: found for g in groups if (found := mean_curve(g, part)) is not None}
    if trades and data.parts.stored:
        caption = (
            f"Accuracy of the {part} against that of the head on {title} as τ·log π is taken off the logits, mean over "
            f"seeds; the mark is the model as trained (τ = 0). Not in the paper.{rest}"
        )
        yield Picture(f"tradeoff-{data.slug}", caption, partial(figures.tradeoff, trades, part, **how), "look")
    what, panels = _training(data, groups)
    if panels:
        caption = f"{what.capitalize()} of {title} by epoch, mean over seeds.{rest}"
        yield Picture(f"training-{data.slug}", caption, partial(figures.training_curves, panels, what, **how), "look")


def _percent(group: Group, part: str) -> str:
    stat = group.accuracy(part)
    return "–" if stat is None else f"{100 * stat.mean:.1f}"


def _training(data: DataSet, groups: Sequence[Group]) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """Accuracy on the training batches by head, torso and tail where runs kept it, else the loss of the logits."""

    def accuracy(part: str) -> Callable[[Epoch], float | None]:
        return lambda row: (row.groups.get(part) or GroupTraining()).accuracy

    panels = {part: _by_epoch(groups, accuracy(part)) for part in GROUPS if data.sizes[part]}
    if data.parts.stored and all(panels.values()):
        return "accuracy on training batches", panels
    losses = _by_epoch(groups, lambda row: row.parts.get("logit", row.loss))
    return "logit loss on the training data", {"": losses} if losses else {}


def _by_epoch(groups: Sequence[Group], value: Callable[[Epoch], float | None]) -> dict[str, list[float]]:
    """By label, mean over seeds of each epoch that all have."""
    found = {}
    for group in groups:
        rows = [[v for row in run.metrics if (v := value(row)) is not None] for run in group.runs]
        if curve := [fmean(values) for values in zip(*rows)]:
            found[group.label] = curve
    return found


def _of_the_paper(data: DataSet, groups: Sequence[Group], looks: Mapping[str, Style]) -> Iterator[Picture]:
    title, rest = data.title, _rest(len(data.groups) - len(groups))
    seed = " (first seed of each)" if any(len(g.runs) > 1 for g in groups) else ""
    how: dict[str, Any] = {"title": title, "looks": looks}

    def figure(number: int, name: str, caption: str, make: Callable[..., Any], *args: Any, **options: Any) -> Picture:
        stem, caption = f"figure{number}-{name}-{data.slug}", f"Figure {number}. {caption}"
        return Picture(stem, caption, partial(make, *args, **options), "look" if number == 2 else "laboratory")

    planar = _points(groups, lambda run: run.diagnostics.embeddings2d.get("train"))
    if planar:
        inputs = _moons(data)
        what = f"{'Training data and ' if inputs else ''}two-dimensional training embeddings of each method"
        caption = f"{what} on {title}{seed}.{_rest(len(data.groups) - len(planar))}"
        yield figure(1, "embeddings", caption, figures.two_moons, inputs, planar, data.first.class_names)
    accuracy = {g.label: {part: g.mean(_accuracy(g, part)) for part in ("all", *GROUPS)} for g in groups}
    spread = {g.label: {"all": accuracy_error(g), **{part: accuracy_error(g, part) for part in GROUPS}} for g in groups}
    what = "test samples and seeds" if any(len(g.runs) > 1 for g in groups) else "test samples"
    caption = f"Test accuracy on {title} by head, torso and tail; whiskers are 95 % intervals over {what}.{rest}"
    yield figure(2, "groups", caption, figures.group_accuracy, accuracy, data.sizes, whiskers=spread, **how)
    margins = {split: _curves(data, groups, _margins_of(split)) for split in ("test", "train")}
    margins = {split: curves for split, curves in margins.items() if curves}
    for split, curves in margins.items():
        caption = f"Logit margins on {title} for {_labels(curves)}, {split} samples{seed}; left of 0 is wrong.{rest}"
        yield figure(3, f"margins-{split}", caption, figures.margin_distributions, curves, split=split, **how)
    apart, same = distinct_embeddings(groups)
    distances = _curves(data, apart, lambda run: run.diagnostics.dmax.train)
    if distances:
        caption = f"Largest distance within the class on {title} for {_labels(distances)}, training samples{seed}."
        yield figure(4, "dmax", f"{caption}{same}{rest}", figures.dmax_distributions, distances, **how)
    maps = _points(apart, lambda run: run.diagnostics.tsne)
    if maps:
        more = _rest(len(data.groups) - len(groups) + len(apart) - len(maps))
        caption = f"t-SNE of training embeddings of up to five classes a group on {title}{seed}.{same}{more}"
        yield figure(5, "tsne", caption, figures.tsne, maps, data.class_group, title=title)
    for split, curves in margins.items():
        caption = f"Cumulative distribution of the logit margins on {title}, {split} samples{seed}.{rest}"
        yield figure(6, f"margin-cdfs-{split}", caption, figures.margin_cdfs, curves, split=split, **how)
    for method, panels, baselines in _sweeps(data):
        name = SHORT.get(method, method)
        caption = f"Balanced test accuracy of {name} on {title} against {' and '.join(panels)}, all else equal."
        options = {"title": f"{name} on {title}", "looks": looks, "color": style.styles({name: method})[name].color}
        stem = f"sensitivity-{slug(method)}"
        yield figure(7, stem, caption, figures.sensitivity, panels, baselines=baselines, **options)


def _accuracy(group: Group, part: str) -> Callable[[Run], float | None]:
    return lambda run: run.balanced if part == "all" else group.parts.accuracy(run, part)


def _rest(left_out: int) -> str:
    """What a caption says of configurations that its figure does not draw."""
    if left_out < 1:
        return ""
    return f" {left_out} more configuration{'s are' if left_out > 1 else ' is'} in the tables only."


def _labels(panels: Mapping[str, Any]) -> str:
    """How many labels a figure has a panel for: data of two classes have no three."""
    words = {1: "one label", 2: "two labels", 3: "three labels"}
    return words.get(len(panels), f"{len(panels)} labels")


def distinct_embeddings(groups: Sequence[Group]) -> tuple[list[Group], str]:
    """The groups without those that only put a new head on an earlier one's embeddings, and a sentence that says so."""
    kept: list[Group] = []
    same: dict[str, list[str]] = {}
    for group in groups:
        mine = group.first.diagnostics.dmax.train
        twin = next((g for g in kept if mine and g.first.diagnostics.dmax.train == mine), None)
        if twin is None:
            kept.append(group)
        else:
            same.setdefault(twin.label, []).append(group.label)
    return kept, "".join(f" {', '.join(labels)}: the embeddings of {label}." for label, labels in same.items())


def _margins_of(split: str) -> Callable[[Run], Mapping[str, Distribution] | None]:
    return lambda run: run.diagnostics.margins.get(split)


def _curves(
    data: DataSet, groups: Sequence[Group], found: Callable[[Run], Mapping[str, Distribution] | None]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Quantiles by panel (label) and method; panels in the order head, torso, tail."""
    panels: dict[str, dict[str, dict[str, Any]]] = {}
    for label in data.first.diagnostics.labels:
        rows = {}
        for group in groups:
            kept = (found(group.first) or {}).get(str(label))
            if kept is not None and len(kept.quantiles) > 1:
                size = sum(kept.counts) if kept.counts else len(kept.quantiles)
                rows[group.label] = {"quantiles": kept.quantiles, "n": size}
        if rows:
            name = data.first.class_names[label]
            named = f"label {label}" if name == str(label) else f"label {label}, {name}"
            panels[f"{named} ({data.class_group[label]}, n = {int(data.counts.n[label])})"] = rows
    return panels


def _points(groups: Sequence[Group], found: Callable[[Run], Points | None]) -> dict[str, dict[str, Sequence[float]]]:
    """Points by method, the paper's three panels first, at most six."""
    rank = {method: i for i, method in enumerate(_PANELS)}
    order = sorted(groups, key=lambda g: (len(g.changed) > 0, rank.get(g.method, len(rank))))
    known = [(group.label, points) for group in order if (points := found(group.first)) is not None and points.x]
    return {label: {"x": points.x, "y": points.y, "labels": points.labels} for label, points in known[:6]}


def _moons(data: DataSet) -> dict[str, list[float]] | None:
    """The inputs of a two-dimensional built-in data set, made again; None if they are not those of the runs."""
    if data.name != "moons":
        return None
    from ..data import load

    try:
        made = load(data.name, **data.first.options)
    except InputError:
        return None
    if made.fingerprint != data.first.fingerprint:
        return None
    inputs: Any = made.train.inputs
    return {"x": inputs[:, 0].tolist(), "y": inputs[:, 1].tolist(), "labels": made.train.labels.tolist()}


def _sweeps(data: DataSet) -> Iterator[tuple[str, dict[str, dict[str, Any]], dict[str, float]]]:
    """By method: accuracies against each knob that was swept, and those of CE and LogAdj under the same settings."""
    found: dict[str, list[claims.Sweep]] = {}
    for sweep in claims.sweeps(data):
        found.setdefault(sweep.method, []).append(sweep)
    for method, sweeps in found.items():
        panels = {}
        for sweep in sweeps:
            numeric = all(isinstance(v, (int, float)) for v in sweep.values)
            panels[SYMBOL.get(sweep.knob, sweep.knob)] = {
                "values": sweep.values if numeric else [knob_text(v) for v in sweep.values],
                "accuracy": [g.balanced.mean for g in sweep.groups],
                "std": [g.balanced.std for g in sweep.groups],
            }
        plain = (partner(sweeps[0].groups[0], data.plain(name)) for name in ("ce", "logadj") if name != method)
        yield method, panels, {group.label: group.balanced.mean for group in plain if group is not None}
