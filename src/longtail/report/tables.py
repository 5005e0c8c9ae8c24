"""The tables of one data set, each a list of columns: a title, and where the number comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..counts import GROUPS
from ..margins import short as knob_text
from ..runs.read import Run
from ..runs.schema import GroupAccuracy, Proposition1
from . import paper
from .comparison import at_head, reference_head
from .document import Cell, Column, Percent, T, Table
from .grouping import DataSet, Group

METHOD: Column[Group] = Column("Method", lambda group: group.label)
SEEDS: Column[Group] = Column("Seeds", lambda group: len(group.runs))


def laboratory(data: DataSet, noise: str) -> list[Table]:
    """All that the runs allow, but for the results; ``noise`` is what they cannot tell from chance, in words."""
    made = [
        breakdown(data, noise), per_class(data), confusions(data), by_seed(data), adjusted(data), equal_head(data),
        embeddings(data), alive(data), embedding_term(data), theory(data),
    ]  # fmt: skip
    return [table for table in made if table is not None]


def table_of(
    data: DataSet, kind: str, title: str, things: Sequence[T], columns: Sequence[Column[T]], note: str
) -> Table | None:
    """One row a thing; None without any."""
    return Table.of(f"{kind}-{data.slug}", title, things, columns, note) if things else None


def stat(title: str, value: Callable[[Run], float | None]) -> Column[Group]:
    """Mean and deviation over seeds, in per cent."""
    return Column(title, lambda group: group.stat(value))


def mean(title: str, value: Callable[[Run], float | None]) -> Column[Group]:
    return Column(title, lambda group: group.mean(value))


def each(names: Iterable[str], value: Callable[[Group, str], Cell], title: str = "") -> list[Column[Group]]:
    """A column for each of the names, which ``title`` has a place for."""

    def column(name: str) -> Column[Group]:
        return Column(title.format(name) if title else name.capitalize(), lambda group: value(group, name))

    return [column(name) for name in names]


def by_part(data: DataSet, value: Callable[[Group, str], Cell]) -> list[Column[Group]]:
    """A column for each of head, torso and tail; a group without classes says so."""
    return each(GROUPS, lambda group, part: value(group, part) if data.sizes[part] else "no classes")


def results(data: DataSet) -> Table:
    """Our accuracies next to the paper's: one row a configuration, the paper's rows that were not run included."""

    def theirs(group: Group) -> paper.Number | None:
        return paper.number(group.method, data.name) if not group.changed else None

    def difference(group: Group) -> str | None:
        printed = theirs(group)
        return None if printed is None else f"{100 * group.balanced.mean - printed.value:+.2f}"

    columns = [
        METHOD,
        Column("Balanced accuracy", lambda group: group.balanced),
        *by_part(data, Group.accuracy),
        SEEDS,
        Column("Epochs", lambda group: group.first.epochs),
    ]
    columns += [Column("Paper", theirs), Column("Ours − paper", difference)] if data.published else []
    note = " ".join(_results_note(data))
    table = Table.of(f"results-{data.slug}", f"Results on {data.title}", data.groups, columns, note)
    plain = {group.method for group in data.groups if not group.changed}
    not_run = [row for row in paper.TABLE2 if data.published and row.method not in plain]
    table.rows.extend([row.title, *["not run"] * 4, 0, None, row.numbers[data.name], None] for row in not_run)
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
    by_labels: dict[tuple[str, ...], list[str]] = {}
    for what, labels in found.items():
        by_labels.setdefault(tuple(labels), []).append(what)
    return [
        f"Not the paper's recipe{'' if len(labels) == len(data.groups) else ' for ' + ', '.join(labels)}: "
        f"{', '.join(whats)}."
        for labels, whats in by_labels.items()
    ]


def breakdown(data: DataSet, noise: str) -> Table | None:
    """Everything about accuracy beyond the mean: worst class, geometric and harmonic mean, calibration."""

    def interval(group: Group) -> str | None:
        ends = group.first.summary.test.balanced_ci
        return None if ends is None else f"{100 * ends[0]:.2f} … {100 * ends[1]:.2f}"

    sizes = {part: f" ({n} class{'' if n == 1 else 'es'})" for part, n in data.sizes.items()}
    several = any(len(group.runs) > 1 for group in data.groups)
    columns = [
        METHOD,
        Column("Balanced", lambda group: group.balanced),
        *(
            replace(column, title=column.title + size)
            for column, size in zip(by_part(data, Group.accuracy), sizes.values())
        ),
        stat("Worst class", lambda run: run.summary.test.worst_class.accuracy),
        stat("Geometric mean", lambda run: run.summary.test.geometric_mean),
        stat("Harmonic mean", lambda run: run.summary.test.harmonic_mean),
        stat("ECE", lambda run: run.summary.test.ece),
        stat("Plain accuracy", lambda run: run.summary.test.accuracy),
        Column("95 % interval, first seed" if several else "95 % interval", interval),
    ]
    note = f"In per cent. ECE: expected calibration error. The interval is over test samples (bootstrap). {noise}"
    return table_of(data, "groups", "Breakdown by head, torso and tail", data.groups, columns, note)


def class_columns(data: DataSet) -> list[Column[int]]:
    return [
        Column("Class", lambda c: data.first.class_names[c]),
        Column("Training samples", lambda c: data.first.split.counts[c]),
        Column("Group", lambda c: data.class_group[c]),
    ]


def per_class(data: DataSet) -> Table | None:
    """One row a class: training samples, group, accuracy of every configuration (mean over seeds)."""

    def accuracy(group: Group) -> Column[int]:
        def cell(c: int) -> Cell:
            mean = group.class_accuracy(c)
            return None if mean is None else Percent(mean)

        return Column(group.label, cell)

    label: Column[int] = Column("Label", lambda c: c)
    columns = [label, *class_columns(data), *map(accuracy, data.groups)]
    note = "Test accuracy in per cent, mean over seeds. Click a heading to sort by it, again to reverse."
    return table_of(data, "per-class", "Every class", range(data.counts.num_classes), columns, note)


def taken_for(group: Group) -> Counter[tuple[int, int]]:
    """How many test samples of a class were taken for another, over all seeds."""
    taken: Counter[tuple[int, int]] = Counter()
    for run in group.runs:
        for label, predicted, n in run.summary.test.confusion.top:
            taken[label, predicted] += n
    return taken


def confusions(data: DataSet, most: int = 5) -> Table | None:
    """What each configuration takes for what most often; None where no run kept it."""
    rows: list[tuple[Group, int, int, int]] = []
    for group in data.groups:
        ranked = sorted(taken_for(group).items(), key=lambda item: (-item[1], item[0]))[:most]
        rows += [(group, label, predicted, n) for (label, predicted), n in ranked]
    names, groups = data.first.class_names, data.class_group
    columns: list[Column[tuple[Group, int, int, int]]] = [
        Column("Method", lambda row: row[0].label),
        Column("Class", lambda row: names[row[1]]),
        Column("Group", lambda row: groups[row[1]]),
        Column("Taken for", lambda row: names[row[2]]),
        Column("Its group", lambda row: groups[row[2]]),
        Column("Test samples", lambda row: row[3] / len(row[0].runs)),
        Column("Of", lambda row: row[0].tested(row[1])),
    ]
    note = f"The {most} commonest mistakes of each configuration; test samples are a mean over seeds."
    return table_of(data, "confusions", "Commonest mistakes", rows, columns, note)


def by_seed(data: DataSet) -> Table | None:
    """Accuracy and what is left of the training loss, seed by seed; None where no configuration has two."""

    def listed(title: str, said: Callable[[Run], str]) -> Column[Group]:
        return Column(title, lambda group: ", ".join(map(said, group.runs)))

    def last_loss(run: Run) -> str:
        loss = run.metrics[-1].parts.get("logit") if run.metrics else None
        return "–" if loss is None else f"{loss:.3f}"

    several = [group for group in data.groups if len(group.runs) > 1]
    columns = [
        METHOD,
        listed("Seeds", lambda run: str(run.seed)),
        listed("Balanced accuracy", lambda run: f"{100 * run.balanced:.2f}"),
        listed("Logit loss of the last epoch", last_loss),
    ]
    note = (
        "Test accuracy in per cent; the loss is a mean over the last epoch's training batches, to be compared within a "
        "row. Where it differs between seeds, one has trained less far than the other in the same number of epochs."
    )
    return table_of(data, "seeds", "Seed by seed", several, columns, note)


def adjusted(data: DataSet) -> Table | None:
    """Accuracies after the logits were adjusted with a τ chosen on validation data; None where no run has them."""

    def accuracy(group: Group, part: str) -> Cell:
        return group.stat(lambda run: run.summary.adjusted.groups.get(part, GroupAccuracy()).accuracy)

    def taus(group: Group) -> str:
        return ", ".join(knob_text(run.summary.adjusted.tau) for run in group.runs)

    balanced = stat("Adjusted", lambda run: run.summary.adjusted.balanced)
    columns = [
        METHOD,
        Column("τ by seed", taus),
        Column("As trained", lambda group: group.balanced),
        balanced,
        *each(GROUPS if data.parts.stored else (), accuracy),  # runs keep these by the paper's limits only
    ]
    note = (
        "Logits less τ·log π, with the τ between -2 and 2 that is best on validation data (0 is the model as trained): "
        "how methods compare once head and tail are traded against one another alike. In per cent."
    )
    groups = [group for group in data.groups if balanced.cell(group) is not None]
    return table_of(data, "adjusted", "After adjusting the logits", groups, columns, note)


def equal_head(data: DataSet) -> Table | None:
    """Torso and tail of every configuration at one accuracy of the head; None where runs do not allow it."""
    head = reference_head(data)
    if head is None:
        return None
    there = each(
        [part for part in ("torso", "tail") if data.sizes[part]],
        lambda group, part: group.stat(lambda run: at_head(run, head, part)),
    )
    groups = [group for group in data.groups if any(column.cell(group) is not None for column in there)]
    note = (
        f"Test accuracy in per cent of logits less τ·log π, at the τ where the head's is {100 * head:.2f}, which is "
        "LogAdj's as trained: nothing is chosen, all stand at the same point between head and tail."
    )
    columns = [METHOD, *there, SEEDS]
    return table_of(data, "equal-head", "At equal accuracy of the head", groups, columns, note)


def embeddings(data: DataSet) -> Table | None:
    """Diagnostics of logits and embeddings, mean over seeds; None where no run has any."""

    def distance(group: Group, part: str) -> Cell:
        return group.mean(lambda run: run.diagnostics.dmax.mean_by_group.get(part))

    def tail_variance(group: Group, split: str) -> Cell:
        return group.mean(lambda run: run.diagnostics.class_variance.by_group.get(split, {}).get("tail"))

    def margin_variance(group: Group, split: str) -> Cell:
        return group.mean(lambda run: _mean(run.diagnostics.margin_variance.get(split) or ()))

    splits, parts = ("train", "test"), [part for part in GROUPS if data.sizes[part] and data.parts.stored]
    columns = [
        METHOD,
        stat("k-NN accuracy", lambda run: run.diagnostics.knn.balanced),
        stat("Nearest-class-mean accuracy", lambda run: run.diagnostics.ncm.balanced),
        mean("d_max, train", lambda run: run.diagnostics.dmax.mean),
        *each(parts, distance, "d_max, {}"),
        *each(splits if "tail" in parts else (), tail_variance, "Variance, tail, {}"),
        *each(
            splits,
            lambda group, split: group.mean(lambda run: run.diagnostics.intra_inter.get(split)),
            "Intra/inter, {}",
        ),
        mean("NC1", lambda run: run.diagnostics.neural_collapse.get("nc1")),
        *each(splits, margin_variance, "Margin variance, {}"),
    ]
    note = (
        "k-NN and nearest-class-mean: balanced test accuracy in per cent. d_max: mean largest distance to a training "
        "sample of the same class, over the largest norm. Variance: mean squared distance to the class mean, mean over "
        "the tail's classes. Margin variance: mean over classes. NC1: within-class over between-class scatter of "
        "training embeddings (0 is full collapse)."
    )
    known = [column for column in columns if any(column.cell(group) is not None for group in data.groups)]
    return table_of(data, "embeddings", "Embeddings and margins", data.groups if known[1:] else [], known, note)


def alive(data: DataSet) -> Table | None:
    """How often an anchor had a positive, by group: mean over epochs and seeds; None where no run has a pull."""

    def share(group: Group, part: str) -> Cell:
        return group.stat(lambda run: _mean([row.alive.get(part) for row in run.metrics]))

    groups = [group for group in data.groups if any(share(group, part) is not None for part in ("all", *GROUPS))]
    columns = [METHOD, *each(["all"], share), *(by_part(data, share) if data.parts.stored else [])]
    note = (
        "Share of anchors (per cent, mean over epochs) with at least one positive to be pulled to, alive in "
        "metrics.jsonl. Where it is small the embedding term is hardly felt, whatever its weight."
    )
    return table_of(data, "alive", "Anchors with a positive", groups, columns, note)


def embedding_term(data: DataSet) -> Table | None:
    """What the embedding term adds to the logit loss when it is first and last felt; None where no run has one."""
    rows = [(group, sizes) for group in data.groups if (sizes := _sizes(group))]
    what = ("logit loss", "embedding loss × weight", "share of the whole in %")

    def size(i: int, title: str) -> Column[tuple[Group, list[float]]]:
        return Column(title, lambda row: row[1][i])

    titles = [f"{when} epoch: {name}" for when in ("First", "Last") for name in what]
    method: Column[tuple[Group, list[float]]] = Column("Method", lambda row: row[0].label)
    note = "Means over an epoch's training batches; of a method of several stages, the epochs that have both losses."
    columns = [method, *(size(i, title) for i, title in enumerate(titles))]
    return table_of(data, "size", "Size of the embedding term", rows, columns, note)


def _sizes(group: Group) -> list[float]:
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
    return [_mean(values) or 0.0 for values in zip(*sizes)]


def theory(data: DataSet) -> Table | None:
    """Both sides of Proposition 1, in how many classes it held and how much room was left; None without any."""

    def smallest_gap(found: Proposition1) -> float | None:
        return min((b - a for a, b in zip(found.lower, found.pull) if a is not None and b is not None), default=None)

    runs = [(group, run, run.summary.theory.proposition1) for group in data.groups for run in group.runs]
    columns: list[Column[tuple[Group, Run, Proposition1]]] = [
        Column("Method", lambda row: row[0].label),
        Column("Seed", lambda row: row[1].seed),
        Column("Holds in classes", lambda row: f"{row[2].holds} of {row[2].of}"),
        Column("Mean lower side", lambda row: _mean(row[2].lower)),
        Column("Mean pull Ω̄", lambda row: _mean(row[2].pull)),
        Column("Smallest gap", lambda row: smallest_gap(row[2])),
        Column("α", lambda row: row[2].alpha or "–"),
    ]
    note = (
        "Proposition 1: 2|S|/(|S|−1)·Σ_j V̂[Φ_j|y] − α_y + log(|S|−1) ≤ Ω̄_pull(y), over classes with two or more "
        "training samples; it is a theorem, so that every class must hold. Proposition 2's bound is for an f fixed "
        "before the sample is drawn: on a trained network it is indicative only, and not part of this table."
    )
    rows = [row for row in runs if row[2].lower]
    return table_of(data, "theory", "Theory check: Proposition 1", rows, columns, note)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
