"""The figures that a set of runs allows: each a name, a caption and a function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from matplotlib.figure import Figure

from ..counts import GROUPS
from ..errors import InputError
from ..runs.read import Run
from ..runs.schema import Distribution, Epoch, GroupTraining, Points
from . import claims, figures, overview, paper, style, tradeoff
from .comparison import accuracy_error, partner
from .grouping import SHORT, SYMBOL, DataSet, Group, knob_text, slug
from .style import Style
from .table import Stat

MOST_CURVES = 8
_PANELS = ("logadj", "elm", "dro-lt", "ce")  # the paper's panels of figures 1 and 5 come first


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is printed; ``name`` is that of its files."""

    name: str
    caption: str
    make: Callable[[], Figure]
    place: Literal["answer", "look", "laboratory"] = "laboratory"


def pictures(data: DataSet, looks: Mapping[str, Style]) -> list[Picture]:
    """Every figure that the runs on this data set allow: those for a first look, then the paper's in its order."""
    return [*_first_look(data, looks), *(
        Picture(f"figure{number}-{name}-{slug(data.title)}", f"Figure {number}. {caption}", make,
                "look" if number == 2 else "laboratory")
        for number, name, caption, make in _possible(data, looks)
    )]  # fmt: skip


def _first_look(data: DataSet, looks: Mapping[str, Style]) -> Iterator[Picture]:
    groups, title = shown(data), data.title
    rest = _rest(len(data.groups) - len(groups))
    accuracy = {
        g.label: [g.mean(lambda run, c=c: run.summary.test.per_class[c]) for c in range(data.counts.num_classes)]  # type: ignore[misc]
        for g in groups
    }
    ends = "; ".join(
        f"{g.label} {_said(g, 'head')} % on the head, {_said(g, 'tail')} % on the tail" for g in groups[:4]
    )
    yield Picture(
        f"classes-{slug(title)}",
        f"Test accuracy of every class on {title} against its training samples, mean over seeds. {ends}.{rest}",
        lambda: overview.class_accuracy(
            data.first.split.counts, accuracy, (data.parts.head, data.parts.tail), title=title, looks=looks
        ),
        "answer",
    )
    part = "tail" if data.sizes["tail"] else "torso"
    trades = {g.label: found for g in groups if (found := tradeoff.mean_curve(g, part)) is not None}
    if trades and data.parts.stored:
        caption = (
            f"Accuracy of the {part} against that of the head on {title} as τ·log π is taken off the logits, mean over "
            f"seeds; the mark is the model as trained (τ = 0). Not in the paper.{rest}"
        )
        yield Picture(
            f"tradeoff-{slug(title)}",
            caption,
            lambda: overview.tradeoff(trades, part, title=title, looks=looks),
            "look",
        )
    what, panels = _training(data, groups)
    if panels:
        caption = f"{what.capitalize()} of {title} by epoch, mean over seeds.{rest}"
        yield Picture(
            f"training-{slug(title)}",
            caption,
            lambda: overview.training_curves(panels, what, title=title, looks=looks),
            "look",
        )


def _said(group: Group, part: str) -> str:
    stat = group.accuracy(part)
    return "–" if stat is None else f"{100 * stat.mean:.1f}"


def _training(data: DataSet, groups: Sequence[Group]) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """Accuracy on the training batches by head, torso and tail where runs kept it, else the loss of the logits."""

    def accuracy(part: str) -> Callable[[Epoch], float | None]:
        return lambda row: (row.groups.get(part) or GroupTraining()).accuracy

    parts = [part for part in GROUPS if data.sizes[part]]
    panels = {part: _by_epoch(groups, accuracy(part)) for part in parts}
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


Possible = tuple[int, str, str, Callable[[], Figure]]


def _possible(data: DataSet, looks: Mapping[str, Style]) -> Iterator[Possible]:
    groups = shown(data)
    rest = _rest(len(data.groups) - len(groups))
    title, seed = data.title, _seed_note(groups)
    planar = _points(groups, lambda run: run.diagnostics.embeddings2d.get("train"))
    if planar:
        inputs = _moons(data)
        first = "Training data and " if inputs else ""
        names = data.first.class_names
        more = _rest(len(data.groups) - len(planar))
        caption = f"{first}two-dimensional training embeddings of each method on {title}{seed}.{more}"
        yield 1, "embeddings", caption, lambda: figures.two_moons(inputs, planar, names)
    accuracy = {g.label: {"all": g.balanced.mean, **{part: _mean(g.accuracy(part)) for part in GROUPS}} for g in groups}
    spread = {g.label: {"all": accuracy_error(g), **{part: accuracy_error(g, part) for part in GROUPS}} for g in groups}
    what = "test samples and seeds" if any(len(g.runs) > 1 for g in groups) else "test samples"
    caption = f"Test accuracy on {title} by head, torso and tail; whiskers are 95 % intervals over {what}.{rest}"
    yield (
        2,
        "groups",
        caption,
        lambda: figures.group_accuracy(accuracy, data.sizes, whiskers=spread, title=title, looks=looks),
    )
    margins = {split: _curves(data, groups, _margins_of(split)) for split in ("test", "train")}
    for split, curves in margins.items():
        if curves:
            caption = (
                f"Logit margins on {title} for {_labels(curves)}, {split} samples{seed}; left of 0 is wrong.{rest}"
            )
            yield (
                3,
                f"margins-{split}",
                caption,
                lambda split=split, curves=curves: figures.margin_distributions(  # type: ignore[misc]
                    curves, split=split, title=title, looks=looks
                ),
            )
    apart, same = distinct_embeddings(groups)
    distances = _curves(data, apart, lambda run: run.diagnostics.dmax.train)
    if distances:
        what = f"Largest distance within the class on {title} for {_labels(distances)}"
        caption = f"{what}, training samples{seed}.{same}{rest}"
        yield 4, "dmax", caption, lambda: figures.dmax_distributions(distances, title=title, looks=looks)
    maps = _points(apart, lambda run: run.diagnostics.tsne)
    if maps:
        more = _rest(len(data.groups) - len(groups) + len(apart) - len(maps))
        caption = f"t-SNE of training embeddings of up to five classes a group on {title}{seed}.{same}{more}"
        yield 5, "tsne", caption, lambda: figures.tsne(maps, data.class_group, title=title)
    for split, curves in margins.items():
        if curves:
            caption = f"Cumulative distribution of the logit margins on {title}, {split} samples{seed}.{rest}"
            yield (
                6,
                f"margin-cdfs-{split}",
                caption,
                lambda split=split, curves=curves: figures.margin_cdfs(  # type: ignore[misc]
                    curves, split=split, title=title, looks=looks
                ),
            )
    yield from _sensitivity(data, looks)


def _rest(left_out: int) -> str:
    """What a caption says of configurations that its figure does not draw."""
    if left_out < 1:
        return ""
    return f" {left_out} more configuration{'s are' if left_out > 1 else ' is'} in the tables only."


def _labels(panels: Mapping[str, Any]) -> str:
    """How many labels a figure has a panel for: data of two classes have no three."""
    words = {1: "one label", 2: "two labels", 3: "three labels"}
    return words.get(len(panels), f"{len(panels)} labels")


def _seed_note(groups: Sequence[Group]) -> str:
    return " (first seed of each)" if any(len(g.runs) > 1 for g in groups) else ""


def _mean(stat: Stat | None) -> float | None:
    return None if stat is None else stat.mean


def _margins_of(split: str) -> Callable[[Run], dict[str, Distribution] | None]:
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
            panels[_panel_title(data, label)] = rows
    return panels


def _panel_title(data: DataSet, label: int) -> str:
    name = data.first.class_names[label]
    named = f"label {label}" if name == str(label) else f"label {label}, {name}"
    return f"{named} ({data.class_group[label]}, n = {int(data.counts.n[label])})"


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
    labels = made.train.labels
    return {"x": inputs[:, 0].tolist(), "y": inputs[:, 1].tolist(), "labels": labels.tolist()}


def _sensitivity(data: DataSet, looks: Mapping[str, Style]) -> Iterator[Possible]:
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
        base = {
            g.label: g.balanced.mean
            for name in ("ce", "logadj")
            if name != method and (g := partner(sweeps[0].groups[0], data.plain(name))) is not None
        }
        name = SHORT.get(method, method)
        knobs = " and ".join(panels)
        caption = f"Balanced test accuracy of {name} on {data.title} against {knobs}, all else equal."
        colour = style.styles({name: method})[name].color
        yield (
            7,
            f"sensitivity-{slug(method)}",
            caption,
            lambda p=panels, b=base, n=name, c=colour: figures.sensitivity(  # type: ignore[misc]
                p, baselines=b, title=f"{n} on {data.title}", looks=looks, color=c
            ),
        )
