"""The tables of a whole report: what was run, how to repeat it, at which lengths, and the paper's two overviews."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..counts import ClassCounts
from ..margins import short as knob_text
from ..runs.read import Run, Skipped, circumstances, data_identity
from . import paper
from .document import Cell, Cells, Table
from .grouping import DataSet, gather


def tables(sets: Sequence[DataSet], skipped: Sequence[Skipped], of_the_paper: bool) -> list[Table]:
    """All of them; the paper's overviews where the runs have to do with the paper."""
    made = [runs(sets, skipped), reproduce(sets), *lengths(sets)]
    return [*made, table1(), coverage(sets)] if of_the_paper else made


def _every_run(sets: Sequence[DataSet]) -> list[tuple[Cells, Run]]:
    """Each run, and the cells that say which it is."""
    return [
        ({"Data": data.title, "Method": group.label, "Seed": run.seed}, run)
        for data in sets for group in data.groups for run in group.runs
    ]  # fmt: skip


def runs(sets: Sequence[DataSet], skipped: Sequence[Skipped]) -> Table:
    """Every run, and every folder that was left out with the reason."""

    def row(which: Cells, run: Run) -> Cells:
        resumed = run.environment.resumed
        return {
            **which,
            "Model": run.network,
            "Epochs": run.epochs,
            "Precision": run.precision,
            "Device": run.environment.device or "–",
            "Classes": run.counts.num_classes,
            "Training samples": run.counts.total,
            "Test samples": run.summary.test.n,
            "State": "; ".join([*run.missing, *([f"resumed {resumed} time(s)"] if resumed else [])]) or "read",
            "Folder": str(run.path),
        }

    table = Table.of("runs", "What was run", [row(*each) for each in _every_run(sets)])
    nothing: list[Cell] = ["–", "–", None, "", None, "", "", None, None, None]
    table.rows.extend([*nothing, f"skipped: {s.reason}", str(s.path)] for s in skipped)
    return table


def reproduce(sets: Sequence[DataSet]) -> Table:
    """The command that makes each run again."""

    def row(which: Cells, run: Run) -> Cells:
        found = run.environment
        pairs = (("longtail", found.longtail), ("torch", found.torch), ("python", found.python))
        versions = ", ".join(f"{name} {version}" for name, version in pairs if version)
        return {**which, "Command": command(run), "Commit": found.git or "–", "Versions": versions or "–"}

    note = (
        "As given when the run was made, or from its configuration where that is not known; each run's config.json "
        "holds every setting, also those left at their default."
    )
    return Table.of("reproduce", "How to reproduce each run", [row(*each) for each in _every_run(sets)], note)


def command(run: Run) -> str:
    """The command that was given, where it was one of ours; else ``longtail train …`` from the configuration."""
    given = run.environment.command
    if given[:1] == ["longtail"] and given[1:2] in (["train"], ["compare"], ["sweep"]):
        return shlex.join(given)
    backbone, recipe = run.config.backbone, run.recipe
    options = {
        "--seed": run.seed,
        "--epochs": run.epochs,
        "--recipe": recipe.get("name") or None,
        "--model": run.model or None,
        "--backbone": backbone and backbone.name,
        "--train": backbone and backbone.train,
        **{f"--{name.replace('_', '-')}": recipe.get(name) for name in ("batch_size", "lr", "clip", "ema")},
    }
    words = ["longtail", "train", run.method, "--data", run.data]
    words += [w for option, value in options.items() if value is not None for w in (option, knob_text(value))]
    words += [w for name, value in run.knobs.items() for w in ("--set", f"{name}={knob_text(value)}")]
    words += [w for name, value in run.options.items() for w in ("--option", f"{name}={knob_text(value)}")]
    return shlex.join([*words, "--precision", run.precision] if run.precision else words)


def lengths(sets: Sequence[DataSet]) -> list[Table]:
    """What longer training brings: a table for each data set whose methods were compared at several lengths."""
    return [table for same in gather(sets, lambda d: data_identity(d.first)) if (table := _lengths(same)) is not None]


def _lengths(sets: list[DataSet]) -> Table | None:
    scaled = ("epochs", "precision", "recipe warmup_epochs", "recipe milestones")
    rest = [{k: v for k, v in circumstances(d.comparable[0].first).items() if k not in scaled} for d in sets]
    same = [data.comparable for data, other in zip(sets, rest) if other == rest[0]]
    found = sorted(same, key=lambda groups: groups[0].first.epochs or 0)
    by_name = [{group.name: group.balanced for group in groups} for groups in found]
    names = [g.name for g in found[-1] if any(g.name in earlier for earlier in by_name[:-1])]
    if not names:
        return None
    first = [groups[0].first for groups in found]
    columns = ["Method", *(f"{run.epochs} epochs, {run.precision}" for run in first)]
    rows: list[list[Cell]] = [[name, *(balanced.get(name, "not run") for balanced in by_name)] for name in names]
    note = (
        "Balanced test accuracy in per cent; ± is the standard deviation over seeds, if there are several. The recipe "
        "is the same, warm-up and milestones in proportion; a different precision comes on top of the length."
    )
    return Table(f"lengths-{sets[0].slug}", f"{sets[0].title} by length of training", columns, rows, note)


def table1() -> Table:
    """Table 1: the printed ticks, and those computed from the plans of our methods."""
    from .. import methods

    counts = ClassCounts([500, 50, 5])  # any long tail: what a method does, not what a data set is
    shown = {True: "✓", False: "×", None: "—"}
    rows: list[list[Cell]] = []
    for approach in paper.TABLE1:
        rows.append([approach.title, "the paper", *(shown[tick] for tick in approach.ticks), ""])
        for name in (name for name in approach.methods if name in methods.names()):
            traits = methods.build(name, counts).traits()
            ticks = tuple(traits[key] for key in paper.TRAITS)
            rows.append(["", name, *map(shown.get, ticks), "agrees" if ticks == approach.ticks else "differs"])
    columns = ["Approach", "Source", *paper.TRAITS.values(), "With the paper"]
    note = "Rows of our methods are computed from their plans, not typed. “—” is “not applicable”, as in the paper."
    return Table("table1", "Table 1: margins in logits and in embeddings", columns, rows, note)


def coverage(sets: Sequence[DataSet]) -> Table:
    """The methods of the paper's Table 2 by data set: how many seeds of each were run, or that none was."""

    def seeds(method: str, name: str) -> str:
        most: dict[int, int] = {}  # by length: one seed at two lengths is not two seeds
        for group in (g for d in sets if d.name == name and d.published for g in d.groups):
            if group.method == method and not group.changed:
                epochs = group.first.epochs or 0
                most[epochs] = max(most.get(epochs, 0), len(group.runs))
        said = [
            f"{n} seed{'' if n == 1 else 's'}" + (f" ({epochs} epochs)" if len(most) > 1 else "")
            for epochs, n in sorted(most.items(), reverse=True)
        ]
        return ", ".join(said) or "not run"

    rows: list[Cells] = [
        {"Method": row.title, **{title: seeds(row.method, name) for name, title in paper.DATASETS.items()}}
        for row in paper.TABLE2
    ]
    return Table.of("coverage", "The paper's comparison: what was run and what was not", rows)
