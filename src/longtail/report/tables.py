"""Tables that come out as Markdown, CSV and HTML, and the tables of results made from groups of runs."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..counts import GROUPS
from ..runs.read import as_number
from . import paper
from .grouping import DataSet, Group, Stat, slug

NOTHING = "–"
_SIGNED = re.compile(r"[+-]\d+\.\d+")


@dataclass(frozen=True)
class Percent:
    """A fraction shown in per cent with two digits."""

    value: float


Cell = str | int | float | Percent | Stat | paper.Number | None


def text(cell: Cell) -> str:
    """A cell as people read it.

    >>> text(Percent(0.4577)), text(Stat(0.4577, 0.003, 3)), text(None), text(0.01234567)
    ('45.77', '45.77 ± 0.30', '–', '0.01235')
    """
    if cell is None:
        return NOTHING
    if isinstance(cell, Percent):
        return f"{100 * cell.value:.2f}"
    if isinstance(cell, Stat):
        return cell.percent()
    if isinstance(cell, paper.Number):
        return cell.text
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


def raw(cell: Cell) -> str | float | int:
    """A cell as a spreadsheet wants it: accuracies in per cent, as numbers."""
    if cell is None:
        return ""
    if isinstance(cell, Percent):
        return round(100 * cell.value, 4)
    if isinstance(cell, Stat):
        return round(100 * cell.mean, 4)
    if isinstance(cell, paper.Number):
        return cell.value
    return cell


@dataclass(frozen=True)
class Table:
    """Columns and rows, with a note that is printed below; ``slug`` names its files."""

    slug: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    sortable: bool = False

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"{self.slug}: a row does not fit the columns"

    def markdown(self) -> str:
        cells = [[text(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in [self.columns, ["---"] * len(self.columns), *cells]]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def plain(self) -> str:
        """Aligned columns for a terminal."""
        rows = [self.columns, *([text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Means and deviations are separate columns; accuracies are in per cent."""
        deviates = [any(isinstance(row[i], Stat) for row in self.rows) for i in range(len(self.columns))]
        marked = [any(isinstance(row[i], paper.Number) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header: list[str] = []
        for name, deviating, marking in zip(self.columns, deviates, marked):
            header += [name] + [f"{name} std"] * deviating + [f"{name} mark"] * marking
        writer.writerow(header)
        for row in self.rows:
            line: list[Any] = []
            for cell, deviating, marking in zip(row, deviates, marked):
                std = cell.std if isinstance(cell, Stat) else None
                line += [raw(cell)] + [round(100 * std, 4) if std is not None else ""] * deviating
                line += [cell.mark if isinstance(cell, paper.Number) else ""] * marking
            writer.writerow(line)
        return out.getvalue()

    def html(self) -> str:
        """A ``<table>``; a sortable one has buttons in its head and raw values for the script to sort by."""
        kinds = [[_kind(column, cell) for column, cell in zip(self.columns, row)] for row in self.rows]
        head = []
        for i, column in enumerate(self.columns):
            name = html.escape(column)
            found = {row[i] for row in kinds}
            look = ' class="num"' if "num" in found and found <= {"num", "muted"} else ""
            button = f'<button type="button">{name}</button>' if self.sortable else name
            head.append(f'<th scope="col"{look}{" aria-sort=none" if self.sortable else ""}>{button}</th>')
        body = []
        for row, row_kinds in zip(self.rows, kinds):
            cells = []
            for cell, kind in zip(row, row_kinds):
                look = f' class="{kind}"' if kind else ""
                value = f' data-v="{html.escape(str(raw(cell)), quote=True)}"' if self.sortable else ""
                cells.append(f"<td{look}{value}>{html.escape(text(cell))}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        kind = ' class="sortable"' if self.sortable else ""
        box = "scroll tall" if self.sortable else "scroll"
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<div class="{box}"><table id="{self.slug}"{kind}><thead><tr>{"".join(head)}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>{note}"
        )


def _kind(column: str, cell: Cell) -> str:
    """How a cell is set: the class that the page's style sheet knows."""
    if not isinstance(cell, str) or _SIGNED.fullmatch(cell):
        return "num"
    if column == "Verdict":
        return next((word for word in ("confirmed", "contradicted") if cell.startswith(word)), "muted")
    if column == "Command":
        return "code"
    return "muted" if cell in ("not run", "no classes") else ""


def results(data: DataSet) -> Table:
    """Ours beside the paper's: one row a configuration, the paper's rows that were not run included."""
    comparable = paper.same_data(data.name, data.counts.n.tolist())
    rows: list[list[Cell]] = []
    run_plain = {group.method for group in data.groups if not group.changed}
    pending = [row for row in paper.TABLE2 if comparable and row.method not in run_plain]
    for group in data.groups:
        published = paper.number(group.method, data.name) if comparable and not group.changed else None
        difference = 100 * group.balanced.mean - published.value if published else None
        accuracies: list[Cell] = [group.accuracy(g) if data.sizes[g] else "no classes" for g in GROUPS]
        rows.append(
            [
                group.label,
                group.balanced,
                *accuracies,
                len(group.runs),
                group.first.epochs,
                published,
                None if difference is None else f"{difference:+.2f}",
            ]
        )
    rows += [[row.title, *["not run"] * 4, 0, None, row.numbers[data.name], None] for row in pending]
    columns = ["Method", "Balanced accuracy", "Head", "Torso", "Tail", "Seeds", "Epochs", "Paper", "Ours − paper"]
    return Table(
        f"results-{slug(data.title)}", f"Results on {data.title}", columns, rows, _results_note(data, comparable)
    )


def _results_note(data: DataSet, comparable: bool) -> str:
    parts = [
        "Test accuracy in per cent, mean over classes; ± is the standard deviation over seeds, if there are several."
    ]
    parts += _later_stages(data) + _resumed(data)
    if comparable:
        marks = {row.numbers[data.name].mark for row in paper.TABLE2}
        parts.append(f"Paper: mean over {paper.TRIALS} trials; “multi-stage” rows are the faded ones of its Table 2.")
        parts += [f"{mark} the paper quotes {source}." for mark, source in paper.MARKS.items() if mark in marks]
        parts += deviations(data)
    elif data.name in paper.DATASETS:
        parts.append("The paper's numbers are not shown: these training counts are not those of its data set.")
    else:
        parts.append("The paper has no numbers for this data set.")
    return " ".join(parts)


def _later_stages(data: DataSet) -> list[str]:
    """Epochs are those that were asked for, which is the first stage: what methods of several stages trained in all."""
    longer: dict[int, list[str]] = {}
    for group in data.groups:
        run = group.first
        trained = max((int(e) for row in run.metrics if (e := as_number(row.get("epoch"))) is not None), default=0)
        if run.epochs is not None and trained > run.epochs:
            longer.setdefault(trained, []).append(group.label)
    if not longer:
        return []
    totals = "; ".join(f"{', '.join(labels)}: {trained}" for trained, labels in sorted(longer.items()))
    return [f"Epochs are those of the first stage; with the later ones trained in all: {totals}."]


def _resumed(data: DataSet) -> list[str]:
    """Which runs were interrupted: they went on from a checkpoint to the same bits, and a reader may want to know."""
    broken = [
        f"{group.label}{'' if run.seed is None else f' (seed {run.seed})'}"
        for group in data.groups
        for run in group.runs
        if as_number(run.environment.get("resumed"))
    ]
    return [f"Interrupted and resumed from a checkpoint, not restarted: {', '.join(broken)}."] if broken else []


def deviations(data: DataSet) -> list[str]:
    """How the runs depart from the paper's Table 3: a sentence for each set of configurations that do so alike."""
    printed = paper.TABLE3[data.name]
    found: dict[str, list[str]] = {}
    for group in data.groups:
        recipe, run = group.first.recipe, group.first
        scale = (run.epochs or printed.epochs) / printed.epochs
        pairs: dict[str, tuple[Any, Any]] = {
            "epochs": (run.epochs, printed.epochs),
            "model": (run.model or None, printed.model),
            "batch size": (recipe.get("batch_size"), printed.batch_size),
            "learning rate": (recipe.get("lr"), printed.lr),
            "weight decay": (recipe.get("weight_decay"), printed.weight_decay),
            "schedule": (recipe.get("schedule"), "step" if printed.milestones else "cosine"),
            # warm-up and milestones in proportion to the epochs are the paper's, at another length
            "epochs of warm-up": (recipe.get("warmup_epochs"), (printed.warmup or 0) * scale),
            "milestones": (recipe.get("milestones"), [m * scale for m in printed.milestones]),
            "augmentation": (None if recipe.get("augment") == "auto" else recipe.get("augment"), "crop and flip"),
            "average of weights": (recipe.get("ema"), "none"),
        }
        for what, (ours, theirs) in pairs.items():
            if ours is not None and not _same(ours, theirs):
                found.setdefault(f"{what} {ours} (paper: {theirs})", []).append(group.label)
    alike: dict[tuple[str, ...], list[str]] = {}  # what the same configurations do otherwise, in one sentence
    for what, labels in found.items():
        alike.setdefault(tuple(labels), []).append(what)
    everyone = len(data.groups)
    return [
        f"Not the paper's recipe{'' if len(labels) == everyone else ' for ' + ', '.join(labels)}: {', '.join(whats)}."
        for labels, whats in alike.items()
    ]


def _same(ours: Any, theirs: Any) -> bool:
    """Equal up to the rounding of lengths that were scaled."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    a, b = as_number(ours), as_number(theirs)
    return ours == theirs if a is None or b is None else math.isclose(a, b, rel_tol=1e-6)


def breakdown(data: DataSet) -> Table:
    """Everything about accuracy beyond the mean: worst class, geometric and harmonic mean, calibration."""
    columns = ["Method", "Balanced"]
    columns += [
        f"{g.capitalize()} ({n} classes)" if n != 1 else f"{g.capitalize()} (1 class)" for g, n in data.sizes.items()
    ]
    columns += ["Worst class", "Geometric mean", "Harmonic mean", "ECE", "Plain accuracy"]
    columns.append("95 % interval, first seed" if any(len(g.runs) > 1 for g in data.groups) else "95 % interval")
    rows: list[list[Cell]] = []
    for group in data.groups:
        row: list[Cell] = [group.label, group.balanced]
        row += [group.accuracy(g) if data.sizes[g] else "no classes" for g in GROUPS]
        paths = [("worst_class", "accuracy"), ("geometric_mean",), ("harmonic_mean",), ("ece",), ("accuracy",)]
        row += [group.stat(lambda run, path=path: run.number("test", *path)) for path in paths]  # type: ignore[misc]
        row.append(_interval(group))
        rows.append(row)
    note = "In per cent. ECE: expected calibration error. The interval is over test samples (bootstrap)."
    return Table(
        f"groups-{slug(data.title)}", "Breakdown by head, torso and tail", columns, rows, f"{note} {noise(data)}"
    )


def _interval(group: Group) -> str | None:
    interval = group.first.interval
    return None if interval is None else f"{100 * interval[0]:.2f} … {100 * interval[1]:.2f}"


def noise(data: DataSet) -> str:
    """What difference between two models this test set cannot tell from chance."""
    widths = [(run.interval[1] - run.interval[0]) / 2 for run in data.runs if run.interval is not None]
    size = data.first.number("test", "n")
    if not widths or size is None:
        return ""
    half = 100 * sum(widths) / len(widths)
    known = f"With {int(size):,} test samples one model's balanced accuracy is known to ±{half:.2f} points (95 %)"
    if len(data.runs) == 1:
        return f"{known}."
    return (
        f"{known}: a difference below about {half * 2**0.5:.2f} points between two single runs is noise, unless the "
        f"paired comparison in the table of claims says otherwise.{_luck(data)}"
    )


def _luck(data: DataSet) -> str:
    """How far seeds of one configuration lie apart, pooled over those with several; nothing where there are none."""
    stats = [group.balanced for group in data.groups]
    found = Stat.pooled(stats)
    if found is None:
        return ""
    several = sum(s.n > 1 for s in stats)
    return (
        f" Seeds of one configuration differ with a standard deviation of {100 * found[0]:.2f} points (pooled over "
        f"{several} configuration{'s' if several > 1 else ''}): this comes on top; the intervals of the claims have it."
    )


def per_class(data: DataSet) -> Table:
    """One row a class, sortable: training samples, group, accuracy of every configuration (mean over seeds)."""
    names, groups = data.first.class_names, data.class_group
    rows: list[list[Cell]] = []
    for c in range(data.counts.num_classes):
        row: list[Cell] = [c, names[c], int(data.counts.n[c]), groups[c]]
        for group in data.groups:
            stat = Stat.of([as_number(run.test["per_class"][c]) for run in group.runs])
            row.append(None if stat is None else Percent(stat.mean))
        rows.append(row)
    columns = ["Label", "Class", "Training samples", "Group", *(group.label for group in data.groups)]
    note = "Test accuracy in per cent, mean over seeds. Click a heading to sort by it, again to reverse."
    return Table(f"per-class-{slug(data.title)}", "Every class", columns, rows, note, sortable=True)


def write(tables: Iterable[Table], folder: Any) -> None:
    """Every table as ``slug.md`` and ``slug.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        (folder / f"{table.slug}.md").write_text(f"# {table.title}\n\n{table.markdown()}", encoding="utf-8")
        (folder / f"{table.slug}.csv").write_text(table.csv(), encoding="utf-8")
