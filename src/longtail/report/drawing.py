"""The figures that a set of runs allows, drawn and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..counts import GROUPS
from ..errors import InputError
from ..runs.read import Run, as_number
from . import claims, figures, paper, style, tradeoff
from .differences import partner
from .grouping import SHORT, SYMBOL, DataSet, Group, knob_text, slug
from .style import Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = 8
_PANELS = ("logadj", "elm", "dro-lt", "ce")  # the paper's panels of figures 1 and 5 come first


@dataclass(frozen=True)
class Drawing:
    """A saved figure: ``stem`` + .png, .svg or .pdf."""

    number: int
    data: str
    caption: str
    stem: Path

    @property
    def name(self) -> str:
        return self.stem.name


def draw(data: DataSet, folder: Path, looks: Mapping[str, Style]) -> list[Drawing]:
    """Save every figure that the runs on this data set allow, in the paper's order."""
    drawings = []
    for number, name, caption, make in _possible(data, looks):
        stem = folder / f"figure{number}-{name}-{slug(data.title)}"
        figures.save(make(), stem)
        drawings.append(Drawing(number, data.title, f"Figure {number}. {caption}", stem))
    return drawings


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
    alike = data.alike
    best = sorted(kept, key=lambda g: (g not in alike, _importance(g)))[:MOST_CURVES]
    return [g for g in data.groups if g in best]


def _importance(group: Group) -> int:
    """The paper's one-stage methods first, then variants of ELM, other methods, and their variants."""
    row = paper.result(group.method)
    if group.changed:
        return 1 if group.method == "elm" else 3
    return 0 if row is not None and not row.multi_stage else 2


def _of_its_own(groups: Sequence[Group]) -> tuple[list[Group], str]:
    """The groups without those that only put a new head on an earlier one's embeddings, and a sentence that says so."""
    kept: list[Group] = []
    twins: dict[str, list[str]] = {}
    for group in groups:
        mine = group.first.get("diagnostics", "dmax", "train")
        twin = next((g for g in kept if mine and g.first.get("diagnostics", "dmax", "train") == mine), None)
        if twin is None:
            kept.append(group)
        else:
            twins.setdefault(twin.label, []).append(group.label)
    return kept, "".join(f" {', '.join(same)}: the embeddings of {label}." for label, same in twins.items())


Possible = tuple[int, str, str, Callable[[], "Figure"]]


def _possible(data: DataSet, looks: Mapping[str, Style]) -> Iterator[Possible]:
    groups = shown(data)
    rest = _rest(len(data.groups) - len(groups))
    title, seed = data.title, _seed_note(groups)
    planar = _points(data, groups, "embeddings2d", "train")
    if planar:
        inputs = _moons(data)
        first = "Training data and " if inputs else ""
        names = data.first.class_names
        more = _rest(len(data.groups) - len(planar))
        caption = f"{first}two-dimensional training embeddings of each method on {title}{seed}.{more}"
        yield 1, "embeddings", caption, lambda: figures.two_moons(inputs, planar, names)
    accuracy = {g.label: _by_group(g, lambda s: s.mean) for g in groups}
    spread = {g.label: _by_group(g, lambda s: s.std) for g in groups}
    caption = f"Test accuracy on {title} by head, torso and tail; whiskers are one standard deviation over seeds.{rest}"
    yield (
        2,
        "groups",
        caption,
        lambda: figures.group_accuracy(accuracy, data.sizes, std=spread, title=title, looks=looks),
    )
    margins = {split: _curves(data, groups, "margins", split) for split in ("test", "train")}
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
    apart, same = _of_its_own(groups)
    distances = _curves(data, apart, "dmax", "train")
    if distances:
        what = f"Largest distance within the class on {title} for {_labels(distances)}"
        caption = f"{what}, training samples{seed}.{same}{rest}"
        yield 4, "dmax", caption, lambda: figures.dmax_distributions(distances, title=title, looks=looks)
    maps = _points(data, apart, "tsne")
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
    part = "tail" if data.sizes["tail"] else "torso"
    trades = {g.label: found for g in groups if (found := _mean_curve(g, part)) is not None}
    if trades:
        caption = (
            f"Accuracy of the {part} against that of the head on {title} as τ·log π is taken off the logits, mean over "
            f"seeds; the mark is the model as trained (τ = 0). Not in the paper.{rest}"
        )
        yield 8, "tradeoff", caption, lambda: figures.tradeoff(trades, part, title=title, looks=looks)


def _mean_curve(group: Group, part: str) -> dict[str, list[float]] | None:
    """A group's trade-off between head and ``part``, mean over its seeds at each τ."""
    found = [tradeoff.curve(run) for run in group.runs]
    known = [c for c in found if c is not None and part in c and c["tau"] == (found[0] or {}).get("tau")]
    if not known or len(known) < len(found):
        return None
    return {name: [fmean(values) for values in zip(*(c[name] for c in known))] for name in ("tau", "head", part)}


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


def _by_group(group: Group, take: Callable[[Any], float | None]) -> dict[str, float | None]:
    stats = {"all": group.balanced, **{g: group.accuracy(g) for g in GROUPS}}
    return {name: None if stat is None else take(stat) for name, stat in stats.items()}


def _curves(data: DataSet, groups: Sequence[Group], name: str, split: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Quantiles by panel (label) and method; panels in the order head, torso, tail."""
    picked = data.first.get("diagnostics", "labels")
    labels = [c for c in picked if isinstance(c, int)] if isinstance(picked, list) else []
    panels: dict[str, dict[str, dict[str, Any]]] = {}
    for label in labels:
        rows = {g.label: found for g in groups if (found := _quantiles(g.first, name, split, label))}
        if rows:
            panels[_panel_title(data, label)] = rows
    return panels


def _quantiles(run: Run, name: str, split: str, label: int) -> dict[str, Any] | None:
    values = run.get("diagnostics", name, split, str(label), "quantiles")
    counts = run.get("diagnostics", name, split, str(label), "counts")
    if not isinstance(values, list) or len(values) < 2 or any(as_number(v) is None for v in values):
        return None
    size = sum(counts) if isinstance(counts, list) and all(as_number(c) is not None for c in counts) else len(values)
    return {"quantiles": values, "n": size}


def _panel_title(data: DataSet, label: int) -> str:
    name = data.first.class_names[label]
    named = f"label {label}" if name == str(label) else f"label {label}, {name}"
    return f"{named} ({data.class_group[label]}, n = {int(data.counts.n[label])})"


def _points(data: DataSet, groups: Sequence[Group], *path: str) -> dict[str, dict[str, list[float]]]:
    """Points by method, the paper's three panels first, at most six."""
    found = {}
    rank = {method: i for i, method in enumerate(_PANELS)}
    order = sorted(groups, key=lambda g: (len(g.changed) > 0, rank.get(g.method, len(rank))))
    for group in order:
        points = group.first.get("diagnostics", *path)
        columns = [points.get(k) for k in ("x", "y", "labels")] if isinstance(points, dict) else []
        lists = [c for c in columns if isinstance(c, list) and c and all(as_number(v) is not None for v in c)]
        known = set(range(data.counts.num_classes))
        if len(lists) == 3 and len({len(c) for c in lists}) == 1 and set(lists[2]) <= known:
            found[group.label] = dict(zip(("x", "y", "labels"), lists))
    return dict(list(found.items())[:6])


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
            numeric = all(as_number(v) is not None for v in sweep.values)
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
