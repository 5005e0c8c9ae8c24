"""Runs put together: seeds of one configuration form a group with a label, groups on one data set a ``DataSet``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from ..counts import ClassCounts
from ..margins import short
from ..runs.identity import circumstances, condition, data_identity
from ..runs.read import Run
from . import paper
from .table import Stat

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
_ORDER = [row.method for row in paper.TABLE2]


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
        """Mean over the classes of ``part`` that were tested."""
        if self.stored:
            return run.group_accuracy(part)
        known = [v for c in self.classes(run.counts)[part] if (v := run.summary.test.per_class[c]) is not None]
        return math.fsum(known) / len(known) if known else None


PAPER_LIMITS = (100, 20)


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
        return f"{name} ({knobs_text(self.changed)})" if self.changed else name

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.method

    def stat(self, value: Callable[[Run], float | None]) -> Stat | None:
        return Stat.of([value(run) for run in self.runs])

    @property
    def balanced(self) -> Stat:
        stat = self.stat(lambda run: run.balanced)
        assert stat is not None  # every run has one
        return stat

    def mean(self, value: Callable[[Run], float | None]) -> float | None:
        """Of a number that is no fraction, the mean over seeds alone."""
        stat = self.stat(value)
        return None if stat is None else stat.mean

    def accuracy(self, part: str) -> Stat | None:
        return self.stat(lambda run: self.parts.accuracy(run, part))

    def class_accuracy(self, label: int) -> float | None:
        """Test accuracy of one class, mean over seeds."""
        return self.mean(lambda run: run.summary.test.per_class[label])

    def tested(self, label: int) -> int | None:
        """How many test samples a class has."""
        sizes = self.first.summary.test.per_class_n
        return None if sizes is None else sizes[label]


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
    def sizes(self) -> dict[str, int]:
        """How many classes each of head, torso and tail has."""
        return {name: len(index) for name, index in self.members.items()}

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """The classes of head, torso and tail."""
        return self.parts.classes(self.counts)

    @property
    def class_group(self) -> list[str]:
        """Head, torso or tail for each class."""
        index = {c: name for name, classes in self.members.items() for c in classes}
        return [index[c] for c in range(self.counts.num_classes)]

    @property
    def comparable(self) -> list[Group]:
        """The groups under the circumstances that most of them share: a comparison with all else equal."""
        return _under_shared_circumstances(self.groups)

    def plain(self, method: str) -> list[Group]:
        """The groups of a method with no knob changed; most epochs first, then most seeds."""
        found = [g for g in self.groups if g.method == method and not g.changed]
        return sorted(found, key=lambda g: (-(g.first.epochs or 0), -len(g.runs)))


knob_text = short


def knobs_text(knobs: dict[str, Any]) -> str:
    return ", ".join(f"{SYMBOL.get(k, k)} = {knob_text(v)}" for k, v in knobs.items())


def datasets(runs: Sequence[Run], limits: tuple[int, int] | None = None) -> list[DataSet]:
    """Group runs by data set and configuration: the paper's data sets first, the paper's rows first.

    Comparisons under different circumstances, such as two lengths of training, are one ``DataSet`` each. ``limits`` are
    those of head and tail, if they are not to follow the data.
    """
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(json.dumps(data_identity(run), sort_keys=True), []).append(run)
    names = [data_title(sets[0]) for sets in by_data.values()]
    found = []
    for same in by_data.values():
        title = data_title(same[0], alone=names.count(data_title(same[0])) == 1)
        parts = parts_of(same[0].data, same[0].counts, limits)
        found += [DataSet(same[0].data, title + said, _groups(some, parts), parts) for said, some in _comparisons(same)]
    known = list(paper.DATASETS)
    found.sort(key=lambda d: (known.index(d.name) if d.name in known else len(known), d.title))
    return _distinct_titles(found)


def _comparisons(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of one data set, apart where two or more methods each were run under several circumstances.

    The comparison of most epochs comes first; the later ones say what is different about them. What was run under no
    comparison's circumstances joins the one of its own length, or else the first.
    """
    by_circumstances: dict[str, list[Run]] = {}
    for run in runs:
        by_circumstances.setdefault(_key(circumstances(run)), []).append(run)
    compared = [same for same in by_circumstances.values() if same[0].recipe and len({run.method for run in same}) > 1]
    if len(compared) < 2:
        return [("", runs)]
    compared.sort(key=lambda same: (-(same[0].epochs or 0), -len(same)))
    first, *others = compared
    said = ["", *(f" ({', '.join(_differences(same[0], first[:1]))})" for same in others)]
    parts = [list(same) for same in compared]
    for run in (run for same in by_circumstances.values() if same not in compared for run in same):
        next((part for part in parts if part[0].epochs == run.epochs), parts[0]).append(run)
    return list(zip(said, parts))


def _distinct_titles(sets: list[DataSet]) -> list[DataSet]:
    """Titles name files and anchors, so no two may become one."""
    slugs = [data.slug for data in sets]
    return [
        replace(data, title=f"{data.title} #{slugs[:i].count(slugs[i]) + 1}") if slugs.count(slugs[i]) > 1 else data
        for i, data in enumerate(sets)
    ]


def slug(title: str) -> str:
    """A name for files and anchors.

    >>> slug("CIFAR100-LT (ratio = 50)")
    'cifar100-lt-ratio-50'
    """
    kept = "".join(ch if ch.isalnum() and ch.isascii() else "-" for ch in title.lower())
    return "-".join(part for part in kept.split("-") if part) or "data"


def data_title(run: Run, alone: bool = True) -> str:
    """A data set's name; where several variants of it are present, with its options, if it has any."""
    # a data set from disk is named by its path, of which the last part says enough
    title = paper.DATASETS.get(run.data) or PurePath(run.data).name or run.data
    if alone or not run.options:
        return title
    options = ", ".join(f"{k} = {knob_text(v)}" for k, v in sorted(run.options.items()))
    return f"{title} ({options})"


def _groups(runs: list[Run], parts: Parts) -> list[Group]:
    by_condition: dict[str, list[Run]] = {}
    for run in runs:
        later = _later_knobs([other for other in runs if other.method == run.method])
        by_condition.setdefault(_key(condition(run, later)), []).append(run)
    groups = []
    for same in by_condition.values():
        same.sort(key=lambda r: (r.seed is None, r.seed or 0))
        group = Group("", same, _changed(same[0], [r for r in runs if r.method == same[0].method]), parts)
        groups.append(replace(group, label=group.name))
    groups.sort(key=lambda g: (_ORDER.index(g.method) if g.method in _ORDER else len(_ORDER), g.method, g.label))
    return _distinct(groups)


def _later_knobs(runs: list[Run]) -> set[str]:
    """Knobs that a method got after some of its runs were made, at their default in those that have them."""
    names = {name for run in runs for name in run.knobs}
    changed = {name for run in runs for name in run.config.changed or ()}
    return {name for name in names - changed if any(name not in run.knobs for run in runs)}


def _changed(run: Run, peers: list[Run]) -> dict[str, Any]:
    """The knobs which were not the method's defaults when it ran; where a run does not say, those that differ."""
    if run.config.changed is not None:
        return run.config.changed
    return {k: v for k, v in run.knobs.items() if any(p.knobs.get(k) != v for p in peers)}


def _distinct(groups: list[Group]) -> list[Group]:
    """Groups of one label differ in model, epochs, precision or recipe: append what tells them apart.

    Where most groups are a comparison with all else equal, those keep their short labels and the others say what is
    different about them.
    """
    shared = _shared(groups)
    result = []
    for group in groups:
        peers = [g.first for g in groups if g.label == group.label] if shared is None else [shared]
        result.append(replace(group, label=" · ".join([group.label, *_differences(group.first, peers)])))
    labels = [group.label for group in result]
    for i, group in enumerate(result):  # two recipes of one name may still differ in their fields
        if labels.count(group.label) > 1:
            result[i] = replace(group, label=f"{group.label} #{labels[:i].count(group.label) + 1}")
    return result


def _shared(groups: list[Group]) -> Run | None:
    """A run under the circumstances of more than half of the groups, if these are of several methods."""
    shared = _under_shared_circumstances(groups)
    if len(shared) <= len(groups) / 2 or len({group.method for group in shared}) < 2:
        return None
    return shared[0].first


def _differences(run: Run, others: list[Run]) -> list[str]:
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


def _under_shared_circumstances(groups: list[Group]) -> list[Group]:
    """The groups under the circumstances that most of them share."""
    shared: dict[str, list[Group]] = {}
    for group in groups:
        shared.setdefault(_key(circumstances(group.first)), []).append(group)
    return max(shared.values(), key=len)


def _key(facts: Any) -> str:
    """Equal for equal facts, to group by."""
    return json.dumps(facts, sort_keys=True, default=str)


def _said(what: str, value: Any) -> str:
    if what == "epochs":
        return f"{value} epochs"
    return str(value) if what in ("model", "precision") else f"{what.removeprefix('recipe ')} {knob_text(value)}"
