"""What one method adds to another as the data grow: amounts of one data set on which they were trained alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..counts import GROUPS
from ..runs.read import circumstances
from . import paper
from .comparison import accuracy_difference, pair
from .document import Cells, Picture, Section, Table
from .figures import ZERO, Style, finish, make_panels, styled
from .grouping import DataSet, Group, gather, slug
from .uncertainty import Difference, half_width, mean

PAIRS = (("elm", "logadj"), ("logadj", "ce"))
FEWEST = 3  # amounts that make a curve

Amount = tuple[DataSet, tuple[Group, Group], Difference]


def sections(sets: Sequence[DataSet], looks: dict[str, Style]) -> Iterator[Section]:
    """A figure and a table for each data set and pair of methods that were run in at least three amounts."""
    for same in gather(sets, lambda data: data.name):
        for methods in PAIRS:
            found = [
                (data, both, gain)
                for data in same
                if not isinstance(both := pair(data, *methods), str)
                and (gain := accuracy_difference(*both)) is not None
            ]
            for alike in gather(found, lambda amount: circumstances(amount[1][0].first)):
                alike.sort(key=lambda amount: amount[0].counts.total)
                if len({data.counts.total for data, _, _ in alike}) >= FEWEST:
                    yield _section(alike, looks)


def _section(amounts: Sequence[Amount], looks: dict[str, Style]) -> Section:
    first, both = amounts[0][0], amounts[0][1]
    data, name = paper.DATASETS.get(first.name, first.name), " − ".join(group.name for group in both)
    title, file = f"{name} by the amount of data, {data}", f"sizes-{slug(name)}-{slug(first.name)}"

    def row(amount: Amount) -> Cells:
        data, both, gain = amount
        means: Cells = {group.name: group.balanced for group in reversed(both)}
        classes = f"{int(data.counts.n.max())} to {int(data.counts.n.min())}"
        samples: Cells = {"Training samples": data.counts.total, "Of a class": classes}
        parts: Cells = {title: f"{100 * d.value:+.2f}" if d else None for title, d in _by_part(both).items()}
        return {**samples, **means, name: gain.points(), **parts, "Seeds": gain.seeds}

    note = (
        "Balanced test accuracy in per cent; the interval of a difference is 95 %, over test samples and, where there "
        "are several, seeds; that of the mean takes test samples for the same at every amount, seeds for "
        "others, and is over those amounts whose groups have classes."
    )
    caption = (
        f"{name} on {data} by the amount of training data, trained alike, in points of balanced test accuracy; "
        "whiskers are 95 % intervals over test samples and seeds, not known for a single seed; dots are seeds."
    )
    sizes, gains = [data.counts.total for data, _, _ in amounts], [gain for _, _, gain in amounts]
    make = partial(curve, sizes, gains, looks[both[0].label], f"{name} (points)", data)
    rows = [*map(row, amounts)]
    if (whole := mean(gains)) is not None:
        cells: Cells = {"Training samples": "mean", name: whole.points(), "Seeds": whole.seeds}
        by_amount = [_by_part(both) for _, both, _ in amounts]
        for title in by_amount[0]:
            of_part = mean([gain for parts in by_amount if (gain := parts[title]) is not None])
            cells[title] = replace(of_part, by_seed=()).text(100) if of_part else None
        rows.append(dict.fromkeys(rows[0]) | cells)
    table = Table.of(file, title, rows, note)
    return Section(f"section-{file}", title, [Picture(file, caption, make), table])


def _by_part(both: tuple[Group, Group]) -> dict[str, Difference | None]:
    return {f"in the {part}": accuracy_difference(*both, part) for part in GROUPS}


@styled
def curve(sizes: Sequence[int], gains: Sequence[Difference], look: Style, ylabel: str, title: str) -> Figure:
    """Differences with their intervals, and those of each seed, against the number of training samples."""
    figure, (ax,) = make_panels(1, width=5.6, height=3.4)
    values = [100 * gain.value for gain in gains]
    halves = [100 * half_width(gain.sources) if gain.seeds > 1 else 0.0 for gain in gains]
    ax.errorbar(sizes, values, yerr=halves, color=look.color, marker=look.marker, capsize=3, linewidth=1.5)
    for size, gain in zip(sizes, gains):
        ax.scatter([size] * len(gain.by_seed), [100 * seed for seed in gain.by_seed], s=10, color="#222222", zorder=3)
    ax.axhline(0, **ZERO)
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training samples (logarithmic)")
    return finish(figure, [ax], title, ylabel, [], above=6)
