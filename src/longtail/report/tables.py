"""The tables of one data set and of a whole report, made of rows: cells by title, each beside its number."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..counts import GROUPS
from ..margins import short as knob_text
from ..runs.read import Run, Skipped, circumstances, data_identity
from ..runs.schema import GroupAccuracy
from . import paper
from .comparison import at_head, reference_head
from .document import Cell, Cells, Table
from .grouping import DataSet, Group, differences, gather, numbered


def laboratory(data: DataSet, noise: str) -> list[Table]:
    """All that the runs allow, but for the results; ``noise`` is what they cannot tell from chance, in words."""
    made = [
        breakdown(data, noise), per_class(data), confusions(data), by_seed(data), adjusted(data), equal_head(data),
        embeddings(data), alive(data), embedding_term(data), theory(data),
    ]  # fmt: skip
    return [table for table in made if table is not None]


def table_of(data: DataSet, kind: str, title: str, rows: Iterable[Cells], note: str) -> Table | None:
    """A table of a data set; None without rows."""
    return Table.of(f"{kind}-{data.slug}", title, found, note) if (found := list(rows)) else None


def _by_part(data: DataSet, value: Callable[[str], Cell]) -> Cells:
    """A cell for each of head, torso and tail; a group without classes says so."""
    return {part.capitalize(): value(part) if data.sizes[part] else "no classes" for part in GROUPS}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def results(data: DataSet) -> Table:
    """Our accuracies next to the paper's: one row a configuration, the paper's rows that were not run included."""

    def row(group: Group) -> Cells:
        printed = paper.number(group.method, data.name) if not group.changed else None
        gap = None if printed is None else f"{100 * group.balanced.mean - printed.value:+.2f}"
        return {
            "Method": group.label,
            "Balanced accuracy": group.balanced,
            **_by_part(data, group.accuracy),
            "Seeds": len(group.runs),
            "Epochs": group.first.epochs,
            **({"Paper": printed, "Ours − paper": gap} if data.published else {}),
        }

    note = " ".join([*_results_note(data), *_paper_note(data)])
    table = Table.of(f"results-{data.slug}", f"Results on {data.title}", map(row, data.groups), note)
    if data.published:
        plain = {group.method for group in data.groups if not group.changed}
        not_run = [printed for printed in paper.TABLE2 if printed.method not in plain]
        table.rows.extend([r.title, *["not run"] * 4, 0, None, r.numbers[data.name], None] for r in not_run)
    return table


def _results_note(data: DataSet) -> Iterator[str]:
    yield "Test accuracy in per cent, mean over classes; ± is the standard deviation over seeds, if there are several."
    longer: dict[int, list[str]] = {}  # epochs are those asked for, which is the first stage
    for group in data.groups:
        trained = max((row.epoch for row in group.first.metrics if row.epoch is not None), default=0)
        if group.first.epochs is not None and trained > group.first.epochs:
            longer.setdefault(trained, []).append(group.label)
    if longer:
        totals = "; ".join(f"{', '.join(labels)}: {trained}" for trained, labels in sorted(longer.items()))
        yield f"Epochs are those of the first stage; with the later ones trained in all: {totals}."
    resumed = [(group, run) for group in data.groups for run in group.runs if run.environment.resumed]
    if resumed:
        names = [f"{group.label}{'' if run.seed is None else f' (seed {run.seed})'}" for group, run in resumed]
        yield f"Interrupted and resumed from a checkpoint, not restarted: {', '.join(names)}."


def _paper_note(data: DataSet) -> Iterator[str]:
    """Whence the paper's numbers are, and a sentence for each set of configurations that depart from its recipe."""
    if data.name not in paper.DATASETS:
        yield "The paper has no numbers for this data set."
        return
    if not data.published:
        yield "The paper's numbers are not shown: these training counts are not those of its data set."
        return
    marks = {row.numbers[data.name].mark for row in paper.TABLE2}
    yield f"Paper: mean over {paper.TRIALS} trials; “multi-stage” rows are the faded ones of its Table 2."
    yield from (f"{mark} the paper quotes {source}." for mark, source in paper.MARKS.items() if mark in marks)
    found: dict[str, list[str]] = {}
    for group in data.groups:
        run = group.first
        for what in paper.departures(data.name, run.model, run.epochs, run.recipe):
            found.setdefault(what, []).append(group.label)
    for whats in gather(found, found.__getitem__):
        labels = found[whats[0]]
        of_whom = "" if len(labels) == len(data.groups) else f" for {', '.join(labels)}"
        yield f"Not the paper's recipe{of_whom}: {', '.join(whats)}."


def breakdown(data: DataSet, noise: str) -> Table | None:
    """Everything about accuracy beyond the mean: worst class, geometric and harmonic mean, calibration."""
    several = any(len(group.runs) > 1 for group in data.groups)

    def measures(run: Run) -> dict[str, float | None]:
        test = run.summary.test
        return {
            "Worst class": test.worst_class.accuracy,
            "Geometric mean": test.geometric_mean,
            "Harmonic mean": test.harmonic_mean,
            "ECE": test.ece,
            "Plain accuracy": test.accuracy,
        }

    def row(group: Group) -> Cells:
        parts = zip(_by_part(data, group.accuracy).items(), data.sizes.values())
        ends = group.first.summary.test.balanced_ci
        interval = None if ends is None else f"{100 * ends[0]:.2f} … {100 * ends[1]:.2f}"
        return {
            "Method": group.label,
            "Balanced": group.balanced,
            **{f"{part} ({n} class{'' if n == 1 else 'es'})": cell for (part, cell), n in parts},
            **group.stats(measures),
            "95 % interval, first seed" if several else "95 % interval": interval,
        }

    note = f"In per cent. ECE: expected calibration error. The interval is over test samples (bootstrap). {noise}"
    return table_of(data, "groups", "Breakdown by head, torso and tail", map(row, data.groups), note)


def per_class(data: DataSet) -> Table:
    """One row a class: training samples, group, accuracy of every configuration (mean over seeds)."""
    names, sizes = data.first.class_names, data.first.split.counts
    columns = ["Label", "Class", "Training samples", "Group", *(group.label for group in data.groups)]
    rows: list[list[Cell]] = []
    for c in range(data.counts.num_classes):
        means = [group.class_accuracy(c) for group in data.groups]
        accuracies = [None if mean is None else paper.Number(100 * mean) for mean in means]
        rows.append([c, names[c], sizes[c], data.class_group[c], *accuracies])
    note = "Test accuracy in per cent, mean over seeds. Click a heading to sort by it, again to reverse."
    return Table(f"per-class-{data.slug}", "Every class", columns, rows, note)


def confusions(data: DataSet) -> Table | None:
    """What each configuration takes for what most often; None where no run kept it."""
    most, names, groups = 5, data.first.class_names, data.class_group
    rows: list[Cells] = []
    for group in data.groups:
        for (label, predicted), n in sorted(group.mistaken.items(), key=lambda item: (-item[1], item[0]))[:most]:
            rows.append({
                "Method": group.label, "Class": names[label], "Group": groups[label], "Taken for": names[predicted],
                "Its group": groups[predicted], "Test samples": n / len(group.runs), "Of": group.tested(label),
            })  # fmt: skip
    note = f"The {most} commonest mistakes of each configuration; test samples are a mean over seeds."
    return table_of(data, "confusions", "Commonest mistakes", rows, note)


def by_seed(data: DataSet) -> Table | None:
    """Accuracy and what is left of the training loss, seed by seed; None where no configuration has two."""

    def row(group: Group) -> Cells:
        losses = [run.metrics[-1].parts.get("logit") if run.metrics else None for run in group.runs]
        return {
            "Method": group.label,
            "Seeds": ", ".join(str(run.seed) for run in group.runs),
            "Balanced accuracy": ", ".join(f"{100 * run.balanced:.2f}" for run in group.runs),
            "Logit loss of the last epoch": ", ".join("–" if loss is None else f"{loss:.3f}" for loss in losses),
        }

    note = (
        "Test accuracy in per cent; the loss is a mean over the last epoch's training batches, to be compared within a "
        "row. Where it differs between seeds, one has trained less far than the other in the same number of epochs."
    )
    return table_of(data, "seeds", "Seed by seed", [row(g) for g in data.groups if len(g.runs) > 1], note)


def adjusted(data: DataSet) -> Table | None:
    """Accuracies after the logits were adjusted with a τ chosen on validation data; None where no run has them."""
    parts = GROUPS if data.parts.stored else ()  # runs keep these by the paper's limits only

    def accuracies(run: Run) -> dict[str, float | None]:
        found = run.summary.adjusted
        by_part = {part.capitalize(): found.groups.get(part, GroupAccuracy()).accuracy for part in parts}
        return {"Adjusted": found.balanced, **by_part}

    def row(group: Group) -> Cells:
        taus = ", ".join(knob_text(run.summary.adjusted.tau) for run in group.runs)
        return {"Method": group.label, "τ by seed": taus, "As trained": group.balanced, **group.stats(accuracies)}

    note = (
        "Logits less τ·log π, with the τ between -2 and 2 that is best on validation data (0 is the model as trained): "
        "how methods compare once head and tail are traded against one another alike. In per cent."
    )
    rows = [cells for cells in map(row, data.groups) if cells["Adjusted"] is not None]
    return table_of(data, "adjusted", "After adjusting the logits", rows, note)


def equal_head(data: DataSet) -> Table | None:
    """Torso and tail of every configuration at one accuracy of the head; None where runs do not allow it."""
    head = reference_head(data)
    if head is None:
        return None

    def there(run: Run) -> dict[str, float | None]:
        return {part.capitalize(): at_head(run, head, part) for part in ("torso", "tail") if data.sizes[part]}

    found = [(group, group.stats(there)) for group in data.groups]
    known = [(group, cells) for group, cells in found if any(cell is not None for cell in cells.values())]
    rows: list[Cells] = [{"Method": group.label, **cells, "Seeds": len(group.runs)} for group, cells in known]
    note = (
        f"Test accuracy in per cent of logits less τ·log π, at the τ where the head's is {100 * head:.2f}, which is "
        "LogAdj's as trained: nothing is chosen, all stand at the same point between head and tail."
    )
    return table_of(data, "equal-head", "At equal accuracy of the head", rows, note)


def embeddings(data: DataSet) -> Table | None:
    """Diagnostics of logits and embeddings, mean over seeds; None where no run has any."""
    parts = [part for part in GROUPS if data.sizes[part] and data.parts.stored]
    splits = ("train", "test")

    def near(run: Run) -> dict[str, float | None]:
        found = run.diagnostics
        return {"k-NN accuracy": found.knn.balanced, "Nearest-class-mean accuracy": found.ncm.balanced}

    def numbers(run: Run) -> dict[str, float | None]:
        found = run.diagnostics
        variances = {split: found.class_variance.by_group.get(split, {}) for split in splits if "tail" in parts}
        return {
            "d_max, train": found.dmax.mean,
            **{f"d_max, {part}": found.dmax.mean_by_group.get(part) for part in parts},
            **{f"Variance, tail, {split}": by_group.get("tail") for split, by_group in variances.items()},
            **{f"Intra/inter, {split}": found.intra_inter.get(split) for split in splits},
            "NC1": found.neural_collapse.get("nc1"),
            **{f"Margin variance, {split}": _mean(found.margin_variance.get(split) or ()) for split in splits},
        }

    note = (
        "k-NN and nearest-class-mean: balanced test accuracy in per cent. d_max: mean largest distance to a training "
        "sample of the same class, over the largest norm. Variance: mean squared distance to the class mean, mean over "
        "the tail's classes. Margin variance: mean over classes. NC1: within-class over between-class scatter of "
        "training embeddings (0 is full collapse)."
    )
    rows: list[Cells] = [{"Method": g.label, **g.stats(near), **g.means(numbers)} for g in data.groups]
    known = [title for title in rows[0] if any(cells[title] is not None for cells in rows)]
    kept = [{title: cells[title] for title in known} for cells in rows] if known[1:] else []
    return table_of(data, "embeddings", "Embeddings and margins", kept, note)


def alive(data: DataSet) -> Table | None:
    """How often an anchor had a positive, by group: mean over epochs and seeds; None where no run has a pull."""

    def shares(run: Run) -> dict[str, float | None]:
        return {part: _mean([row.alive.get(part) for row in run.metrics]) for part in ("all", *GROUPS)}

    rows: list[Cells] = []
    for group in data.groups:
        found = group.stats(shares)
        if any(share is not None for share in found.values()):
            parts = _by_part(data, found.__getitem__) if data.parts.stored else {}
            rows.append({"Method": group.label, "All": found["all"], **parts})
    note = (
        "Share of anchors (per cent, mean over epochs) with at least one positive to be pulled to, alive in "
        "metrics.jsonl. Where it is small the embedding term is hardly felt, whatever its weight."
    )
    return table_of(data, "alive", "Anchors with a positive", rows, note)


def embedding_term(data: DataSet) -> Table | None:
    """What the embedding term adds to the logit loss when it is first and last felt; None where no run has one."""
    what = ("logit loss", "embedding loss × weight", "share of the whole in %")

    titles = [f"{when} epoch: {name}" for when in ("First", "Last") for name in what]
    rows: list[Cells] = []
    for group in data.groups:
        seeds = [_sizes(run) for run in group.runs]
        if all(seeds):  # a mean over other seeds than the row's would mislead
            rows.append({"Method": group.label, **dict(zip(titles, map(_mean, zip(*seeds))))})
    note = "Means over an epoch's training batches; of a method of several stages, the epochs that have both losses."
    return table_of(data, "size", "Size of the embedding term", rows, note)


def _sizes(run: Run) -> list[float]:
    """Logit loss, all else that was added to it, and the share of that, in the first and last epoch with both."""
    found = []
    for row in run.metrics:
        logit = row.parts.get("logit")
        if row.loss is not None and logit is not None and len(row.parts) > 1:
            rest = row.loss - logit
            found.append([logit, rest, 100 * rest / row.loss if row.loss else 0.0])
    return [*found[0], *found[-1]] if found else []


def theory(data: DataSet) -> Table | None:
    """Both sides of Proposition 1, in how many classes it held and how much room was left; None without any."""

    def row(group: Group, run: Run) -> Cells:
        found = run.summary.theory.proposition1
        gaps = [b - a for a, b in zip(found.lower, found.pull) if a is not None and b is not None]
        return {
            "Method": group.label,
            "Seed": run.seed,
            "Holds in classes": f"{found.holds} of {found.of}",
            "Mean lower side": _mean(found.lower),
            "Mean pull Ω̄": _mean(found.pull),
            "Smallest gap": min(gaps, default=None),
            "α": found.alpha or "–",
        }

    rows = [row(group, run) for group in data.groups for run in group.runs if run.summary.theory.proposition1.lower]
    note = (
        "Proposition 1: 2|S|/(|S|−1)·Σ_j V̂[Φ_j|y] − α_y + log(|S|−1) ≤ Ω̄_pull(y), over classes with two or more "
        "training samples; it is a theorem, so that every class must hold. Proposition 2's bound is for an f fixed "
        "before the sample is drawn: on a trained network it is indicative only, and not part of this table."
    )
    return table_of(data, "theory", "Theory check: Proposition 1", rows, note)


def inventory(sets: Sequence[DataSet], skipped: Sequence[Skipped]) -> list[Table]:
    """Every run, and every folder that was left out with the reason; and the command that makes each run again."""

    def state(which: Cells, run: Run) -> Cells:
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

    def origin(which: Cells, run: Run) -> Cells:
        made = run.environment
        pairs = (("longtail", made.longtail), ("torch", made.torch), ("python", made.python))
        versions = ", ".join(f"{name} {version}" for name, version in pairs if version)
        return {**which, "Command": command(run), "Commit": made.git or "–", "Versions": versions or "–"}

    found: list[tuple[Cells, Run]] = []
    for data in sets:
        for group in data.groups:
            found += [({"Data": data.title, "Method": group.label, "Seed": run.seed}, run) for run in group.runs]
    runs = Table.of("runs", "What was run", [state(*each) for each in found])
    nothing: list[Cell] = ["–", "–", None, "", None, "", "", None, None, None]
    runs.rows.extend([*nothing, f"skipped: {s.reason}", str(s.path)] for s in skipped)
    note = (
        "As given when the run was made, or from its configuration where that is not known; each run's config.json "
        "holds every setting, also those left at their default."
    )
    return [runs, Table.of("reproduce", "How to reproduce each run", [origin(*each) for each in found], note)]


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


def trainings(sets: Sequence[DataSet]) -> Iterator[Table]:
    """Method × training: a table for each data set of which a method was trained in several ways, longer for one."""
    note = "Balanced test accuracy in per cent, ± over seeds. Warm-up and milestones are in proportion to the epochs."
    for same in gather(sets, lambda data: data_identity(data.first)):
        usual = same[0].comparable[0].first
        groups = [group for data in same for group in data.groups if group.first.recipe]
        ways = [(_way(alike[0].first, usual), alike) for alike in gather(groups, lambda g: circumstances(g.first))]
        ways.sort(key=lambda way: (len(way[0]), way[1][0].first.epochs or 0))
        by_name = [{group.name: group.balanced for group in alike} for _, alike in ways]
        names = [name for name in dict.fromkeys(g.name for g in groups) if sum(name in row for row in by_name) > 1]
        if names:
            columns = ["Method", *numbered([", ".join(said) for said, _ in ways])]
            rows: list[list[Cell]] = [[name, *(row.get(name, "not run") for row in by_name)] for name in names]
            yield Table(f"trainings-{same[0].slug}", f"{same[0].title} by way of training", columns, rows, note)


def _way(run: Run, usual: Run) -> list[str]:
    return list(dict.fromkeys([f"{run.epochs} epochs", run.precision, *differences(run, [usual])]))
