"""Figures for somebody with a problem, not in the paper: accuracy by class size, head against tail, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from . import style
from .style import Style, add_legend, make_panels, styled

FEW_CLASSES = 25  # up to so many have a mark each; of more, the line is a mean over neighbours


@styled
def class_accuracy(
    sizes: Sequence[int],
    accuracy: Mapping[str, Sequence[float | None]],
    limits: tuple[int, int],
    *,
    title: str = "",
    looks: Mapping[str, Style] | None = None,
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
    for label, look in style.of(accuracy, looks).items():
        values = np.asarray([np.nan if v is None else 100 * v for v in accuracy[label]])
        order = np.lexsort((np.arange(n.size), n))
        order = order[~np.isnan(values[order])]
        x, y = n[order], values[order]
        if order.size > FEW_CLASSES:
            ax.scatter(x, y, s=7, color=look.color, alpha=0.28, linewidths=0)
            width = max(order.size // 8, 3)
            weights = np.ones(width) / width
            x, y = np.exp(np.convolve(np.log(x), weights, "valid")), np.convolve(y, weights, "valid")
            ax.plot(x, y, color=look.color, linestyle=look.line, linewidth=2, label=label)
        else:
            ax.plot(
                x,
                y,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=4.5,
                linewidth=1.6,
                label=label,
            )
    ax.set_xlim(high, low)  # the tail on the right, where one looks for it
    ax.set_ylim(-3, 103)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training samples of the class (logarithmic)")
    ax.set_ylabel("test accuracy of the class (%)")
    ax.set_title(title, pad=14)
    add_legend(figure, ax, list(accuracy))
    return figure


def _shade_groups(ax: Axes, low: float, high: float, limits: tuple[int, int]) -> None:
    head, tail = limits
    ends = {"head": (head, high), "torso": (tail, head), "tail": (low, tail)}
    for name, (left, right) in ends.items():
        left, right = max(left, low), min(right, high)
        if left < right:
            ax.axvspan(left, right, color=style.GROUP_COLOURS[name], alpha=0.08, linewidth=0)
            # Above the axes, where no line is
            ax.text((left * right) ** 0.5, 104, name, ha="center", fontsize=8, color="#333333", style="italic")


@styled
def tradeoff(
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    part: str,
    *,
    title: str = "",
    looks: Mapping[str, Style] | None = None,
) -> Figure:
    """Accuracy (0…1) of ``part`` against the head's as logits are adjusted; a mark at τ = 0.

    Args:
        curves: by method: ``{"tau", "head", part}`` in ascending order of τ.
    """
    figure, (ax,) = make_panels(1, width=5.6, height=3.9)
    for label, look in style.of(curves, looks).items():
        rows = curves[label]
        head, other = 100 * np.asarray(rows["head"], dtype=float), 100 * np.asarray(rows[part], dtype=float)
        trained = int(np.abs(np.asarray(rows["tau"], dtype=float)).argmin())
        ax.plot(
            head,
            other,
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            markevery=[trained],
            markersize=7,
            label=label,
            linewidth=1.6,
        )
    ax.set_xlabel("test accuracy of the head (%)")
    ax.set_ylabel(f"test accuracy of the {part} (%)")
    ax.set_title(title)
    add_legend(figure, ax, list(curves))
    return figure


@styled
def training_curves(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    ylabel: str,
    *,
    title: str = "",
    looks: Mapping[str, Style] | None = None,
) -> Figure:
    """A number of the training data by epoch, one line a method, a panel for each group of classes."""
    figure, axes = make_panels(len(panels), width=5.6 if len(panels) == 1 else None, height=3.2, sharey=True)
    for ax, (panel, rows) in zip(axes, panels.items()):
        for label, look in style.of(rows, looks).items():
            values = np.asarray(rows[label], dtype=float)
            mark = look.marker if values.size == 1 else None
            ax.plot(
                np.arange(1, values.size + 1), values, color=look.color, linestyle=look.line, marker=mark, label=label
            )
        ax.set_xlabel("epoch")
        ax.set_title(panel)
    axes[0].set_ylabel(ylabel)
    figure.suptitle(title, fontsize=10)
    add_legend(figure, axes[0], list(dict.fromkeys(label for rows in panels.values() for label in rows)))
    return figure
