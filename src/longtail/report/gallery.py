"""The figures that a set of runs allows, each a name, a caption and a function that draws it; and mistaken images.

A method has the same colour in every figure; variants of it differ by line, marker and hatching. The colours are those
of Okabe and Ito, which stay apart under the common forms of colour blindness; the rest says the same again for print
in grey.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counts import GROUPS
from ..errors import InputError
from ..runs.read import Run
from ..runs.schema import Distribution, Epoch, GroupTraining, Points
from . import figures, paper
from .comparison import accuracy_error, mean_curve, partner, right_and_labels
from .document import Mistakes, Picture, Thumbnail
from .figures import Looks, Style
from .grouping import SHORT, SYMBOL, DataSet, Group, gather, slug

if TYPE_CHECKING:
    from ..data.dataset import Dataset, Split

MOST_CURVES = 8
MOST_POINTS = 5000
CLASSES, EACH = 6, 6  # classes that are shown, and mistaken images of each
SIDE = 64  # of a mistaken image
MOST_BYTES = 150_000  # of all of them, before base64 adds a third
COLOURS = {
    "ce": "#4d4d4d",
    "logadj": "#0072b2",
    "elm": "#d55e00",
    "dro-lt": "#009e73",
    "ldam-drw": "#cc79a7",
    "cb-focal": "#e69f00",
    "tau-norm": "#56b4e9",
    "dro-lt-multistage": "#00573f",
    "crt": "#7a4b94",
    "vs": "#8c6d1f",
}
_OTHERS = ("#a6761d", "#7570b3", "#1b9e77", "#e7298a", "#666666", "#66a61e")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\")
_PANELS = ("logadj", "elm", "dro-lt", "ce")  # the paper's panels of figures 1 and 5 come first


def pictures(data: DataSet, looks: Looks) -> list[Picture]:
    """Every figure that the runs on this data set allow: those for a first look, then the paper's in its order."""
    groups = shown(data)
    return [*_first_look(data, groups, looks), *_of_the_paper(data, groups, looks), *_sensitivity(data, looks)]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """One style a label, given the method behind each label; the first label of a method gets its plain look.

    >>> looks = styles({"ELM": "elm", "ELM (memory = 8)": "elm", "CE": "ce"})
    >>> looks["ELM"].color == looks["ELM (memory = 8)"].color, looks["ELM"].line == looks["ELM (memory = 8)"].line
    (True, False)
    """
    unknown = sorted({m for m in methods.values() if m not in COLOURS})
    colours = {**COLOURS, **{m: _OTHERS[i % len(_OTHERS)] for i, m in enumerate(unknown)}}
    order = [*COLOURS, *unknown]
    seen: Counter[str] = Counter()
    looks = {}
    for label, method in methods.items():
        marker = _MARKERS[(order.index(method) + seen[method]) % len(_MARKERS)]
        # methods beyond the fixed palette share colours in turn, so their lines must differ from the start
        turn = seen[method] + (unknown.index(method) // len(_OTHERS) if method in unknown else 0)
        looks[label] = Style(colours[method], _LINES[turn % len(_LINES)], marker, _HATCHES[turn % len(_HATCHES)])
        seen[method] += 1
    return looks


def looks_for(sets: Sequence[DataSet]) -> dict[str, Style]:
    """One look a label, over all data sets; configurations with default knobs get the method's plain look."""
    groups = [group for data in sets for group in data.groups]
    groups.sort(key=lambda g: len(g.changed) > 0)
    return styles({group.label: group.method for group in groups})


def shown(data: DataSet) -> list[Group]:
    """The groups that figures 2, 3, 4 and 6 draw: no sweep's other values, and not too many.

    Where some must go, those go first that were not run under the circumstances of the others; the paper's one-stage
    methods stay longest, then variants of ELM, other methods, and their variants.
    """

    def rank(group: Group) -> tuple[bool, int]:
        row = paper.result(group.method)
        if group.changed:
            importance = 1 if group.method == "elm" else 3
        else:
            importance = 0 if row is not None and not row.multi_stage else 2
        return group not in data.comparable, importance

    swept = [g for sweep in data.sweeps for g in sweep.groups if g.changed]
    kept = [g for g in data.groups if g not in swept] or data.groups
    best = sorted(kept, key=rank)[:MOST_CURVES]
    return [g for g in data.groups if g in best]


def _first_look(data: DataSet, groups: Sequence[Group], looks: Looks) -> Iterator[Picture]:
    title, rest = data.title, _rest(len(data.groups) - len(groups))
    accuracy = {g.label: [g.class_accuracy(c) for c in range(data.counts.num_classes)] for g in groups}
    ends = "; ".join(
        f"{g.label} {_percent(_mean(g, 'head'))} % on the head, {_percent(_mean(g, 'tail'))} % on the tail"
        for g in groups[:4]
    )
    caption = f"Test accuracy of every class on {title} against its training samples, mean over seeds. {ends}.{rest}"
    limits = (data.parts.head, data.parts.tail)
    make = partial(figures.class_accuracy, data.first.split.counts, accuracy, looks, limits, title)
    yield Picture(f"classes-{data.slug}", caption, make)
    part = "tail" if data.sizes["tail"] else "torso"
    trades = {g.label: found for g in groups if (found := mean_curve(g, part)) is not None}
    if trades and data.parts.stored:
        caption = (
            f"Accuracy of the {part} against that of the head on {title} as τ·log π is taken off the logits, mean over "
            f"seeds; the mark is the model as trained (τ = 0). Not in the paper.{rest}"
        )
        yield Picture(f"tradeoff-{data.slug}", caption, partial(figures.tradeoff, trades, looks, part, title))
    what, panels = _training(data, groups)
    if panels:
        caption = f"{what.capitalize()} of {title} by epoch, mean over seeds.{rest}"
        make = partial(figures.training_curves, panels, looks, what, title)
        yield Picture(f"training-{data.slug}", caption, make)
    if panels := _validation(data, groups):
        caption = (
            f"Accuracy on the validation data of {title} by epoch, mean over seeds, of the network as it then was; the "
            f"last is the run's result.{rest}"
        )
        make = partial(figures.training_curves, panels, looks, "accuracy on validation data", title)
        yield Picture(f"validation-{data.slug}", caption, make)


def _mean(group: Group, part: str) -> float | None:
    stat = group.accuracy(part)
    return None if stat is None else stat.mean


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _training(data: DataSet, groups: Sequence[Group]) -> tuple[str, dict[str, figures.Rows]]:
    """Accuracy on the training batches by head, torso and tail where runs kept it, else the loss of the logits."""

    def accuracy(part: str, row: Epoch) -> float | None:
        return (row.groups.get(part) or GroupTraining()).accuracy

    panels = {part: _by_epoch(groups, partial(accuracy, part)) for part in GROUPS if data.sizes[part]}
    if data.parts.stored and all(panels.values()):
        return "accuracy on training batches", panels
    losses = _by_epoch(groups, lambda row: row.parts.get("logit", row.loss))
    return "logit loss on the training data", {"": losses} if losses else {}


def _validation(data: DataSet, groups: Sequence[Group]) -> dict[str, figures.Rows]:
    """Accuracy on validation data by head, torso and tail, of runs that looked at it before their end."""

    def accuracy(part: str, row: Epoch) -> float | None:
        return None if row.val is None else row.val.groups.get(part)

    looked = [g for g in groups if all(sum(row.val is not None for row in run.metrics) > 1 for run in g.runs)]
    if not data.parts.stored:
        return {}
    return {part: curves for part in GROUPS if (curves := _by_epoch(looked, partial(accuracy, part)))}


def _by_epoch(groups: Sequence[Group], value: Callable[[Epoch], float | None]) -> figures.Rows:
    """By label the epochs that all seeds have a value of, and the means over seeds."""
    curves = {}
    for group in groups:
        seeds = [{row.epoch: v for row in run.metrics if (v := value(row)) is not None} for run in group.runs]
        epochs = [epoch for epoch in seeds[0] if all(epoch in seed for seed in seeds)]
        if epochs:
            curves[group.label] = epochs, [fmean(seed[epoch] for seed in seeds) for epoch in epochs]
    return curves


def _of_the_paper(data: DataSet, groups: Sequence[Group], looks: Looks) -> Iterator[Picture]:
    """The paper's figures 1 to 6."""
    title, rest = data.title, _rest(len(data.groups) - len(groups))
    several = any(len(g.runs) > 1 for g in groups)
    seed = " (first seed of each)" if several else ""

    def figure(number: int, name: str, caption: str, make: Callable[..., Any], *arguments: Any) -> Picture:
        return Picture(f"figure{number}-{name}-{data.slug}", f"Figure {number}. {caption}", partial(make, *arguments))

    planar = _points(groups, lambda run: run.diagnostics.embeddings2d.get("train"))
    if planar:
        inputs = _inputs(data)
        what = f"{'Training data and ' if inputs else ''}two-dimensional training embeddings of each method"
        caption = f"{what} on {title}{seed}.{_rest(len(data.groups) - len(planar))}"
        yield figure(1, "embeddings", caption, figures.two_moons, inputs, planar, data.first.class_names)
    parts = {"all": "balanced", **{part: part for part in GROUPS}}
    means = {g.label: {name: _mean(g, part) for name, part in parts.items()} for g in groups}
    spread = {g.label: {name: accuracy_error(g, part) for name, part in parts.items()} for g in groups}
    what = "test samples and seeds" if several else "test samples"
    caption = f"Test accuracy on {title} by head, torso and tail; whiskers are 95 % intervals over {what}.{rest}"
    yield figure(2, "groups", caption, figures.group_accuracy, means, data.sizes, looks, spread, title)
    on_test = _curves(data, groups, lambda run: run.diagnostics.margins.get("test"))
    on_train = _curves(data, groups, lambda run: run.diagnostics.margins.get("train"))
    margins = {split: curves for split, curves in (("test", on_test), ("train", on_train)) if curves}
    for split, curves in margins.items():
        caption = f"Logit margins on {title} for {_labels(curves)}, {split} samples{seed}; left of 0 is wrong.{rest}"
        yield figure(3, f"margins-{split}", caption, figures.margin_distributions, curves, looks, split, title)
    apart, same = distinct_embeddings(groups)
    distances = _curves(data, apart, lambda run: run.diagnostics.dmax.train)
    if distances:
        caption = f"Largest distance within the class on {title} for {_labels(distances)}, training samples{seed}."
        yield figure(4, "dmax", f"{caption}{same}{rest}", figures.dmax_distributions, distances, looks, title)
    maps = _points(apart, lambda run: run.diagnostics.tsne)
    if maps:
        more = _rest(len(data.groups) - len(groups) + len(apart) - len(maps))
        caption = f"t-SNE of training embeddings of up to five classes a group on {title}{seed}.{same}{more}"
        yield figure(5, "tsne", caption, figures.tsne, maps, data.class_group, title)
    for split, curves in margins.items():
        caption = f"Cumulative distribution of the logit margins on {title}, {split} samples{seed}.{rest}"
        yield figure(6, f"margin-cdfs-{split}", caption, figures.margin_cdfs, curves, looks, split, title)


def _sensitivity(data: DataSet, looks: Looks) -> Iterator[Picture]:
    """Figure 7 of each method with a sweep, with CE and LogAdj under the same settings."""
    for sweeps in gather(data.sweeps, lambda sweep: sweep.method):
        method, panels = sweeps[0].method, {}
        for sweep in sweeps:
            means, stds, _ = map(list, zip(*(group.balanced for group in sweep.groups)))
            panels[SYMBOL.get(sweep.knob, sweep.knob)] = {"values": sweep.values, "accuracy": means, "std": stds}
        plain = (partner(sweeps[0].groups[0], data.plain(name)) for name in ("ce", "logadj") if name != method)
        baselines = {group.label: group.balanced.mean for group in plain if group is not None}
        name = SHORT.get(method, method)
        title, knobs = f"{name} on {data.title}", " and ".join(panels)
        caption = f"Figure 7. Balanced test accuracy of {title} against {knobs}, all else equal."
        color = styles({name: method})[name].color
        make = partial(figures.sensitivity, panels, color, looks, baselines, title)
        yield Picture(f"figure7-sensitivity-{slug(method)}-{data.slug}", caption, make)


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


def _inputs(data: DataSet) -> dict[str, list[float]] | None:
    """Two-dimensional training inputs, read again; None where they are of another kind, too many to draw, or gone."""
    given = data.first.split.input
    if given is None or given.shape != [2] or data.counts.total > MOST_POINTS:
        return None
    try:
        train: Any = data_again(data.first).train
    except (InputError, OSError):
        return None
    return {"x": train.inputs[:, 0].tolist(), "y": train.inputs[:, 1].tolist(), "labels": train.labels.tolist()}


def worst_classes(data: DataSet, group: Group) -> list[int]:
    """Labels of the classes with the lowest test accuracy, mean over seeds."""
    means = [(mean, c) for c in range(data.counts.num_classes) if (mean := group.class_accuracy(c)) is not None]
    return [c for mean, c in sorted(means)[:CLASSES] if mean < 1]


def mistakes(data: DataSet, group: Group, run: Run) -> Mistakes:
    """Mistaken test images of the worst classes, of one run."""
    try:
        test, known = data_again(run).test, right_and_labels(run)
        if test.kind == "features":
            raise InputError("the data are numbers, not images")
        if known is None or not np.array_equal(known[1], test.labels.numpy()):
            raise InputError("the run did not keep which test samples were right")
    except (InputError, OSError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        return Mistakes(f"Pictures of mistaken test samples are not shown: {why}.", [])
    right, labels = known
    predicted, names, left = _predicted(run, labels), data.first.class_names, MOST_BYTES
    rows = []
    for c in worst_classes(data, group):
        found = []
        for i in np.flatnonzero((labels == c) & ~right)[:EACH].tolist():
            image = _thumbnail(test, i)
            if image is not None and (left := left - len(image)) > 0:
                address = f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
                found.append(Thumbnail(address, None if predicted is None else names[predicted[i]]))
        if found:
            rows.append((names[c], found))
    return Mistakes(f"Mistaken test images of {group.label}, {run.path.name}.", rows)


def data_again(run: Run) -> Dataset:
    """A run's data, where they are still there and the same."""
    from ..data.catalogue import read

    try:
        made = read(run.data, run.config.data.root or "data", **run.options)
    except TypeError:
        raise InputError("the data's options are of another version") from None
    except InputError:
        raise InputError("the data are not where they were when the run was made") from None
    if made.fingerprint != run.fingerprint:
        raise InputError("the data have changed since the run was made")
    return made


def _predicted(run: Run, labels: np.ndarray) -> np.ndarray | None:
    """The predicted labels, where the run's predictions are still beside it."""
    from ..runs.predictions import predictions

    try:
        test = predictions(run.path).test
    except InputError:
        return None
    if test is None or not np.array_equal(test.labels.numpy(), labels):
        return None
    found: np.ndarray = test.logits.argmax(1).numpy()
    return found


def _thumbnail(test: Split, i: int) -> bytes | None:
    """A test sample as a small JPEG; None where its file cannot be read any more."""
    from PIL import Image

    from ..data.dataset import Files
    from ..data.images import open_image

    try:
        if isinstance(test.inputs, Files):
            opened = open_image(test.inputs.read(i))
            pixels = opened.pixels(8 if min(opened.width, opened.height) > 8 * SIDE else 1)
        else:
            pixels = np.moveaxis(np.asarray(test.inputs[i]), 0, -1)
            pixels = np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels
    except (OSError, ValueError):
        return None
    image, made = Image.fromarray(pixels), io.BytesIO()
    scale = SIDE / max(image.size)
    image.resize([max(round(side * scale), 1) for side in image.size]).save(made, "JPEG", quality=70)
    return made.getvalue()
