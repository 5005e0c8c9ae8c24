"""Runs put together: seeds of one configuration form a group with a label, groups on one data set a ``DataSet``."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import Any, TypeVar

from ..counts import ClassCounts
from ..evaluate.accuracy import Spread, over_seeds
from ..margins import short as knob_text
from ..runs.read import Run, circumstances, condition, data_identity
from . import paper

T = TypeVar("T")
# Short names for legends and table rows; a method which is not here is called by its own name.
SHORT = {
    "ce": "CE",
    "cb-focal": "CB Focal",
    "ldam-drw": "LDAM + DRW",
    "logadj": "LogAdj",
    "equalised": "Equalised",
    "vs": "VS",
    "dro-lt": "DRO-LT",
    "dro-lt-multistage": "DRO-LT (multi-stage)",
    "tau-norm": "τ-norm",
    "crt": "cRT",
    "lws": "LWS",
    "elm": "ELM",
    "center": "Center",
    "spreadout": "Spreadout",
    "range": "Range",
    "hybrid": "Hybrid",
    "supcon": "SupCon",
    "triplet": "Triplet",
    "contrastive": "Contrastive",
}
SYMBOL = {"lam": "λ", "alpha": "α", "tau": "τ", "gamma": "γ", "beta": "β", "epsilon": "ε"}
PAPER_LIMITS = (100, 20)
_ORDER = [row.method for row in paper.TABLE2]


def gather(things: Iterable[T], facts: Callable[[T], Any]) -> list[list[T]]:
    """Things of equal facts together, in the order of the first of each."""
    found: dict[str, list[T]] = {}
    for thing in things:
        found.setdefault(json.dumps(facts(thing), sort_keys=True, default=str), []).append(thing)
    return list(found.values())


@dataclass(frozen=True)
class Parts:
    """Head, torso and tail: at least ``head`` training samples, fewer than ``tail``, and between; ``why`` these."""

    head: int
    tail: int
    why: str = ""

    @property
    def stored(self) -> bool:
        """Whether these are the limits of the numbers that runs keep by group."""
        return (self.head, self.tail) == PAPER_LIMITS

    def classes(self, counts: ClassCounts) -> dict[str, list[int]]:
        return {name: index.tolist() for name, index in counts.groups(self.head, self.tail).items()}

    def accuracy(self, run: Run, part: str) -> float | None:
        """Mean over the classes of ``part`` that were tested; ``"balanced"`` is all of them."""
        if part == "balanced":
            return run.balanced
        if self.stored:
            return run.group_accuracy(part)
        known = [v for c in self.classes(run.counts)[part] if (v := run.summary.test.per_class[c]) is not None]
        return math.fsum(known) / len(known) if known else None


def parts_of(name: str, counts: ClassCounts, limits: tuple[int, int] | None = None) -> Parts:
    """The given limits; else the paper's, if the data are the paper's or each group gets classes; else thirds.

    >>> parts_of("photos", ClassCounts([90, 60, 50, 30, 25, 22])).classes(ClassCounts([90, 60, 50, 30, 25, 22]))
    {'head': [0, 1], 'torso': [2, 3], 'tail': [4, 5]}
    """
    if limits is not None:
        return Parts(*limits)
    paper_s = Parts(*PAPER_LIMITS)
    if name in paper.DATASETS or all(paper_s.classes(counts).values()):
        return paper_s
    sizes = sorted(counts.n.tolist(), reverse=True)
    third = max(len(sizes) // 3, 1)
    head = sizes[third - 1]
    why = "These are thirds of the classes by size: the paper's limits (100 and 20) leave a group empty here."
    return Parts(head, min(sizes[-third] + 1, head), why)


@dataclass(frozen=True)
class Group:
    """Runs which differ in nothing but the seed; ``changed`` are the knobs that are not the method's defaults."""

    label: str
    runs: list[Run]
    changed: dict[str, Any]
    parts: Parts

    @property
    def name(self) -> str:
        """Method and changed knobs alone: the label also says what tells groups of one name apart."""
        name = SHORT.get(self.method, self.method)
        knobs = ", ".join(f"{SYMBOL.get(k, k)} = {knob_text(v)}" for k, v in self.changed.items())
        return f"{name} ({knobs})" if knobs else name

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.method

    def stats(self, values: Callable[[Run], Mapping[str, float | None]]) -> dict[str, Spread | None]:
        """Numbers over seeds; None for one that any lacks: a mean over other seeds than the row says would mislead."""
        rows = [values(run) for run in self.runs]
        columns = {name: [v for row in rows if (v := row[name]) is not None] for name in rows[0]}
        return {name: over_seeds(known) if len(known) == len(rows) else None for name, known in columns.items()}

    def means(self, values: Callable[[Run], Mapping[str, float | None]]) -> dict[str, float | None]:
        """Of numbers that are no fractions, the mean over seeds alone."""
        return {name: None if stat is None else stat.mean for name, stat in self.stats(values).items()}

    def stat(self, value: Callable[[Run], float | None]) -> Spread | None:
        """One number over seeds."""
        return self.stats(lambda run: {"": value(run)})[""]

    def mean(self, value: Callable[[Run], float | None]) -> float | None:
        return self.means(lambda run: {"": value(run)})[""]

    @property
    def balanced(self) -> Spread:
        return over_seeds([run.balanced for run in self.runs])

    def accuracy(self, part: str) -> Spread | None:
        return self.stat(lambda run: self.parts.accuracy(run, part))

    def class_accuracy(self, label: int) -> float | None:
        """Test accuracy of one class, mean over seeds."""
        return self.mean(lambda run: run.summary.test.per_class[label])

    @property
    def mistaken(self) -> Counter[tuple[int, int]]:
        """How many test samples of a class were taken for another, over all seeds: by both labels."""
        taken: Counter[tuple[int, int]] = Counter()
        for run in self.runs:
            for label, predicted, n in run.summary.test.confusion.top:
                taken[label, predicted] += n
        return taken

    def tested(self, label: int) -> int | None:
        """How many test samples a class has."""
        sizes = self.first.summary.test.per_class_n
        return None if sizes is None else sizes[label]


@dataclass(frozen=True)
class Sweep:
    """Groups which differ in one knob only, in ascending order of its value."""

    method: str
    knob: str
    groups: list[Group]

    @property
    def values(self) -> list[Any]:
        return [group.first.knobs[self.knob] for group in self.groups]


@dataclass(frozen=True)
class DataSet:
    """All groups of runs on one data set, in the order of the paper's table."""

    name: str
    title: str
    groups: list[Group]
    parts: Parts

    @property
    def slug(self) -> str:
        """Its name in files and anchors."""
        return slug(self.title)

    @property
    def first(self) -> Run:
        return self.groups[0].first

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def counts(self) -> ClassCounts:
        return self.first.counts

    @property
    def published(self) -> bool:
        """Whether the paper's numbers are about these very data."""
        return paper.same_data(self.name, self.first.split.counts)

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """The classes of head, torso and tail."""
        return self.parts.classes(self.counts)

    @property
    def sizes(self) -> dict[str, int]:
        """How many classes each of head, torso and tail has."""
        return {name: len(index) for name, index in self.members.items()}

    @cached_property
    def class_group(self) -> list[str]:
        """Head, torso or tail for each class."""
        index = {c: name for name, classes in self.members.items() for c in classes}
        return [index[c] for c in range(self.counts.num_classes)]

    @cached_property
    def comparable(self) -> list[Group]:
        """The groups under the circumstances that most of them share: a comparison with all else equal."""
        return _most_alike(self.groups)

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Every knob of which at least three values were run with all else equal; the widest sweep of each knob."""
        best: dict[tuple[str, str], Sweep] = {}
        knobs = dict.fromkeys((group.method, knob) for group in self.groups for knob in group.first.knobs)
        for method, knob in knobs:
            having = [g for g in self.groups if g.method == method and knob in g.first.knobs]
            for same in gather(having, partial(_all_but, knob)):
                by_value = {knob_text(g.first.knobs[knob]): g for g in same}
                widest = best.get((method, knob))
                if len(by_value) >= 3 and (widest is None or len(by_value) > len(widest.groups)):
                    best[method, knob] = Sweep(method, knob, sorted(by_value.values(), key=partial(_rank, knob)))
        return list(best.values())

    def plain(self, method: str) -> list[Group]:
        """The groups of a method with no knob changed: what is comparable first, then most epochs, then most seeds."""
        found = [g for g in self.groups if g.method == method and not g.changed]
        usual = {id(group) for group in self.comparable}
        return sorted(found, key=lambda g: (id(g) not in usual, -(g.first.epochs or 0), -len(g.runs)))


def _all_but(knob: str, group: Group) -> list[Any]:
    others = {k: v for k, v in group.first.knobs.items() if k != knob}
    return [others, circumstances(group.first)]


def _rank(knob: str, group: Group) -> tuple[int, float, str]:
    value = group.first.knobs[knob]
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, knob_text(value))


def _most_alike(groups: Sequence[Group]) -> list[Group]:
    return max(gather(groups, lambda group: circumstances(group.first)), key=len)


def datasets(runs: Sequence[Run], limits: tuple[int, int] | None = None) -> list[DataSet]:
    """Group runs by data set and configuration: the paper's data sets first, the paper's rows first.

    Comparisons under different circumstances, such as two lengths of training, are one ``DataSet`` each. ``limits`` are
    those of head and tail, if they are not to follow the data.
    """
    by_data = gather(runs, data_identity)
    names = [_title(same[0]) for same in by_data]
    found = []
    for same in by_data:
        first = same[0]
        # where several variants of a data set are present, its options tell them apart
        options = ", ".join(f"{k} = {knob_text(v)}" for k, v in sorted(first.options.items()))
        title = f"{_title(first)} ({options})" if options and names.count(_title(first)) > 1 else _title(first)
        parts = parts_of(first.data, first.counts, limits)
        found += [DataSet(first.data, title + said, _groups(some, parts), parts) for said, some in _comparisons(same)]
    known = list(paper.DATASETS)
    found.sort(key=lambda d: (known.index(d.name) if d.name in known else len(known), d.title))
    titles = numbered([data.title for data in found], slug)  # they name files and anchors, so no two may become one
    return [replace(data, title=title) for data, title in zip(found, titles)]


def _title(run: Run) -> str:
    """A data set from disk is named by its path, of which the last part says enough."""
    return paper.DATASETS.get(run.data) or PurePath(run.data).name or run.data


def slug(title: str) -> str:
    """A name for files and anchors.

    >>> slug("CIFAR100-LT (ratio = 50)")
    'cifar100-lt-ratio-50'
    """
    kept = "".join(ch if ch.isalnum() and ch.isascii() else "-" for ch in title.lower())
    return "-".join(part for part in kept.split("-") if part) or "data"


def numbered(names: list[str], key: Callable[[str], str] = str) -> list[str]:
    """The names, those of equal keys told apart: `` #1``, `` #2``."""
    keys = [key(name) for name in names]
    return [f"{n} #{keys[:i].count(keys[i]) + 1}" if keys.count(keys[i]) > 1 else n for i, n in enumerate(names)]


def _comparisons(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of one data set, apart where two or more methods each were run under several circumstances.

    The comparison of most runs comes first, of equally many that of most epochs; the others say what is different about
    them. What was run under no comparison's circumstances joins the one of its own length, or else the first.
    """
    alike = gather(runs, circumstances)
    compared = [same for same in alike if same[0].recipe and len({run.method for run in same}) > 1]
    if len(compared) < 2:
        return [("", runs)]
    others = [run for same in alike if same not in compared for run in same]
    compared.sort(key=lambda same: (-len(same), -(same[0].epochs or 0)))
    first = compared[0][0]
    said = ["", *(f" ({', '.join(differences(same[0], [first]))})" for same in compared[1:])]
    for run in others:
        next((same for same in compared if same[0].epochs == run.epochs), compared[0]).append(run)
    return list(zip(said, compared))


def _groups(runs: list[Run], parts: Parts) -> list[Group]:
    """The configurations; a label says of groups of one name in what circumstances they differ.

    Where half of the groups or more are a comparison with all else equal, those keep their short labels and the others
    say what is different about them.
    """
    groups = []
    for peers in gather(runs, lambda run: run.method):
        for same in gather(peers, partial(condition, without=_later_knobs(peers))):
            same.sort(key=lambda r: (r.seed is None, r.seed or 0))
            changed = same[0].config.changed
            if changed is None:  # an old run does not say: those that differ between the runs of the method
                changed = {k: v for k, v in same[0].knobs.items() if any(p.knobs.get(k) != v for p in peers)}
            groups.append(Group("", same, changed, parts))
    groups.sort(key=lambda g: (_ORDER.index(g.method) if g.method in _ORDER else len(_ORDER), g.method, g.name))
    alike = _most_alike(groups)
    usual = len(alike) >= len(groups) / 2 and len({group.method for group in alike}) > 1
    labels = []
    for group in groups:
        others = [alike[0].first] if usual else [g.first for g in groups if g.name == group.name]
        labels.append(" · ".join([group.name, *differences(group.first, others)]))
    return [replace(group, label=label) for group, label in zip(groups, numbered(labels))]


def _later_knobs(runs: list[Run]) -> set[str]:
    """Knobs that a method got after some of its runs were made, at their default in those that have them."""
    names = {name for run in runs for name in run.knobs}
    changed = {name for run in runs for name in run.config.changed or ()}
    return {name for name in names - changed if any(name not in run.knobs for run in runs)}


def differences(run: Run, others: list[Run]) -> list[str]:
    """In which circumstances a run differs from any of the others, in words."""
    if not run.recipe:
        return []  # predictions from elsewhere say nothing of how they were made
    mine, peers = circumstances(run), [circumstances(other) for other in others if other.recipe]
    names = dict.fromkeys([what for peer in peers for what in (*mine, *peer)])
    differ = [what for what in names if any(peer.get(what) != mine.get(what) for peer in peers)]
    if "epochs" in differ:  # what lies in proportion to them differs with them, and says nothing more
        differ = [what for what in differ if what not in ("recipe milestones", "recipe warmup_epochs")]
    recipe = run.recipe.get("name")
    named = recipe and any(other.recipe.get("name") != recipe for other in others)
    if named and any(what.startswith("recipe ") for what in differ):
        return [_said(w, mine.get(w)) for w in differ if not w.startswith("recipe ")] + [f"recipe {recipe}"]
    return [_said(what, mine.get(what)) for what in differ]


def _said(what: str, value: Any) -> str:
    if what == "epochs":
        return f"{value} epochs"
    return str(value) if what in ("model", "precision") else f"{what.removeprefix('recipe ')} {knob_text(value)}"
