"""The paper's seven figures and three more for a first look: plain arrays in, a matplotlib ``Figure`` out.

Arrays are what ``summary.json`` holds: lists of numbers, quantiles at 0, 1, … 100 %, points as
``{"x", "y", "labels"}``; ``looks`` is how each label is drawn. Nothing here touches pyplot's global state, and ``save``
writes the same bytes for the same input.

>>> accuracy, sizes = {"CE": {"head": 0.7, "torso": 0.4, "tail": None}}, {"head": 4, "torso": 6, "tail": 0}
>>> figure = group_accuracy(accuracy, sizes, {"CE": Style("red", "-", "o", "")}, {"CE": {}}, "data")
>>> [text.get_text() for text in figure.axes[0].texts][-1]
'no classes'
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..counts import GROUPS
from ..margins import short as knob_text

FEW = 10  # fewer samples than this are drawn one by one
FEW_CLASSES = 25  # up to so many have a mark each; of more, the line is a mean over neighbours
_GROUP_COLOURS = {"head": "#0072b2", "torso": "#009e73", "tail": "#d55e00"}
_GROUP_MARKERS = {"head": "o", "torso": "s", "tail": "^"}
_MARGIN = "margin γ(x, y) in logits, {} samples"
ZERO: Any = {"color": "#222222", "linewidth": 0.8, "linestyle": ":"}
SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "longtail",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.6,
    "figure.dpi": 100,
    "axes.unicode_minus": True,
    "text.parse_math": False,  # names of classes and data are not TeX: "$5" is five dollars
}
styled = mpl.rc_context(SETTINGS)  # as a decorator: a figure's function runs under them, others are left alone


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    color: str
    line: Any
    marker: str
    hatch: str

    def plot(self, ax: Axes, x: Any, y: Any, **more: Any) -> None:
        ax.plot(x, y, color=self.color, linestyle=self.line, **more)


Curves = Mapping[str, Mapping[str, Any]]  # by label of a method: {"quantiles": 101 values, "n": number of samples}
Looks = Mapping[str, Style]
Rows = Mapping[str, Sequence[Any]]  # by label, or by what the numbers are: "x", "y" and "labels" of points
ByPart = Mapping[str, Mapping[str, float | None]]  # by label, by "all", "head", "torso" and "tail"


@styled
def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write ``stem.png``, ``stem.svg`` and ``stem.pdf``; returns the three paths."""
    # no time of writing in the files: the same figure gives the same bytes
    stamps: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = {kind: Path(f"{stem}.{kind}") for kind in stamps}
    paths["png"].parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for every format
    for kind, metadata in stamps.items():
        figure.savefig(paths[kind], format=kind, dpi=200, metadata=metadata)  # twice what a screen shows
    return list(paths.values())


@styled
def two_moons(data: Rows | None, embeddings: Mapping[str, Rows], class_names: Sequence[str]) -> Figure:
    """Figure 1: the training data (where given) and the two-dimensional embeddings of each method."""
    panels = {**({"Training data": data} if data is not None else {}), **embeddings}
    classes = sorted({int(c) for points in panels.values() for c in points["labels"]})
    colours = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
    dots = {}
    for c in classes:  # the rare class last, so that it lies on top
        color, marker = colours[c % len(colours)], "o^sDv"[c % len(colours)]
        dots[c] = {"s": 11, "color": color, "marker": marker, "alpha": 0.75, "label": class_names[c]}
    figure, axes = make_panels(len(panels), height=3.1)
    for ax, (title, points) in zip(axes, panels.items()):
        _scatter(ax, title, points, dots)
        what = "input" if points is data else "embedding"
        ax.set(xlabel=f"{what} 1", ylabel=f"{what} 2")
    maps = axes[-len(embeddings) :]
    for low_high, set_limits in ((Axes.get_xlim, Axes.set_xlim), (Axes.get_ylim, Axes.set_ylim)):
        ends = np.asarray([low_high(ax) for ax in maps])
        for ax in maps:  # compactness shows on one scale only
            set_limits(ax, ends[:, 0].min(), ends[:, 1].max())
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(classes), markerscale=1.6)
    return figure


@styled
def group_accuracy(accuracy: ByPart, classes: Mapping[str, int], looks: Looks, whiskers: ByPart, title: str) -> Figure:
    """Figure 2: test accuracy (0…1) of all classes, head, torso and tail; ``whiskers`` are half of each interval.

    ``classes`` is how many each group has; one without any says "no classes".
    """
    columns = ["all", *GROUPS]
    figure, (ax,) = make_panels(1, width=max(5.2, 1.6 + 0.3 * len(accuracy) * len(columns)), height=3.4)
    width = 0.82 / len(accuracy)
    bars: dict[str, list[tuple[float, float, float]]] = {}  # where, how high and how uncertain
    for i, (label, row) in enumerate(accuracy.items()):
        places = [j + (i - (len(accuracy) - 1) / 2) * width for j in range(len(columns))]
        cells = [(x, row.get(c), whiskers[label].get(c)) for x, c in zip(places, columns)]
        bars[label] = [(x, 100 * v, 100 * (e or 0.0)) for x, v, e in cells if v is not None]
    top = min(max((v + e for row in bars.values() for _, v, e in row), default=100.0), 100.0)
    for label, found in bars.items():
        look = looks[label]
        x, v, e = np.asarray(found or np.empty((0, 3))).T
        ax.bar(x, v, width * 0.92, color=look.color, hatch=look.hatch, edgecolor="white", linewidth=0.4, label=label)
        known = e > 0
        if known.any():
            spans = (e[known], np.clip(100 - v, 0, e)[known])
            ax.errorbar(x[known], v[known], yerr=spans, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2)
        for place, value, error in found:
            height = min(value + error, 100) + 0.008 * top
            ax.text(place, height, f"{value:.1f}", ha="center", va="bottom", fontsize=6.5, clip_on=True)
    names = ["All\n(balanced)"]
    for j, (group, n) in enumerate(classes.items(), 1):
        names.append(f"{group.capitalize()}\n({n} class{'' if n == 1 else 'es'})")
        if n == 0:
            ax.text(j, 1.5, "no classes", ha="center", va="bottom", color="#555555", style="italic")
    ax.set_xticks(range(len(columns)), names)
    ax.set_xlim(-0.55, len(columns) - 0.45)
    ax.set_ylim(0, min(top * 1.12 + 1, 104))
    ax.grid(axis="x", visible=False)
    return finish(figure, [ax], title, "test accuracy (%), mean over classes", list(accuracy), above=6)


@styled
def margin_distributions(curves: Mapping[str, Curves], looks: Looks, split: str, title: str) -> Figure:
    """Figure 3: density of the logit margin γ(x, y) = f_y(x) − max f_y'(x), one panel a label (the outer key).

    A label with fewer than ten samples has no density worth the name: its samples are drawn one by one.
    """
    figure = _densities(curves, looks, _MARGIN.format(split), title)
    for ax in figure.axes:
        ax.axvline(0, **ZERO)
    return figure


@styled
def dmax_distributions(curves: Mapping[str, Curves], looks: Looks, title: str) -> Figure:
    """Figure 4: density of the largest distance to a sample of the same class, over the largest norm; training data."""
    return _densities(curves, looks, "d_max(x) / max ‖Φ‖, training samples", title, low=0.0)


@styled
def margin_cdfs(curves: Mapping[str, Curves], looks: Looks, split: str, title: str) -> Figure:
    """Figure 6: cumulative distribution of the margins; at 0 it is the share of samples misclassified."""

    def draw(ax: Axes, rows: Curves) -> None:
        for label, row in rows.items():
            values = np.asarray(row["quantiles"], dtype=float)
            looks[label].plot(ax, values, np.linspace(0, 1, values.size), label=label, linewidth=1.6)
        ax.axvline(0, **ZERO)
        ax.set_ylim(0, 1)

    return _by_panel(curves, draw, _MARGIN.format(split), "share of samples below", title, height=2.9, sharey=True)


@styled
def training_curves(panels: Mapping[str, Rows], looks: Looks, ylabel: str, title: str) -> Figure:
    """A number by epoch, one line a method, a panel for each group of classes; ``panels`` have epochs and values."""

    def draw(ax: Axes, rows: Rows) -> None:
        for label, (epochs, values) in rows.items():
            mark = looks[label].marker if len(values) == 1 else None
            looks[label].plot(ax, epochs, values, marker=mark, label=label)

    width = 5.6 if len(panels) == 1 else None
    return _by_panel(panels, draw, "epoch", ylabel, title, height=3.2, width=width, sharey=True)


@styled
def tsne(panels: Mapping[str, Rows], class_group: Sequence[str], title: str) -> Figure:
    """Figure 5: t-SNE of training embeddings, one panel a method; hue and marker say the group, shade the class."""
    figure, axes = make_panels(len(panels), height=3.2)
    for ax, (label, points) in zip(axes, panels.items()):
        dots = {}
        for group in GROUPS:
            classes = [c for c in sorted({int(c) for c in points["labels"]}) if class_group[c] == group]
            for i, c in enumerate(classes):
                shade = _shaded(_GROUP_COLOURS[group], i, len(classes))
                dots[c] = {"s": 13, "color": shade, "marker": _GROUP_MARKERS[group]}
        _scatter(ax, label, points, dots)
        ax.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)")
    present = {class_group[int(c)] for points in panels.values() for c in points["labels"]}
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=_GROUP_COLOURS[group], label=group.capitalize())
        for group, marker in _GROUP_MARKERS.items()
        if group in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, title="one shade a class")
    return finish(figure, axes, title, "t-SNE 2 (no unit)", [])


@styled
def sensitivity(
    sweeps: Mapping[str, Rows], color: str, looks: Looks, baselines: Mapping[str, float], title: str
) -> Figure:
    """Figure 7: balanced accuracy (0…1) against a knob, and ``baselines`` by label as horizontal lines.

    ``sweeps`` have ``"values"``, ``"accuracy"`` and ``"std"`` by knob. Numbers go on a logarithmic axis (0 at its left
    end), anything else on an axis of categories.
    """
    figure, axes = make_panels(len(sweeps), width=3.9 * min(len(sweeps), 3), height=3.2, sharey=True)
    for ax, (knob, sweep) in zip(axes, sweeps.items()):
        values, accuracy = sweep["values"], 100 * np.asarray(sweep["accuracy"], dtype=float)
        numeric = all(isinstance(v, (int, float)) for v in values)
        least = min((v for v in values if numeric and v > 0), default=10)
        places = [math.log10(v if v > 0 else least / 10) if numeric else i for i, v in enumerate(values)]
        ticks = [f"{v:g}" if numeric else knob_text(v) for v in values]
        errors = [100 * (e or 0.0) for e in sweep["std"]]
        ax.errorbar(places, accuracy, yerr=errors, color=color, marker="o", markersize=5, capsize=3, linewidth=1.5)
        ax.set_xticks(places, ticks, rotation=0 if max(map(len, ticks)) < 7 else 25)
        ax.set_xlabel(f"{knob} (logarithmic)" if numeric else knob)
        ax.margins(x=0.08, y=0.15)
        for label, height in baselines.items():
            ax.axhline(100 * height, color=looks[label].color, linestyle="--", linewidth=1.2, label=label)
    return finish(figure, axes, title, "balanced test accuracy (%)", list(baselines))


@styled
def class_accuracy(sizes: Sequence[int], accuracy: Rows, looks: Looks, limits: tuple[int, int], title: str) -> Figure:
    """Test accuracy (0…1) of every class against its training samples, one line a method; None was not tested.

    Shades say head (at least the first of the ``limits``), torso and tail (fewer than the second).
    """
    figure, (ax,) = make_panels(1, width=6.4, height=3.9)
    n = np.maximum(np.asarray(sizes, dtype=float), 0.5)  # a class without samples stands left of one with a single one
    ax.set_xscale("log")
    low, high = n.min() / 1.25, n.max() * 1.25
    for name, start, end in (("head", limits[0], high), ("torso", limits[1], limits[0]), ("tail", low, limits[1])):
        left, right = max(start, low), min(end, high)
        if left < right:
            ax.axvspan(left, right, color=_GROUP_COLOURS[name], alpha=0.08, linewidth=0)
            # Above the axes, where no line is
            ax.text((left * right) ** 0.5, 104, name, ha="center", fontsize=8, color="#333333", style="italic")
    for label, row in accuracy.items():
        look, values = looks[label], np.asarray([np.nan if v is None else 100 * v for v in row])
        order = np.lexsort((np.arange(n.size), n))
        order = order[~np.isnan(values[order])]
        x, y = n[order], values[order]
        if order.size > FEW_CLASSES:
            ax.scatter(x, y, s=7, color=look.color, alpha=0.28, linewidths=0)
            width = max(order.size // 8, 3)
            weights = np.ones(width) / width
            x, y = np.exp(np.convolve(np.log(x), weights, "valid")), np.convolve(y, weights, "valid")
            look.plot(ax, x, y, linewidth=2, label=label)
        else:
            look.plot(ax, x, y, marker=look.marker, markersize=4.5, linewidth=1.6, label=label)
    ax.set_xlim(high, low)  # the tail on the right, where one looks for it
    ax.set_ylim(-3, 103)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training samples of the class (logarithmic)")
    return finish(figure, [ax], title, "test accuracy of the class (%)", list(accuracy), above=14)


@styled
def tradeoff(curves: Mapping[str, Rows], looks: Looks, part: str, title: str) -> Figure:
    """Accuracy (0…1) of ``part`` against the head's as logits are adjusted, by ascending τ; a mark at τ = 0."""
    figure, (ax,) = make_panels(1, width=5.6, height=3.9)
    for label, rows in curves.items():
        head, other, tau = (np.asarray(rows[name], dtype=float) for name in ("head", part, "tau"))
        marked = {"marker": looks[label].marker, "markevery": [int(np.abs(tau).argmin())], "markersize": 7}
        looks[label].plot(ax, 100 * head, 100 * other, label=label, linewidth=1.6, **marked)
    ax.set_xlabel("test accuracy of the head (%)")
    return finish(figure, [ax], title, f"test accuracy of the {part} (%)", list(curves), above=6)


def make_panels(
    count: int, *, height: float, width: float | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels, at most three in a row."""
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width or max(3.3 * columns, 4.2), height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def finish(
    figure: Figure, axes: Sequence[Axes], title: str, ylabel: str, labels: Sequence[str], above: float | None = None
) -> Figure:
    """The figure with its title, ``above`` its only panel by so much if given, and below a legend of the labels."""
    axes[0].set_ylabel(ylabel)
    if above is None:
        figure.suptitle(title, fontsize=10)
    else:
        axes[0].set_title(title, pad=above)
    if labels:
        handles, names = axes[0].get_legend_handles_labels()
        room = figure.get_figwidth() * 13  # characters of this size that fit side by side
        columns = max(1, min(len(labels), int(room // (max(map(len, labels)) + 7))))
        rows = math.ceil(len(labels) / columns)
        figure.set_figheight(figure.get_figheight() + 0.19 * (rows - 1))  # a long legend must not squeeze the panels
        figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8.5)
    return figure


def _scatter(ax: Axes, title: str, points: Rows, dots: Mapping[int, Mapping[str, Any]]) -> None:
    """Rows of the given classes, each drawn in its own way; a long title in as many lines as it needs."""
    x, y, labels = (np.asarray(points[name]) for name in ("x", "y", "labels"))
    for c, look in dots.items():
        ax.scatter(x[labels == c], y[labels == c], linewidths=0, **look)
    ax.set_title(textwrap.fill(title, 40))


def _shaded(colour: str, index: int, count: int) -> np.ndarray:
    """The colour itself, or mixed with white or black so that classes of one group can be told apart."""
    rgb = np.asarray(mpl.colors.to_rgb(colour))
    place = 0.0 if count == 1 else 2 * index / (count - 1) - 1
    mixed: np.ndarray = rgb + (1 - rgb) * 0.6 * place if place > 0 else rgb * (1 + 0.55 * place)
    return mixed


def _by_panel(
    panels: Mapping[str, Mapping[str, Any]], draw: Callable[[Axes, Any], None], xlabel: str, ylabel: str, title: str,
    **layout: Any,
) -> Figure:  # fmt: skip
    """A panel for each of the outer keys, with what ``draw`` puts there for the labels within."""
    figure, axes = make_panels(len(panels), **layout)
    for ax, (panel, rows) in zip(axes, panels.items()):
        draw(ax, rows)
        ax.set_title(textwrap.fill(panel, 40))
        ax.set_xlabel(xlabel)
    labels = dict.fromkeys(label for rows in panels.values() for label in rows)
    return finish(figure, axes, title, ylabel, list(labels))


def _densities(curves: Mapping[str, Curves], looks: Looks, xlabel: str, title: str, low: float | None = None) -> Figure:
    def draw(ax: Axes, rows: Curves) -> None:
        sizes = {label: int(row["n"]) for label, row in rows.items()}
        if max(sizes.values()) < FEW:
            _strips(ax, rows, looks, sizes)
            return
        for label, row in rows.items():
            x, y = _density(np.asarray(row["quantiles"], dtype=float), sizes[label], low)
            looks[label].plot(ax, x, y, linewidth=1.6, label=label)
            ax.fill_between(x, y, color=looks[label].color, alpha=0.08, linewidth=0)
        ax.set_ylim(bottom=0)

    return _by_panel(curves, draw, xlabel, "density", title, height=2.9)


def _strips(ax: Axes, rows: Curves, looks: Looks, sizes: Mapping[str, int]) -> None:
    """Too few samples for a density: every sample as a mark, a row a method."""
    for i, (label, row) in enumerate(rows.items()):
        look, quantiles = looks[label], np.asarray(row["quantiles"], dtype=float)
        places = np.linspace(0, 1, sizes[label])  # the i-th of n samples is the quantile i/(n − 1)
        values = np.interp(places, np.linspace(0, 1, quantiles.size), quantiles)
        look.plot(ax, values, np.full(values.size, -i), marker=look.marker, label=label)
    ax.set_yticks([])
    ax.set_ylim(-len(rows) + 0.4, 0.6)
    ax.text(0.99, 0.99, "one mark a sample", transform=ax.transAxes, ha="right", va="top", fontsize=7, style="italic")


def _density(quantiles: np.ndarray, n: int, low: float | None) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian kernel estimate from quantiles, the bandwidth Silverman's for n samples; reflected at ``low``."""
    spread = min(float(quantiles.std()), float(np.subtract(*np.percentile(quantiles, [75, 25]))) / 1.34 or math.inf)
    scale = max(abs(float(quantiles.max())), abs(float(quantiles.min())), 1e-9)
    width = max(0.9 * spread * max(n, 1) ** -0.2, 1e-3 * scale)
    start = quantiles.min() - 3 * width
    grid = np.linspace(start if low is None else max(start, low), quantiles.max() + 3 * width, 256)
    centres = quantiles if low is None else np.concatenate([quantiles, 2 * low - quantiles])
    z = (grid[:, None] - centres[None, :]) / width
    return grid, np.exp(-0.5 * z**2).sum(axis=1) / (quantiles.size * width * math.sqrt(2 * math.pi))
