"""What all figures share: settings, panels, legends, and how a method looks.

A method has the same colour in every figure; variants of it differ by line, marker and hatching.

The colours are those of Okabe and Ito, which stay apart under the common forms of colour blindness; line styles,
markers and hatching say the same again for print in grey.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
GROUP_COLOURS = {"head": "#0072b2", "torso": "#009e73", "tail": "#d55e00"}
GROUP_MARKERS = {"head": "o", "torso": "s", "tail": "^"}


@dataclass(frozen=True)
class Style:
    color: str
    line: Any
    marker: str
    hatch: str

    def plot(self, ax: Axes, x: np.ndarray, y: np.ndarray, **more: Any) -> None:
        ax.plot(x, y, color=self.color, linestyle=self.line, **more)


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


def make_panels(
    count: int, *, height: float, width: float | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels, at most three in a row."""
    count = max(count, 1)
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width or max(3.3 * columns, 4.2), height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
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


def finish(figure: Figure, axes: Sequence[Axes], title: str, ylabel: str, labels: Sequence[str]) -> Figure:
    """A figure of several panels with its title, the name of the first panel's axis, and a legend of the labels."""
    axes[0].set_ylabel(ylabel)
    figure.suptitle(title, fontsize=10)
    if labels:
        add_legend(figure, axes[0], labels)
    return figure


def name_panel(ax: Axes, title: str) -> None:
    """A title in as many lines as it needs: a long one would run into the next panel or off the page."""
    ax.set_title(textwrap.fill(title, 40))


def shaded(colour: str, index: int, count: int) -> tuple[float, float, float]:
    """The colour itself, or mixed with white or black so that classes of one group can be told apart."""
    rgb = np.asarray(mpl.colors.to_rgb(colour))
    place = 0.0 if count == 1 else 2 * index / (count - 1) - 1
    mixed = rgb + (1 - rgb) * 0.6 * place if place > 0 else rgb * (1 + 0.55 * place)
    return float(mixed[0]), float(mixed[1]), float(mixed[2])
