"""The tables beyond the results: embeddings, theory, reach of the pull, Table 1, what was run and how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..counts import GROUPS, ClassCounts
from ..runs.read import Run, Skipped, as_number, circumstances, data_identity, dig
from . import paper, tradeoff
from .grouping import DataSet, Group, Stat, knob_text, slug
from .tables import Cell, Table


def optional(data: DataSet) -> list[Table]:
    """The tables which only some runs allow, without those that these do not."""
    made = (
        by_seed(data), adjusted(data), tradeoff.table(data), embeddings(data), alive(data), size(data), theory(data),
    )  # fmt: skip
    return [table for table in made if table is not None]


def by_seed(data: DataSet) -> Table | None:
    """Accuracy and what is left of the training loss, seed by seed; None where no configuration has two."""
    rows: list[list[Cell]] = []
    for group in data.groups:
        if len(group.runs) > 1:
            runs = sorted(group.runs, key=lambda run: run.seed or 0)
            losses = [as_number(dig(run.metrics[-1], "parts", "logit")) if run.metrics else None for run in runs]
            rows.append(
                [
                    group.label,
                    ", ".join(str(run.seed) for run in runs),
                    ", ".join(f"{100 * run.test['balanced']:.2f}" for run in runs),
                    ", ".join("–" if loss is None else f"{loss:.3f}" for loss in losses),
                ]
            )
    if not rows:
        return None
    columns = ["Method", "Seeds", "Balanced accuracy", "Logit loss of the last epoch"]
    note = (
        "Test accuracy in per cent; the loss is a mean over the last epoch's training batches, to be compared within a "
        "row. Where it differs between seeds, one has trained less far than the other in the same number of epochs."
    )
    return Table(f"seeds-{slug(data.title)}", "Seed by seed", columns, rows, note)


def adjusted(data: DataSet) -> Table | None:
    """Accuracies after the logits were adjusted with a τ chosen on validation data; None where no run has them."""
    rows: list[list[Cell]] = []
    for group in data.groups:
        paths = [("balanced",), *(("groups", g, "accuracy") for g in GROUPS)]
        stats = [group.stat(lambda run, path=path: run.number("adjusted", *path)) for path in paths]  # type: ignore[misc]
        if stats[0] is not None:
            taus = ", ".join(knob_text(run.get("adjusted", "tau")) for run in group.runs)
            rows.append([group.label, taus, group.balanced, *stats])
    if not rows:
        return None
    columns = ["Method", "τ by seed", "As trained", "Adjusted", "Head", "Torso", "Tail"]
    note = (
        "Logits less τ·log π, with the τ between -2 and 2 that is best on validation data (0 is the model as trained): "
        "how methods compare once head and tail are traded against one another alike. In per cent."
    )
    return Table(f"adjusted-{slug(data.title)}", "After adjusting the logits", columns, rows, note)


def embeddings(data: DataSet) -> Table | None:
    """Diagnostics of logits and embeddings, mean over seeds; None where no run has any."""
    paths: dict[str, tuple[str, ...]] = {
        "k-NN accuracy": ("knn", "balanced"),
        "Nearest-class-mean accuracy": ("ncm", "balanced"),
    }
    numbers: dict[str, tuple[str, ...]] = {
        "d_max, train": ("dmax", "mean"),
        **{f"d_max, {g}": ("dmax", "mean_by_group", g) for g in GROUPS if data.sizes[g]},
        **{
            f"Variance, tail, {split}": ("class_variance", "by_group", split, "tail")
            for split in ("train", "test")
            if data.sizes["tail"]
        },
        "Intra/inter, train": ("intra_inter", "train"),
        "Intra/inter, test": ("intra_inter", "test"),
        "NC1": ("neural_collapse", "nc1"),
    }
    rows: list[list[Cell]] = []
    for group in data.groups:
        row: list[Cell] = [group.label]
        row += [_stat(group, "diagnostics", *path) for path in paths.values()]
        row += [_plain(group, "diagnostics", *path) for path in numbers.values()]
        row += [_mean_of_list(group, "margin_variance", split) for split in ("train", "test")]
        rows.append(row)
    if all(cell is None for row in rows for cell in row[1:]):
        return None
    columns = ["Method", *paths, *numbers, "Margin variance, train", "Margin variance, test"]
    known = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    columns, rows = [columns[i] for i in known], [[row[i] for i in known] for row in rows]
    note = (
        "k-NN and nearest-class-mean: balanced test accuracy in per cent. d_max: mean largest distance to a training "
        "sample of the same class, over the largest norm. Variance: mean squared distance to the class mean, mean over "
        "the tail's classes. Margin variance: mean over classes. NC1: within-class over between-class scatter of "
        "training embeddings (0 is full collapse)."
    )
    return Table(f"embeddings-{slug(data.title)}", "Embeddings and margins", columns, rows, note)


def _stat(group: Group, *path: str) -> Stat | None:
    return group.stat(lambda run: run.number(*path))


def _plain(group: Group, *path: str) -> float | None:
    stat = _stat(group, *path)
    return None if stat is None else stat.mean


def _mean_of_list(group: Group, name: str, split: str) -> float | None:
    def mean(run: Run) -> float | None:
        values = run.get("diagnostics", name, split)
        known = [v for x in values if (v := as_number(x)) is not None] if isinstance(values, list) else []
        return sum(known) / len(known) if known else None

    stat = group.stat(mean)
    return None if stat is None else stat.mean


def theory(data: DataSet) -> Table | None:
    """Both sides of Proposition 1, in how many classes it held and how much room was left; None without any."""
    rows: list[list[Cell]] = []
    for group in data.groups:
        for run in group.runs:
            found = run.get("theory", "proposition1")
            lower, pull = dig(found, "lower"), dig(found, "pull")
            if not isinstance(lower, list) or not isinstance(pull, list) or not lower:
                continue
            sides = [(as_number(a), as_number(b)) for a, b in zip(lower, pull)]
            gap = min((b - a for a, b in sides if a is not None and b is not None), default=None)
            held = f"{dig(found, 'holds')} of {dig(found, 'of')}"
            alpha = dig(found, "alpha")
            rows.append([group.label, run.seed, held, _mean(lower), _mean(pull), gap, str(alpha or "–")])
    if not rows:
        return None
    columns = ["Method", "Seed", "Holds in classes", "Mean lower side", "Mean pull Ω̄", "Smallest gap", "α"]
    note = (
        "Proposition 1: 2|S|/(|S|−1)·Σ_j V̂[Φ_j|y] − α_y + log(|S|−1) ≤ Ω̄_pull(y), over classes with two or more "
        "training samples; it is a theorem, so that every class must hold. Proposition 2's bound is for an f fixed "
        "before the sample is drawn: on a trained network it is indicative only, and not part of this table."
    )
    return Table(f"theory-{slug(data.title)}", "Theory check: Proposition 1", columns, rows, note)


def _mean(values: Sequence[Any]) -> float | None:
    known = [v for x in values if (v := as_number(x)) is not None]
    return sum(known) / len(known) if known else None


def alive(data: DataSet) -> Table | None:
    """How often an anchor had a positive, by group: mean over epochs and seeds; None where no run has a pull."""
    rows: list[list[Cell]] = []
    for group in data.groups:
        row: list[Cell] = [group.label]
        for part in ("all", *GROUPS):
            if part != "all" and not data.sizes[part]:
                row.append("no classes")
            else:
                row.append(Stat.of([_mean([dig(m, "alive", part) for m in run.metrics]) for run in group.runs]))
        if any(isinstance(cell, Stat) for cell in row):
            rows.append(row)
    if not rows:
        return None
    note = (
        "Share of anchors (per cent, mean over epochs) with at least one positive to be pulled to. Where it is small "
        "the embedding term is hardly felt, whatever its weight."
    )
    columns = ["Method", "All", "Head", "Torso", "Tail"]
    return Table(f"alive-{slug(data.title)}", "Anchors with a positive", columns, rows, note)


def size(data: DataSet) -> Table | None:
    """What the embedding term adds to the logit loss when it is first and last felt; None where no run has one."""
    rows: list[list[Cell]] = []
    for group in data.groups:
        sizes = [found for run in group.runs if (found := _sizes(run)) is not None]
        if len(sizes) == len(group.runs):  # a mean over other seeds than the row's would mislead
            rows.append([group.label, *(sum(values) / len(values) for values in zip(*sizes))])
    if not rows:
        return None
    what = ("logit loss", "embedding loss × weight", "share of the whole in %")
    columns = ["Method", *(f"{when} epoch: {name}" for when in ("First", "Last") for name in what)]
    note = "Means over an epoch's training batches; of a method of several stages, the epochs that have both losses."
    return Table(f"size-{slug(data.title)}", "Size of the embedding term", columns, rows, note)


def _sizes(run: Run) -> list[float] | None:
    """Logit loss, all else that was added to it, and the share of that, in the first and last epoch with both."""
    found = []
    for row in run.metrics:
        whole, logit, parts = as_number(dig(row, "loss")), as_number(dig(row, "parts", "logit")), dig(row, "parts")
        if whole is not None and logit is not None and isinstance(parts, dict) and len(parts) > 1:
            rest = whole - logit
            found.append([logit, rest, 100 * rest / whole if whole else 0.0])
    return [*found[0], *found[-1]] if found else None


def table1() -> Table:
    """Table 1: the printed ticks, and those computed from the plans of our methods."""
    from .. import methods

    counts = ClassCounts([500, 50, 5])  # any long tail: what a method does, not what a data set is

    shown = {True: "✓", False: "×", None: "—"}
    rows: list[list[Cell]] = []
    for approach in paper.TABLE1:
        rows.append([approach.title, "the paper", *(shown[tick] for tick in approach.ticks), ""])
        for name in approach.methods:
            if name not in methods.names():
                continue
            traits = methods.build(name, counts).traits()
            ticks = tuple(traits[key] for key in paper.TRAITS)
            agrees = "agrees" if ticks == approach.ticks else "differs"
            rows.append(["", name, *(shown[tick] for tick in ticks), agrees])
    columns = ["Approach", "Source", *paper.TRAITS.values(), "With the paper"]
    note = "Rows of our methods are computed from their plans, not typed. “—” is “not applicable”, as in the paper."
    return Table("table1", "Table 1: margins in logits and in embeddings", columns, rows, note)


def confusions(data: DataSet, most: int = 5) -> Table | None:
    """What each configuration takes for what most often; None where no run kept it."""
    names, groups = data.first.class_names, data.class_group
    rows: list[list[Cell]] = []
    for group in data.groups:
        mistakes: Counter[tuple[int, int]] = Counter()
        for run in group.runs:
            for label, predicted, n in _mistakes(run):
                mistakes[label, predicted] += n
        for (label, predicted), n in sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))[:most]:
            tested = dig(group.first.test, "per_class_n")
            size = tested[label] if isinstance(tested, list) and len(tested) == len(names) else None
            row: list[Cell] = [group.label, names[label], groups[label], names[predicted], groups[predicted]]
            rows.append([*row, n / len(group.runs), size])
    if not rows:
        return None
    columns = ["Method", "Class", "Group", "Taken for", "Its group", "Test samples", "Of"]
    note = f"The {most} commonest mistakes of each configuration; test samples are a mean over seeds."
    return Table(f"confusions-{slug(data.title)}", "Commonest mistakes", columns, rows, note)


def _mistakes(run: Run) -> Iterator[tuple[int, int, int]]:
    """(label, predicted, samples) as the summary has them, without what is not that."""
    top, classes = run.get("test", "confusion", "top"), run.counts.num_classes
    for row in top if isinstance(top, list) else ():
        if isinstance(row, list) and len(row) == 3 and all(type(v) is int and v >= 0 for v in row):
            label, predicted, n = row
            if label < classes and predicted < classes:
                yield label, predicted, n


def inventory(sets: Sequence[DataSet], skipped: Sequence[Skipped]) -> Table:
    """Every run, and every folder that was left out with the reason."""
    rows: list[list[Cell]] = []
    for data in sets:
        for group in data.groups:
            for run in group.runs:
                device = run.environment.get("device")
                resumed = run.environment.get("resumed")
                remarks = [*run.missing, *([f"resumed {resumed} time(s)"] if resumed else [])]
                rows.append(
                    [
                        data.title, group.label, run.seed, run.model, run.epochs, run.precision, str(device or "–"),
                        len(run.class_names), run.counts.total, _size(run), "; ".join(remarks) or "read", str(run.path),
                    ]
                )  # fmt: skip
    rows += [["–", "–", None, "", None, "", "", None, None, None, f"skipped: {s.reason}", str(s.path)] for s in skipped]
    columns = ["Data", "Method", "Seed", "Model", "Epochs", "Precision", "Device"]
    columns += ["Classes", "Training samples", "Test samples", "State", "Folder"]
    return Table("runs", "What was run", columns, rows)


def _size(run: Run) -> int | None:
    size = run.number("test", "n")
    return None if size is None else int(size)


def not_run(sets: Sequence[DataSet]) -> Table:
    """The methods of the paper's Table 2 by data set: how many seeds of each were run, or that none was."""
    rows: list[list[Cell]] = []
    for row in paper.TABLE2:
        cells: list[Cell] = [row.title]
        for name in paper.DATASETS:
            same = [d for d in sets if d.name == name and paper.same_data(name, d.counts.n.tolist())]
            seeds: dict[int, int] = {}  # by length: one seed at two lengths is not two seeds
            for group in (g for d in same for g in d.groups if g.method == row.method and not g.changed):
                epochs = group.first.epochs or 0
                seeds[epochs] = max(seeds.get(epochs, 0), len(group.runs))
            said = [
                f"{n} seed{'' if n == 1 else 's'}" + (f" ({epochs} epochs)" if len(seeds) > 1 else "")
                for epochs, n in sorted(seeds.items(), reverse=True)
            ]
            cells.append(", ".join(said) or "not run")
        rows.append(cells)
    title = "The paper's comparison: what was run and what was not"
    return Table("coverage", title, ["Method", *paper.DATASETS.values()], rows)


def lengths(sets: Sequence[DataSet]) -> list[Table]:
    """What longer training brings: a table for each data set whose methods were compared at several lengths."""
    by_data: dict[str, list[DataSet]] = {}
    for data in sets:
        by_data.setdefault(json.dumps(data_identity(data.first), sort_keys=True), []).append(data)
    return [table for same in by_data.values() if (table := _lengths(same)) is not None]


def _lengths(sets: list[DataSet]) -> Table | None:
    scaled = ("epochs", "precision", "recipe warmup_epochs", "recipe milestones")
    rest = [{k: v for k, v in circumstances(d.alike[0].first).items() if k not in scaled} for d in sets]
    same = [data.alike for data, other in zip(sets, rest) if other == rest[0]]
    found = sorted(same, key=lambda groups: groups[0].first.epochs or 0)
    by_name = [{group.name: group.balanced for group in groups} for groups in found]
    names = [g.name for g in found[-1] if any(g.name in earlier for earlier in by_name[:-1])]
    if not names:
        return None
    runs = [groups[0].first for groups in found]
    columns = ["Method", *(f"{run.epochs} epochs, {run.precision}" for run in runs)]
    rows: list[list[Cell]] = [[name, *(balanced.get(name, "not run") for balanced in by_name)] for name in names]
    note = (
        "Balanced test accuracy in per cent; ± is the standard deviation over seeds, if there are several. The recipe "
        "is the same, warm-up and milestones in proportion; a different precision comes on top of the length."
    )
    title = sets[0].title
    return Table(f"lengths-{slug(title)}", f"{title} by length of training", columns, rows, note)


def reproduce(sets: Sequence[DataSet]) -> Table:
    """The command that makes each run again."""
    rows: list[list[Cell]] = []
    for data in sets:
        for group in data.groups:
            for run in group.runs:
                git = run.environment.get("git")
                rows.append([data.title, group.label, run.seed, command(run), str(git or "–"), _versions(run)])
    columns = ["Data", "Method", "Seed", "Command", "Commit", "Versions"]
    note = (
        "As given when the run was made, or from its configuration where that is not known; each run's config.json "
        "holds every setting, also those left at their default."
    )
    return Table("reproduce", "How to reproduce each run", columns, rows, note)


def _versions(run: Run) -> str:
    pairs = [(k, run.environment.get(k)) for k in ("longtail", "torch", "python")]
    return ", ".join(f"{k} {v}" for k, v in pairs if v) or "–"


def command(run: Run) -> str:
    """The command that was given, where it was one of ours; else ``longtail train …`` from the configuration."""
    given = run.environment.get("command")
    if isinstance(given, list) and given[:1] == ["longtail"] and given[1:2] in (["train"], ["compare"], ["sweep"]):
        return shlex.join(map(str, given))
    words = ["longtail", "train", run.method, "--data", run.data]
    words += ["--seed", str(run.seed)] if run.seed is not None else []
    words += ["--epochs", str(run.epochs)] if run.epochs is not None else []
    words += ["--recipe", str(run.recipe["name"])] if run.recipe.get("name") else []
    words += ["--model", run.model] if run.model else []
    for option, field in (("--batch-size", "batch_size"), ("--lr", "lr"), ("--clip", "clip"), ("--ema", "ema")):
        if (number := as_number(run.recipe.get(field))) is not None:
            words += [option, knob_text(number)]
    for name, value in run.given_knobs.items():
        words += ["--set", f"{name}={knob_text(value)}"]
    for name, value in run.options.items():
        words += ["--option", f"{name}={knob_text(value)}"]
    words += ["--precision", run.precision] if run.precision else []
    return shlex.join(words)
