"""The tables of one data set, each made of rows: the cells by title, so that a title stands beside its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from ..counts import GROUPS
from ..margins import short as knob_text
from ..runs.read import Run
from ..runs.schema import GroupAccuracy
from . import paper
from .comparison import at_head, reference_head
from .document import Cell, Cells, Table
from .grouping import DataSet, Group, gather


def laboratory(data: DataSet, noise: str) -> list[Table]:
    """All that the runs allow, but for the results; ``noise`` is what they cannot tell from chance, in words."""
    made = [
        breakdown(data, noise), per_class(data), confusions(data), by_seed(data), adjusted(data), equal_head(data),
        embeddings(data), alive(data), embedding_term(data), theory(data),
    ]  # fmt: skip
    return [table for table in made if table is not None]


def table_of(data: DataSet, kind: str, title: str, rows: Iterable[Cells], note: str) -> Table | None:
    """A table of a data set; None without rows."""
    rows = list(rows)
    return Table.of(f"{kind}-{data.slug}", title, rows, note) if rows else None


def by_part(data: DataSet, value: Callable[[str], Cell]) -> Cells:
    """A cell for each of head, torso and tail; a group without classes says so."""
    return {part.capitalize(): value(part) if data.sizes[part] else "no classes" for part in GROUPS}


def results(data: DataSet) -> Table:
    """Our accuracies next to the paper's: one row a configuration, the paper's rows that were not run included."""

    def row(group: Group) -> Cells:
        printed = paper.number(group.method, data.name) if not group.changed else None
        gap = None if printed is None else f"{100 * group.balanced.mean - printed.value:+.2f}"
        return {
            "Method": group.label,
            "Balanced accuracy": group.balanced,
            **by_part(data, group.accuracy),
            "Seeds": len(group.runs),
            "Epochs": group.first.epochs,
            **({"Paper": printed, "Ours − paper": gap} if data.published else {}),
        }

    rows, note = map(row, data.groups), " ".join(_results_note(data))
    table = Table.of(f"results-{data.slug}", f"Results on {data.title}", rows, note)
    plain = {group.method for group in data.groups if not group.changed}
    not_run = [printed for printed in paper.TABLE2 if data.published and printed.method not in plain]
    table.rows.extend([r.title, *["not run"] * 4, 0, None, r.numbers[data.name], None] for r in not_run)
    return table


def _results_note(data: DataSet) -> list[str]:
    said = [
        "Test accuracy in per cent, mean over classes; ± is the standard deviation over seeds, if there are several."
    ]
    longer: dict[int, list[str]] = {}  # epochs are those asked for, which is the first stage
    for group in data.groups:
        trained = max((row.epoch for row in group.first.metrics if row.epoch is not None), default=0)
        if group.first.epochs is not None and trained > group.first.epochs:
            longer.setdefault(trained, []).append(group.label)
    if longer:
        totals = "; ".join(f"{', '.join(labels)}: {trained}" for trained, labels in sorted(longer.items()))
        said.append(f"Epochs are those of the first stage; with the later ones trained in all: {totals}.")
    resumed = [(group, run) for group in data.groups for run in group.runs if run.environment.resumed]
    if resumed:
        names = [f"{group.label}{'' if run.seed is None else f' (seed {run.seed})'}" for group, run in resumed]
        said.append(f"Interrupted and resumed from a checkpoint, not restarted: {', '.join(names)}.")
    if data.published:
        marks = {row.numbers[data.name].mark for row in paper.TABLE2}
        said.append(f"Paper: mean over {paper.TRIALS} trials; “multi-stage” rows are the faded ones of its Table 2.")
        said += [f"{mark} the paper quotes {source}." for mark, source in paper.MARKS.items() if mark in marks]
        return said + deviations(data)
    if data.name in paper.DATASETS:
        return [*said, "The paper's numbers are not shown: these training counts are not those of its data set."]
    return [*said, "The paper has no numbers for this data set."]


def deviations(data: DataSet) -> list[str]:
    """How the runs depart from the paper's Table 3: a sentence for each set of configurations that do so together."""
    found: dict[str, list[str]] = {}
    for group in data.groups:
        run = group.first
        for what in paper.departures(data.name, run.model, run.epochs, run.recipe):
            found.setdefault(what, []).append(group.label)
    said = []
    for whats in gather(found, found.__getitem__):
        labels = found[whats[0]]
        of_whom = "" if len(labels) == len(data.groups) else f" for {', '.join(labels)}"
        said.append(f"Not the paper's recipe{of_whom}: {', '.join(whats)}.")
    return said


def breakdown(data: DataSet, noise: str) -> Table | None:
    """Everything about accuracy beyond the mean: worst class, geometric and harmonic mean, calibration."""
    several = any(len(group.runs) > 1 for group in data.groups)

    def row(group: Group) -> Cells:
        parts = zip(by_part(data, group.accuracy).items(), data.sizes.values())
        ends = group.first.summary.test.balanced_ci
        interval = None if ends is None else f"{100 * ends[0]:.2f} … {100 * ends[1]:.2f}"
        return {
            "Method": group.label,
            "Balanced": group.balanced,
            **{f"{part} ({n} class{'' if n == 1 else 'es'})": cell for (part, cell), n in parts},
            "Worst class": group.stat(lambda run: run.summary.test.worst_class.accuracy),
            "Geometric mean": group.stat(lambda run: run.summary.test.geometric_mean),
            "Harmonic mean": group.stat(lambda run: run.summary.test.harmonic_mean),
            "ECE": group.stat(lambda run: run.summary.test.ece),
            "Plain accuracy": group.stat(lambda run: run.summary.test.accuracy),
            "95 % interval, first seed" if several else "95 % interval": interval,
        }

    note = f"In per cent. ECE: expected calibration error. The interval is over test samples (bootstrap). {noise}"
    return table_of(data, "groups", "Breakdown by head, torso and tail", map(row, data.groups), note)


def class_cells(data: DataSet, c: int) -> Cells:
    first = data.first
    return {"Class": first.class_names[c], "Training samples": first.split.counts[c], "Group": data.class_group[c]}


def per_class(data: DataSet) -> Table:
    """One row a class: training samples, group, accuracy of every configuration (mean over seeds)."""

    def accuracy(group: Group, c: int) -> Cell:
        mean = group.class_accuracy(c)
        return None if mean is None else paper.Number(100 * mean)

    columns = ["Label", *class_cells(data, 0), *(group.label for group in data.groups)]
    rows: list[list[Cell]] = [
        [c, *class_cells(data, c).values(), *(accuracy(group, c) for group in data.groups)]
        for c in range(data.counts.num_classes)
    ]
    note = "Test accuracy in per cent, mean over seeds. Click a heading to sort by it, again to reverse."
    return Table(f"per-class-{data.slug}", "Every class", columns, rows, note)


def taken_for(group: Group) -> Counter[tuple[int, int]]:
    """How many test samples of a class were taken for another, over all seeds."""
    taken: Counter[tuple[int, int]] = Counter()
    for run in group.runs:
        for label, predicted, n in run.summary.test.confusion.top:
            taken[label, predicted] += n
    return taken


def confusions(data: DataSet, most: int = 5) -> Table | None:
    """What each configuration takes for what most often; None where no run kept it."""
    names, groups = data.first.class_names, data.class_group
    rows: list[Cells] = []
    for group in data.groups:
        ranked = sorted(taken_for(group).items(), key=lambda item: (-item[1], item[0]))[:most]
        for (label, predicted), n in ranked:
            rows.append({
                "Method": group.label, "Class": names[label], "Group": groups[label], "Taken for": names[predicted],
                "Its group": groups[predicted], "Test samples": n / len(group.runs), "Of": group.tested(label),
            })  # fmt: skip
    note = f"The {most} commonest mistakes of each configuration; test samples are a mean over seeds."
    return table_of(data, "confusions", "Commonest mistakes", rows, note)


def by_seed(data: DataSet) -> Table | None:
    """Accuracy and what is left of the training loss, seed by seed; None where no configuration has two."""

    def last_loss(run: Run) -> str:
        loss = run.metrics[-1].parts.get("logit") if run.metrics else None
        return "–" if loss is None else f"{loss:.3f}"

    def row(group: Group) -> Cells:
        return {
            "Method": group.label,
            "Seeds": ", ".join(str(run.seed) for run in group.runs),
            "Balanced accuracy": ", ".join(f"{100 * run.balanced:.2f}" for run in group.runs),
            "Logit loss of the last epoch": ", ".join(map(last_loss, group.runs)),
        }

    note = (
        "Test accuracy in per cent; the loss is a mean over the last epoch's training batches, to be compared within a "
        "row. Where it differs between seeds, one has trained less far than the other in the same number of epochs."
    )
    several = [group for group in data.groups if len(group.runs) > 1]
    return table_of(data, "seeds", "Seed by seed", map(row, several), note)


def adjusted(data: DataSet) -> Table | None:
    """Accuracies after the logits were adjusted with a τ chosen on validation data; None where no run has them."""

    def row(group: Group) -> Cells:
        def accuracy(part: str) -> Cell:
            return group.stat(lambda run: run.summary.adjusted.groups.get(part, GroupAccuracy()).accuracy)

        return {
            "Method": group.label,
            "τ by seed": ", ".join(knob_text(run.summary.adjusted.tau) for run in group.runs),
            "As trained": group.balanced,
            "Adjusted": group.stat(lambda run: run.summary.adjusted.balanced),
            # runs keep these by the paper's limits only
            **{part.capitalize(): accuracy(part) for part in GROUPS if data.parts.stored},
        }

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

    def there(group: Group, part: str) -> Cell:
        return group.stat(lambda run: at_head(run, head, part))

    parts = [part for part in ("torso", "tail") if data.sizes[part]]
    found = [(group, {part.capitalize(): there(group, part) for part in parts}) for group in data.groups]
    rows = [
        {"Method": group.label, **cells, "Seeds": len(group.runs)}
        for group, cells in found
        if any(cell is not None for cell in cells.values())
    ]
    note = (
        f"Test accuracy in per cent of logits less τ·log π, at the τ where the head's is {100 * head:.2f}, which is "
        "LogAdj's as trained: nothing is chosen, all stand at the same point between head and tail."
    )
    return table_of(data, "equal-head", "At equal accuracy of the head", rows, note)


def embeddings(data: DataSet) -> Table | None:
    """Diagnostics of logits and embeddings, mean over seeds; None where no run has any."""
    parts = [part for part in GROUPS if data.sizes[part] and data.parts.stored]

    def row(group: Group) -> Cells:
        def distance(part: str) -> Cell:
            return group.mean(lambda run: run.diagnostics.dmax.mean_by_group.get(part))

        def tail_variance(split: str) -> Cell:
            return group.mean(lambda run: run.diagnostics.class_variance.by_group.get(split, {}).get("tail"))

        return {
            "Method": group.label,
            "k-NN accuracy": group.stat(lambda run: run.diagnostics.knn.balanced),
            "Nearest-class-mean accuracy": group.stat(lambda run: run.diagnostics.ncm.balanced),
            "d_max, train": group.mean(lambda run: run.diagnostics.dmax.mean),
            **{f"d_max, {part}": distance(part) for part in parts},
            **{f"Variance, tail, {split}": tail_variance(split) for split in ("train", "test") if "tail" in parts},
            "Intra/inter, train": group.mean(lambda run: run.diagnostics.intra_inter.get("train")),
            "Intra/inter, test": group.mean(lambda run: run.diagnostics.intra_inter.get("test")),
            "NC1": group.mean(lambda run: run.diagnostics.neural_collapse.get("nc1")),
            "Margin variance, train": group.mean(lambda run: _mean(run.diagnostics.margin_variance.get("train") or ())),
            "Margin variance, test": group.mean(lambda run: _mean(run.diagnostics.margin_variance.get("test") or ())),
        }

    note = (
        "k-NN and nearest-class-mean: balanced test accuracy in per cent. d_max: mean largest distance to a training "
        "sample of the same class, over the largest norm. Variance: mean squared distance to the class mean, mean over "
        "the tail's classes. Margin variance: mean over classes. NC1: within-class over between-class scatter of "
        "training embeddings (0 is full collapse)."
    )
    rows = list(map(row, data.groups))
    known = [title for title in rows[0] if any(cells[title] is not None for cells in rows)]
    kept = [{title: cells[title] for title in known} for cells in rows] if known[1:] else []
    return table_of(data, "embeddings", "Embeddings and margins", kept, note)


def alive(data: DataSet) -> Table | None:
    """How often an anchor had a positive, by group: mean over epochs and seeds; None where no run has a pull."""

    def share(group: Group, part: str) -> Cell:
        return group.stat(lambda run: _mean([row.alive.get(part) for row in run.metrics]))

    def row(group: Group) -> Cells:
        parts = by_part(data, lambda part: share(group, part)) if data.parts.stored else {}
        return {"Method": group.label, "All": share(group, "all"), **parts}

    groups = [group for group in data.groups if any(share(group, part) is not None for part in ("all", *GROUPS))]
    note = (
        "Share of anchors (per cent, mean over epochs) with at least one positive to be pulled to, alive in "
        "metrics.jsonl. Where it is small the embedding term is hardly felt, whatever its weight."
    )
    return table_of(data, "alive", "Anchors with a positive", map(row, groups), note)


def embedding_term(data: DataSet) -> Table | None:
    """What the embedding term adds to the logit loss when it is first and last felt; None where no run has one."""
    what = ("logit loss", "embedding loss × weight", "share of the whole in %")
    titles = [f"{when} epoch: {name}" for when in ("First", "Last") for name in what]
    rows = [{"Method": group.label, **dict(zip(titles, sizes))} for group in data.groups if (sizes := _sizes(group))]
    note = "Means over an epoch's training batches; of a method of several stages, the epochs that have both losses."
    return table_of(data, "size", "Size of the embedding term", rows, note)


def _sizes(group: Group) -> list[Cell]:
    """Logit loss, all else that was added to it, and the share of that, in the first and last epoch with both."""
    sizes = []
    for run in group.runs:
        found = []
        for row in run.metrics:
            logit = row.parts.get("logit")
            if row.loss is not None and logit is not None and len(row.parts) > 1:
                rest = row.loss - logit
                found.append([logit, rest, 100 * rest / row.loss if row.loss else 0.0])
        if not found:
            return []  # a mean over other seeds than the row's would mislead
        sizes.append([*found[0], *found[-1]])
    return [_mean(values) for values in zip(*sizes)]


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

    note = (
        "Proposition 1: 2|S|/(|S|−1)·Σ_j V̂[Φ_j|y] − α_y + log(|S|−1) ≤ Ω̄_pull(y), over classes with two or more "
        "training samples; it is a theorem, so that every class must hold. Proposition 2's bound is for an f fixed "
        "before the sample is drawn: on a trained network it is indicative only, and not part of this table."
    )
    runs = [(group, run) for group in data.groups for run in group.runs if run.summary.theory.proposition1.lower]
    return table_of(data, "theory", "Theory check: Proposition 1", [row(*each) for each in runs], note)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
