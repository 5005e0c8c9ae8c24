"""What all figures share: settings, the grid of panels, the legend below it."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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

F = TypeVar("F", bound=Callable[..., Figure])


def styled(make: F) -> F:
    """Run a figure's function under our settings, and leave matplotlib's as they were."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Figure:
        with mpl.rc_context(SETTINGS):
            return make(*args, **kwargs)

    return made  # type: ignore[return-value]


def make_panels(
    count: int, *, height: float, width: float | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels, at most three in a row."""
    count = max(count, 1)
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width or max(3.3 * columns, 4.2), height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def add_legend(figure: Figure, ax: Axes, labels: Sequence[str]) -> None:
    """The legend of all panels, below them."""
    handles, names = ax.get_legend_handles_labels()
    longest = max((len(n) for n in labels), default=1)
    room = figure.get_figwidth() * 13  # characters of this size that fit side by side
    columns = max(1, min(len(labels), int(room // (longest + 7))))
    rows = math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(rows - 1, 0))  # a long legend must not squeeze the panels
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8.5)


def name_panel(ax: Axes, title: str) -> None:
    """A title in as many lines as it needs: a long one would run into the next panel or off the page."""
    ax.set_title(textwrap.fill(title, 40))


def share_limits(axes: Sequence[Axes]) -> None:
    for low_high, set_limits in ((Axes.get_xlim, Axes.set_xlim), (Axes.get_ylim, Axes.set_ylim)):
        ends = np.asarray([low_high(ax) for ax in axes])
        for ax in axes:
            set_limits(ax, ends[:, 0].min(), ends[:, 1].max())


def shaded(colour: str, index: int, count: int) -> tuple[float, float, float]:
    """The colour itself, or mixed with white or black so that classes of one group can be told apart."""
    rgb = np.asarray(mpl.colors.to_rgb(colour))
    place = 0.0 if count == 1 else 2 * index / (count - 1) - 1
    mixed = rgb + (1 - rgb) * 0.6 * place if place > 0 else rgb * (1 + 0.55 * place)
    return float(mixed[0]), float(mixed[1]), float(mixed[2])
