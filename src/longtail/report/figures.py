"""The paper's seven figures and three more for a first look: plain arrays in, a matplotlib ``Figure`` out.

Arrays are what ``summary.json`` holds: lists of numbers, quantiles at 0, 1, … 100 %, points as
``{"x", "y", "labels"}``. ``looks`` is how each label is drawn (``style.styles``). Nothing here touches pyplot's global
state, and ``save`` writes the same bytes for the same input.

>>> accuracy, sizes = {"CE": {"head": 0.7, "torso": 0.4, "tail": None}}, {"head": 4, "torso": 6, "tail": 0}
>>> figure = group_accuracy(accuracy, sizes, style.styles({"CE": "ce"}), {"CE": {}}, "data")
>>> [text.get_text() for text in figure.axes[0].texts][-1]
'no classes'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..counts import GROUPS
from ..margins import short as knob_text
from . import style
from .style import SETTINGS, Style, add_legend, finish, make_panels, name_panel, shaded, styled

T = TypeVar("T")
Points = Mapping[str, Sequence[float]]
Curves = Mapping[str, Mapping[str, Any]]  # by label of a method: {"quantiles": 101 values, "n": number of samples}
Looks = Mapping[str, Style]
ByPart = Mapping[str, Mapping[str, float | None]]  # by label, by "all", "head", "torso" and "tail"

_DPI = 200  # twice what a screen shows
FEW = 10  # fewer samples than this are drawn one by one
_ZERO: Any = {"color": "#222222", "linewidth": 0.8, "linestyle": ":"}
FEW_CLASSES = 25  # up to so many have a mark each; of more, the line is a mean over neighbours


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write ``stem.png``, ``stem.svg`` and ``stem.pdf``; returns the three paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    # no time of writing in the files: the same figure gives the same bytes
    stamps: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context(SETTINGS):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not again for every format
        for kind, metadata in stamps.items():
            path = stem.with_name(f"{stem.name}.{kind}")
            figure.savefig(path, format=kind, dpi=_DPI, metadata=metadata)
            written.append(path)
    return written


@styled
def two_moons(data: Points | None, embeddings: Mapping[str, Points], class_names: Sequence[str] = ()) -> Figure:
    """Figure 1: the training data (where given) and the two-dimensional embeddings of each method."""
    panels = ([("Training data", data)] if data is not None else []) + list(embeddings.items())
    classes = sorted({int(c) for _, points in panels for c in points["labels"]})
    colours = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
    figure, axes = make_panels(len(panels), height=3.1)
    for i, (ax, (title, points)) in enumerate(zip(axes, panels)):
        labels = np.asarray(points["labels"], dtype=int)
        for c in classes:  # the rare class last, so that it lies on top
            mask = labels == c
            name = class_names[c] if c < len(class_names) else f"class {c}"
            x, y, look = np.asarray(points["x"])[mask], np.asarray(points["y"])[mask], c % len(colours)
            ax.scatter(x, y, s=11, color=colours[look], marker="o^sDv"[look], linewidths=0, alpha=0.75, label=name)
        name_panel(ax, title)
        is_data = data is not None and i == 0
        ax.set_xlabel("input 1" if is_data else "embedding 1")
        ax.set_ylabel("input 2" if is_data else "embedding 2")
    maps = axes[1:] if data is not None else axes
    for low_high, set_limits in ((Axes.get_xlim, Axes.set_xlim), (Axes.get_ylim, Axes.set_ylim)):
        ends = np.asarray([low_high(ax) for ax in maps])
        for ax in maps:  # compactness shows on one scale only
            set_limits(ax, ends[:, 0].min(), ends[:, 1].max())
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(classes), markerscale=1.6)
    return figure


@styled
def group_accuracy(accuracy: ByPart, classes: Mapping[str, int], looks: Looks, whiskers: ByPart, title: str) -> Figure:
    """Figure 2: test accuracy (0…1) of all classes, head, torso and tail, mean over seeds; none is drawn for None.

    Args:
        classes: how many classes each group has; a group without any says "no classes".
        whiskers: half of each bar's interval.
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
    return _finish_one(figure, ax, title, "test accuracy (%), mean over classes", list(accuracy))


@styled
def margin_distributions(curves: Mapping[str, Curves], looks: Looks, split: str, title: str) -> Figure:
    """Figure 3: density of the logit margin γ(x, y) = f_y(x) − max f_y'(x), one panel a label (the outer key).

    A label with fewer than ten samples has no density worth the name: its samples are drawn one by one.
    """
    figure = _densities(curves, looks, _margin_axis(split), title)
    for ax in figure.axes:
        ax.axvline(0, **_ZERO)
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
        ax.axvline(0, **_ZERO)
        ax.set_ylim(0, 1)

    return _by_panel(curves, draw, _margin_axis(split), "share of samples below", title, height=2.9, sharey=True)


@styled
def training_curves(
    panels: Mapping[str, Mapping[str, Sequence[float]]], looks: Looks, ylabel: str, title: str
) -> Figure:
    """A number of the training data by epoch, one line a method, a panel for each group of classes."""

    def draw(ax: Axes, rows: Mapping[str, Sequence[float]]) -> None:
        for label, values in rows.items():
            look = looks[label]
            epochs, mark = np.arange(1, len(values) + 1), look.marker if len(values) == 1 else None
            look.plot(ax, epochs, np.asarray(values, dtype=float), marker=mark, label=label)

    width = 5.6 if len(panels) == 1 else None
    return _by_panel(panels, draw, "epoch", ylabel, title, height=3.2, width=width, sharey=True)


@styled
def tsne(panels: Mapping[str, Points], class_group: Sequence[str], title: str) -> Figure:
    """Figure 5: t-SNE of training embeddings, one panel a method; hue and marker say the group, shade the class."""
    figure, axes = make_panels(len(panels), height=3.2)
    present: list[str] = []
    for ax, (label, points) in zip(axes, panels.items()):
        x, y = np.asarray(points["x"], dtype=float), np.asarray(points["y"], dtype=float)
        labels = np.asarray(points["labels"], dtype=int)
        for group in GROUPS:
            classes = [c for c in sorted(set(labels.tolist())) if class_group[c] == group]
            if classes and group not in present:
                present.append(group)
            for i, c in enumerate(classes):
                mask = labels == c
                shade = shaded(style.GROUP_COLOURS[group], i, len(classes))
                ax.scatter(x[mask], y[mask], s=13, color=shade, marker=style.GROUP_MARKERS[group], linewidths=0)
        name_panel(ax, label)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_xlabel("t-SNE 1 (no unit)")
    axes[0].set_ylabel("t-SNE 2 (no unit)")
    figure.suptitle(title, fontsize=10)
    handles = [
        Line2D([], [], linestyle="", marker=style.GROUP_MARKERS[g], color=style.GROUP_COLOURS[g], label=g.capitalize())
        for g in GROUPS
        if g in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, title="one shade a class")
    return figure


@styled
def sensitivity(
    sweeps: Mapping[str, Mapping[str, Sequence[Any]]],
    color: str,
    looks: Looks,
    baselines: Mapping[str, float],
    title: str,
) -> Figure:
    """Figure 7: balanced accuracy (0…1) against a knob.

    Args:
        sweeps: by knob (``"λ"``, ``"α"``): ``{"values", "accuracy", "std"}`` in the order of the values. Numbers go on
            a logarithmic axis (0 at its left end), anything else on an axis of categories.
        baselines: by method, drawn as horizontal lines.
    """
    figure, axes = make_panels(len(sweeps), width=3.9 * min(len(sweeps), 3), height=3.2, sharey=True)
    for ax, (knob, sweep) in zip(axes, sweeps.items()):
        values, accuracy = sweep["values"], 100 * np.asarray(sweep["accuracy"], dtype=float)
        numeric = all(isinstance(v, (int, float)) for v in values)
        if numeric:
            least = min((v for v in values if v > 0), default=10)
            places = [math.log10(v if v > 0 else least / 10) for v in values]
        else:
            places = [float(i) for i in range(len(values))]
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
def class_accuracy(
    sizes: Sequence[int],
    accuracy: Mapping[str, Sequence[float | None]],
    looks: Looks,
    limits: tuple[int, int],
    title: str,
) -> Figure:
    """Test accuracy (0…1) of every class against its training samples, one line a method, head to tail shaded.

    Args:
        sizes: training samples of each class.
        accuracy: by method, of each class; None where a class was not tested.
        limits: a class of at least the first number of samples is head, of fewer than the second tail.
    """
    figure, (ax,) = make_panels(1, width=6.4, height=3.9)
    n = np.maximum(np.asarray(sizes, dtype=float), 0.5)  # a class without samples stands left of one with a single one
    ax.set_xscale("log")
    low, high = n.min() / 1.25, n.max() * 1.25
    _shade_groups(ax, low, high, limits)
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
    return _finish_one(figure, ax, title, "test accuracy of the class (%)", list(accuracy), pad=14)


@styled
def tradeoff(curves: Mapping[str, Mapping[str, Sequence[float]]], looks: Looks, part: str, title: str) -> Figure:
    """Accuracy (0…1) of ``part`` against the head's as logits are adjusted; a mark at τ = 0.

    Args:
        curves: by method: ``{"tau", "head", part}`` in ascending order of τ.
    """
    figure, (ax,) = make_panels(1, width=5.6, height=3.9)
    for label, rows in curves.items():
        look = looks[label]
        head, other = 100 * np.asarray(rows["head"], dtype=float), 100 * np.asarray(rows[part], dtype=float)
        trained = int(np.abs(np.asarray(rows["tau"], dtype=float)).argmin())
        marked = {"marker": look.marker, "markevery": [trained], "markersize": 7}
        look.plot(ax, head, other, label=label, linewidth=1.6, **marked)
    ax.set_xlabel("test accuracy of the head (%)")
    return _finish_one(figure, ax, title, f"test accuracy of the {part} (%)", list(curves))


def _shade_groups(ax: Axes, low: float, high: float, limits: tuple[int, int]) -> None:
    head, tail = limits
    ends = {"head": (head, high), "torso": (tail, head), "tail": (low, tail)}
    for name, (left, right) in ends.items():
        left, right = max(left, low), min(right, high)
        if left < right:
            ax.axvspan(left, right, color=style.GROUP_COLOURS[name], alpha=0.08, linewidth=0)
            # Above the axes, where no line is
            ax.text((left * right) ** 0.5, 104, name, ha="center", fontsize=8, color="#333333", style="italic")


def _finish_one(figure: Figure, ax: Axes, title: str, ylabel: str, labels: Sequence[str], **place: Any) -> Figure:
    """A figure of one panel, which has the title."""
    ax.set_ylabel(ylabel)
    ax.set_title(title, **place)
    add_legend(figure, ax, labels)
    return figure


def _margin_axis(split: str) -> str:
    return f"margin γ(x, y) in logits, {split} samples"


def _by_panel(
    panels: Mapping[str, Mapping[str, T]], draw: Callable[[Axes, Mapping[str, T]], None], xlabel: str, ylabel: str,
    title: str, **layout: Any,
) -> Figure:  # fmt: skip
    """A panel for each of the outer keys, with what ``draw`` puts there for the labels within."""
    figure, axes = make_panels(len(panels), **layout)
    for ax, (panel, rows) in zip(axes, panels.items()):
        draw(ax, rows)
        name_panel(ax, panel)
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
    grid = np.linspace(quantiles.min() - 3 * width, quantiles.max() + 3 * width, 256)
    if low is not None:
        grid = np.linspace(max(grid[0], low), grid[-1], 256)
    centres = quantiles if low is None else np.concatenate([quantiles, 2 * low - quantiles])
    z = (grid[:, None] - centres[None, :]) / width
    return grid, np.exp(-0.5 * z**2).sum(axis=1) / (quantiles.size * width * math.sqrt(2 * math.pi))
