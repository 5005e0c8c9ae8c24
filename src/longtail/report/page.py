"""The report, built once from runs as a value: which model to take, how sure that is, what it gets wrong, what next."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..runs.read import Found, Run, find
from . import claims, gallery, growth, tables
from .comparison import accuracy_difference, choose, noise
from .document import Cells, Item, Report, Said, Section, Table, write
from .figures import Looks
from .grouping import DataSet, Group, datasets
from .paper import Number
from .uncertainty import LEVEL, Difference, Source, half_width, holm

MOST_NAMES = 4  # in a sentence
MOST_SEEDS = 100  # that one could ask for


def build(paths: Iterable[str | Path], out: str | Path) -> Path:
    """Read every run under ``paths`` and write the report to the folder ``out``; returns the page's path.

    Raises:
        InputError: a path does not exist, no run can be read, or ``out`` is not a folder.
    """
    return write(make(find(paths)), out)


def make(found: Found, *, limits: tuple[int, int] | None = None, paper_claims: bool = False) -> Report:
    """The report of runs: every table and claim is computed here, and once.

    Args:
        limits: of head and tail, if they are not to follow the data.
        paper_claims: whether the paper's claims are checked on data that are not the paper's, too.
    """
    sets = datasets(found.runs, limits)
    looks = gallery.looks_for(sets)
    of_data = [_data_section(data, looks, paper_claims or data.published) for data in sets]
    general = [*tables.inventory(sets, found.skipped), *tables.trainings(sets)]
    if paper_claims or any(data.published for data in sets):
        general += [claims.table1(), claims.coverage(sets)]
    runs, groups = len(found.runs), sum(len(data.groups) for data in sets)
    lead = (
        f"{runs} run{'' if runs == 1 else 's'} of {groups} configuration{'' if groups == 1 else 's'} on "
        f"{', '.join(data.title for data in sets)}. "
        "Accuracies are balanced test accuracies in per cent; ± is a standard deviation over seeds."
    )
    about_all = [*growth.sections(sets, looks), *map(_closed, general)]
    return Report(lead, of_data, about_all, [str(skipped) for skipped in found.skipped])


def _closed(table: Table, *before: str) -> Section:
    """A section of one table that opens on a click."""
    return Section(f"section-{table.slug}", table.title, [*before, table], "closed")


def _data_section(data: DataSet, looks: Looks, paper_claims: bool) -> Section:
    """First the answer, then what one looks at, then the laboratory."""
    name, found, uncertain = data.slug, answer(data), noise(data)
    drawn = {picture.name.removesuffix(f"-{name}"): picture for picture in gallery.pictures(data, looks)}
    warned = [Said("warning", found.warning)] if found.warning else []
    seen: list[Item] = [drawn.pop("figure2-groups"), tables.results(data), *_facts(data, uncertain)]
    items: list[Item | Section] = [
        Section(f"answer-{name}", data.title, [*found.sentences, *warned, drawn.pop("classes")], "answer"),
        Section(f"head-tail-{name}", "Head, torso and tail", seen),
    ]
    for kind, title in (("tradeoff", "Head against tail"), ("training", "Training")):
        items += [Section(f"{kind}-{name}", title, [drawn.pop(kind)])] if kind in drawn else []
    failing = worst(data, found.best)
    if failing is not None:
        pictured = gallery.mistakes(data, found.best, found.run)
        items.append(Section(f"section-{failing.slug}", failing.title, [failing, pictured]))
    if found.commands:
        items.append(Section(f"next-{name}", "What next", [Said("command", command) for command in found.commands]))
    inner = [_closed(table) for table in tables.laboratory(data, uncertain)]
    if paper_claims:
        checked = claims.check(data)
        inner.append(_closed(claims.table(data, checked), claims.in_words(data, checked)))
    if drawn:
        title = "Margins, distances and maps of embeddings"
        inner.append(Section(f"figures-{name}", title, list(drawn.values()), "closed"))
    return Section(name, data.title, [*items, Section(f"laboratory-{name}", "Laboratory", inner)])


def _facts(data: DataSet, uncertain: str) -> list[str]:
    counts, parts = data.counts, data.parts
    groups = ", ".join(f"{n} {name}" if n else f"no {name} classes" for name, n in data.sizes.items())
    text = (
        f"{counts.num_classes} classes ({groups}), {counts.total:,} training samples, {int(counts.n.max()):,} in the "
        f"largest class and {int(counts.n.min()):,} in the smallest. Head: {parts.head} or more training samples; "
        f"tail: fewer than {parts.tail}. {parts.why}"
    )
    # a rule of thumb on noise is for the terminal: here the computed sentence stands in its place
    kept = [note for note in data.first.split.notes if "are noise" not in note and "may be chance" not in note]
    notes = " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in kept)
    return [line for line in (text.strip(), uncertain, notes) if line]


class Rival(NamedTuple):
    """A configuration that was not taken: how far the best is above it, and whether that can be told from chance."""

    group: Group
    difference: Difference
    apart: bool


@dataclass(frozen=True)
class Answer:
    """The configuration to take, the run of it, and what was said of them."""

    best: Group
    run: Run
    sentences: list[str]
    warning: str
    commands: list[str]


def answer(data: DataSet) -> Answer:
    """Judge the configurations of one data set; the best is chosen on validation data where every run has it."""
    best, run, by_val = choose(data.groups)
    return Answer(best, run, list(_judged(data, best, run, by_val)), _warning(data, best), _commands(run))


def _judged(data: DataSet, best: Group, run: Run, by_val: bool) -> Iterator[str]:
    """How good the best is, how far above plain cross-entropy, and from what it cannot be told apart."""
    mean, std, seeds = best.balanced
    spread = ", one seed" if std is None else f" ± {100 * std:.1f} over {seeds} seeds"
    said = f"{100 * mean:.1f} % balanced test accuracy{spread}"
    if len(data.groups) == 1:
        yield f"{best.label} ({run.path}) has {said}."
    else:
        how = "chosen on validation data" if by_val else "chosen on these test data, which flatters it a little"
        yield f"Take {best.label} ({run.path}): {said}, {how}."
    found = [(g, gap) for g in data.groups if g is not best and (gap := accuracy_difference(best, g)) is not None]
    if not found:
        return
    levels = holm([gap.p for _, gap in found])
    rivals = [Rival(g, gap, p is not None and p <= LEVEL and gap.value > 0) for (g, gap), p in zip(found, levels)]
    yield _over_cross_entropy(data, best, rivals)
    unclear = sorted((r for r in rivals if not r.apart), key=lambda r: -r.group.balanced.mean)
    size = best.first.summary.test.n
    having = f"with {f'{size:,} test samples and ' if size else ''}{seeds} seed{'' if seeds == 1 else 's'}"
    if unclear:
        names = _some([r.group.label for r in unclear])
        yield f"It cannot be told apart {having} from {names}. {_needed(best, unclear[0])}"
    elif len(rivals) > 1:
        yield f"It can be told apart from all {len(rivals)} others {having}."


def _over_cross_entropy(data: DataSet, best: Group, rivals: Sequence[Rival]) -> str:
    if best.method == "ce":
        return "That is plain cross-entropy: no other method did better."
    plain = data.plain("ce")
    rival = next((r for r in rivals if plain and r.group is plain[0]), None)
    if rival is None:
        return "Plain cross-entropy was not run, so that the gain over it is not known."
    gap = rival.difference
    said = f"It is {abs(100 * gap.value):.1f} points {'above' if gap.value >= 0 else 'below'} plain cross-entropy"
    if gap.interval is None or gap.p is None:
        return f"{said}, but with one seed of a method nobody knows what chance did in training: run more seeds."
    low, high = max(gap.interval[0], -1.0), min(gap.interval[1], 1.0)
    chance = "" if rival.apart else ", which may be chance"
    return f"{said} (95 % interval {100 * low:+.1f} to {100 * high:+.1f}, over test samples and seeds){chance}."


def _needed(best: Group, rival: Rival) -> str:
    """How many seeds, or else test samples, would tell the best from a rival, if they differ as measured."""
    gap, size = rival.difference, best.first.summary.test.n
    stds = [std for group in (best, rival.group) if (std := group.balanced.std) is not None]
    if len(stds) < 2:
        return f"Run at least three seeds of {best.label} and of {rival.group.label}."
    spread, of_test = math.hypot(*stds), next((s.error for s in gap.sources if math.isinf(s.freedom)), 0.0)
    apart, ahead = abs(gap.value), "it" if gap.value > 0 else rival.group.label
    as_measured = (
        f"If the difference to {rival.group.label} is what was measured ({100 * apart:.1f} points, {ahead} ahead)"
    )
    for seeds in range(3, MOST_SEEDS + 1):
        if half_width((Source(spread / math.sqrt(seeds), seeds), Source(of_test))) < apart:
            return f"{as_measured}, about {seeds} seeds of each would tell."
    samples = 2 * (size or 0) * (1.96 * of_test / apart) ** 2 if apart else math.inf  # half is left to the seeds
    if size and samples < 100 * size:
        unit = 10 ** max(len(str(int(samples))) - 2, 0)
        about = math.ceil(samples / unit) * unit
        return f"{as_measured}, it would take about {about:,} test samples, and more seeds, to tell."
    return f"{as_measured}, no reasonable number of seeds or test samples would tell."


def _warning(data: DataSet, best: Group) -> str:
    """The one thing that is most likely to be wrong, or nothing."""
    names, classes = data.first.class_names, data.counts.num_classes
    if untested := [names[c] for c in data.members["tail"] if data.groups[0].tested(c) == 0]:
        return (
            f"{len(untested)} of {data.sizes['tail']} tail classes have no test samples "
            f"({_some(untested)}): their accuracy is not known and not part of any mean."
        )
    if collapsed := [g.label for g in data.groups if g.balanced.mean <= 1.5 / classes and classes > 2]:
        return (
            f"{_some(collapsed)} did no better than guessing: where an embedding term is that strong, lower its weight "
            "(lam)."
        )
    for group in sorted(data.groups, key=lambda group: group is not best):
        for run in group.runs:
            if run.summary.concerns:
                return f"{group.label}: {run.summary.concerns[0]}."
    if never := [names[c] for c in range(classes) if all(run.summary.test.per_class[c] == 0 for run in best.runs)]:
        return f"{best.label} never recognises {_some(never)}."
    return ""


def _some(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _commands(run: Run) -> list[str]:
    """What one does with a run next."""
    folder = shlex.quote(str(run.path))
    if not (run.path / "config.json").is_file():
        return []  # a line of a bundle, or somebody's predictions: there is no model
    # Without validation data nothing can be chosen: cross-entropy has a known best value, others a method without knobs
    unchosen = "logit-adjust --value 1" if run.method == "ce" else "ncm"
    return [
        f"longtail predict {folder} NEW_DATA",
        f"longtail posthoc {folder} --method {unchosen if run.summary.val.balanced is None else 'logit-adjust'}",
        f"longtail export {folder} --to torch",
    ]


def worst(data: DataSet, group: Group) -> Table | None:
    """The worst classes of one configuration and what they are taken for."""
    names, taken = data.first.class_names, group.mistaken

    def row(c: int) -> Cells:
        found = Counter({predicted: n for (label, predicted), n in taken.items() if label == c}).most_common(2)
        return {
            "Class": names[c],
            "Group": data.class_group[c],
            "Training samples": data.first.split.counts[c],
            "Test samples": group.tested(c),
            "Accuracy": Number(100 * (group.class_accuracy(c) or 0.0)),
            "Mostly taken for": ", ".join(names[predicted] for predicted, _ in found) or None,
        }

    note = f"The classes that {group.label} recognises least, test accuracy in per cent, mean over seeds."
    return tables.table_of(data, "worst", "Where it fails", map(row, gallery.worst_classes(data, group)), note)
