"""The paper's claims, each as a number from the runs with a verdict.

Verdicts: *confirmed* and *contradicted* as far as ``RULE`` says, which is printed below the table, since not every
number has the same kind of interval; *undecided* otherwise; *not applicable* for an empty group; *not tested* with what
would be needed. A claim is tested at the methods' default knobs and under equal model, epochs and recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..counts import ClassCounts
from ..margins import short as knob_text
from ..runs.read import Run
from ..runs.schema import Numbers
from . import paper
from .comparison import (
    accuracy_difference,
    at_head,
    choose,
    class_difference,
    difference,
    pair,
    partner,
    rate_difference,
    reference_head,
)
from .document import Cell, Cells, Table
from .grouping import DataSet, Group
from .uncertainty import ONE_SEED, Difference, holm

NOT_TESTED = "not tested"
HOLDS = "holds"
SAME = "the same"  # claimed: turned into a verdict once all are known
OURS = "ours, not the paper's"
FEWEST = 5  # samples of a class, below which a variance says nothing
RULE = (
    "Intervals are 95 %, for each claim by itself: over test samples (accuracies) or classes (margin variances, "
    "d_max), and over seeds, each side with the spread of its own (Welch; by pairs of seeds where two methods share "
    "training). "
    "“Confirmed” and “contradicted” need a p value of at most 0.05 after Holm's correction for all claims of the table "
    "that could be tested. With one seed on a side nothing is decided. Margin variances leave out classes of fewer "
    f"than {FEWEST} samples."
)


@dataclass(frozen=True)
class Claim:
    """What the paper says and where, what the runs say, and the verdict.

    ``difference`` is what the verdict rests on, ``p`` its value after Holm's correction over the table.
    """

    text: str
    where: str
    number: str = "–"
    verdict: str = NOT_TESTED
    note: str = "the runs' summaries lack the number"
    difference: Difference | None = None
    p: float | None = None

    def on(self, found: Difference | None, number: str | None = None) -> Claim:
        """The claim resting on a difference, of accuracies where its ``number`` is not given."""
        if found is None:
            return self
        return replace(self, number=number or found.points(), verdict="", note=found.how, difference=found)


Test = Callable[[DataSet, Claim, Group, Group, str], Iterable[Claim]]


@dataclass(frozen=True)
class Statement:
    """A claim about two methods: that ``test`` finds the first above the second, in ``part`` of the classes."""

    text: str
    where: str
    first: str
    second: str
    test: Test
    part: str = "balanced"

    def __call__(self, data: DataSet) -> Iterator[Claim]:
        claim = Claim(self.text, self.where)
        if self.part in data.sizes and not data.sizes[self.part]:
            yield replace(claim, verdict="not applicable", note=f"no classes in the {self.part}")
            return
        groups = pair(data, self.first, self.second)
        if isinstance(groups, str):
            yield replace(claim, note=groups)
        else:
            yield from self.test(data, claim, *groups, self.part)


def check(data: DataSet) -> list[Claim]:
    """All claims on one data set."""
    found = [claim for source in CLAIMS for claim in source(data)]
    adjusted = holm([claim.difference.p if claim.difference else None for claim in found])
    return [_judged(claim, p) for claim, p in zip(found, adjusted)]


def _judged(claim: Claim, p: float | None) -> Claim:
    """A claim with the verdict that its difference has among all others."""
    if claim.difference is None:
        return claim
    verdict = claim.difference.verdict(p)
    if claim.verdict == SAME and verdict != ONE_SEED:  # sameness is never proven: the interval says what could hide
        verdict = "consistent" if verdict == "undecided" else "contradicted"
    return replace(claim, verdict=verdict, p=p)


def table(data: DataSet, claims: Sequence[Claim]) -> Table:
    def row(claim: Claim) -> Cells:
        p = None if claim.p is None else f"{claim.p:.3f}" if claim.p >= 0.001 else "< 0.001"
        return {
            "The paper's claim": claim.text, "Where": claim.where, "Our number": claim.number, "p (Holm)": p,
            "Verdict": claim.verdict, "Remark": claim.note,
        }  # fmt: skip

    return Table.of(f"claims-{data.slug}", f"The paper's claims on {data.title}", map(row, claims), RULE)


def _accuracy(data: DataSet, claim: Claim, first: Group, second: Group, part: str) -> list[Claim]:
    return [claim.on(accuracy_difference(first, second, part))]


def _variances(data: DataSet, claim: Claim, first: Group, second: Group, part: str) -> Iterator[Claim]:
    """Whether margins vary less under the first, of test and of training samples."""
    test_sizes = data.first.summary.test.per_class_n

    def logs(run: Run, split: str) -> Numbers | None:
        values = run.diagnostics.margin_variance.get(split)
        return values and [math.log(v) if v else None for v in values]

    for split, sizes in (("test", test_sizes), ("train", data.first.split.counts)):
        named = replace(claim, text=f"{claim.text} ({split} samples)")
        enough = np.asarray(sizes if sizes is not None else [FEWEST] * data.counts.num_classes) >= FEWEST
        how = "geometric mean over classes; not independent of the logits' scale"
        found = class_difference(first, second, partial(logs, split=split), enough, how)
        if found is None:
            lack = f"needs margin variances of {split} samples in two or more classes of at least {FEWEST} samples"
            yield replace(named, note=lack)
            continue
        gap, gaps = found
        number = f"variance × {math.exp(gap.value):.3f}"
        if gap.interval is not None:
            number += " [{:.3f}, {:.3f}]".format(*map(math.exp, gap.interval))
        if len(gap.by_seed) > 1:
            number += f", by seed × {', × '.join(f'{math.exp(d):.3f}' for d in gap.by_seed)}"
        number += f", smaller in {int((gaps < 0).sum())} of {gaps.size} classes"
        yield named.on(replace(gap, value=-gap.value, by_seed=tuple(-d for d in gap.by_seed)), number)


def _distance(data: DataSet, claim: Claim, first: Group, second: Group, part: str) -> list[Claim]:
    """Whether d_max, mean over classes, is larger under the first; of runs without it by class, their one number."""
    members = np.isin(np.arange(data.counts.num_classes), data.members.get(part, range(data.counts.num_classes)))
    found = class_difference(first, second, lambda run: run.diagnostics.dmax.by_class, members, "mean over classes")
    if found is not None:
        gap, gaps = found
        return [claim.on(gap, f"{gap.text(digits=4)}, larger in {int((gaps > 0).sum())} of {gaps.size} classes")]

    def of_samples(run: Run) -> float | None:
        dmax = run.diagnostics.dmax
        if part in data.sizes:
            return dmax.mean_by_group.get(part) if data.parts.stored else None
        return dmax.mean

    one = difference(first, second, of_samples, "the runs kept no d_max by class")
    return [claim.on(one, None if one is None else one.text(digits=4))]


def _neighbours(data: DataSet, claim: Claim, first: Group, second: Group, part: str) -> list[Claim]:
    size = first.first.summary.test.n or 0
    found = rate_difference(first, second, lambda run: run.diagnostics.knn.balanced, size, "unpaired, binomial")
    return [claim.on(found)]


def _beyond_the_paper(data: DataSet) -> Iterator[Claim]:
    """At equal accuracy of the head; and variants of ELM that change more than its strength, such as a memory."""
    plain = pair(data, "elm", "logadj")
    if not isinstance(plain, str):
        yield from _at_equal_head(data, *plain)
    for group in data.groups:
        if group.method == "elm" and set(group.changed) - {"lam", "alpha", "tau"}:
            other = partner(group, data.plain("logadj"))
            if other is None:
                continue
            for part in ("balanced", "torso", "tail"):
                where = "overall" if part == "balanced" else f"on the {part}"
                if data.sizes.get(part, 1):
                    claim = Claim(f"{group.label} is above LogAdj {where}", OURS)
                    yield claim.on(accuracy_difference(group, other, part))
            yield from _at_equal_head(data, group, other)


def _at_equal_head(data: DataSet, group: Group, logadj: Group) -> Iterator[Claim]:
    """Whether a gain or loss on the tail is more than another balance between head and tail."""
    head, sizes = reference_head(data), group.first.summary.test.per_class_n
    if head is None or sizes is None:
        return
    size = math.fsum(sizes[c] for c in data.members["tail"])
    how = f"unpaired, binomial; logits adjusted to {100 * head:.2f} % on the head"
    found = rate_difference(group, logadj, lambda run: at_head(run, head, "tail"), size, how)
    if found is not None:
        claim = Claim(f"{group.label} is above LogAdj on the tail at equal accuracy of the head", OURS)
        yield claim.on(found)


def _strength(data: DataSet) -> Iterator[Claim]:
    """What the weight of ELM's pull does, from a sweep over it."""
    large, small, between = (
        Claim(text, "Figure 7")
        for text in (
            "Too large a λ hurts: the best λ is above the largest",
            "Too small a λ does nothing: the smallest λ > 0 is as good as λ = 0 (LogAdj)",
            "A λ in between gains over λ = 0 (LogAdj)",
        )
    )
    sweep = next((s for s in data.sweeps if s.method == "elm" and s.knob == "lam"), None)
    if sweep is None:
        lack = "needs runs of elm with at least three values of lam, all else equal"
        yield from (replace(claim, note=lack) for claim in (large, small, between))
        return
    values, groups = sweep.values, sweep.groups
    best, _, by_val = choose(groups)
    how = "by validation data" if by_val else "by these very test results, so the gain is flattered"
    picked = f"best of {len(groups)} values {how}"
    if best is groups[-1]:
        number = f"the largest λ tried, {knob_text(values[-1])}, is the best"
        yield replace(large, number=number, verdict="undecided", note="try larger values")
    else:
        large = large.on(accuracy_difference(best, groups[-1]))
        at = f"λ = {knob_text(best.first.knobs[sweep.knob])} against {knob_text(values[-1])}: "
        yield replace(large, number=at + large.number, note=f"{large.note}; {picked}")
    zero = groups[0] if values[0] == 0 else partner(groups[0], data.plain("logadj"))
    positive = [g for g, v in zip(groups, values) if isinstance(v, (int, float)) and v > 0]
    if zero is None or not positive:
        lack = "needs a run of elm with lam=0, or of logadj under the same recipe"
        yield from (replace(claim, note=lack) for claim in (small, between))
        return
    small = small.on(accuracy_difference(positive[0], zero))
    if small.difference is not None:
        small = replace(small, verdict=SAME, note=f"{small.note}; the paper writes “standard cross-entropy”")
    yield small
    if best is zero:
        yield replace(between, number="λ = 0 is the best", verdict="undecided", note=picked)
    else:
        between = between.on(accuracy_difference(best, zero))
        yield replace(between, note=f"{between.note}; {picked}")


def _proposition(data: DataSet) -> Iterator[Claim]:
    claim = Claim("Proposition 1 holds for every class", "Section 4.2")
    found = [run.summary.theory.proposition1 for run in data.runs]
    done = [(one.holds, one.of) for one in found if one.holds is not None and one.of]
    if not done:
        yield replace(claim, note="needs training embeddings in the summaries")
        return
    held, total = sum(h for h, _ in done), sum(n for _, n in done)
    number, verdict = f"{held} of {total} classes in {len(done)} run(s)", HOLDS if held == total else "contradicted"
    yield replace(claim, number=number, verdict=verdict, note="a theorem: it must hold")


_LESS = "Margins vary less under ELM than under {}"
_FAR = "d_max (training data, over the largest norm) is larger under {} than under {}"
_TIGHT = "Tail classes are tighter under ELM than under LogAdj (d_max of the tail)"
_NEAR = "k-NN on the embeddings is better under ELM than under {}"
CLAIMS: list[Callable[[DataSet], Iterable[Claim]]] = [
    Statement("ELM is above LogAdj overall", "Table 2", "elm", "logadj", _accuracy),
    Statement("ELM is above LogAdj on the torso", "Figure 2", "elm", "logadj", _accuracy, "torso"),
    Statement("ELM is above LogAdj on the tail", "Figure 2", "elm", "logadj", _accuracy, "tail"),
    _beyond_the_paper,
    Statement("A logit margin helps: LogAdj is above CE", "Table 2", "logadj", "ce", _accuracy),
    Statement("A logit margin helps: LDAM + DRW is above CE", "Table 2", "ldam-drw", "ce", _accuracy),
    Statement("An embedding margin helps: one-stage DRO-LT is above CE", "Table 2", "dro-lt", "ce", _accuracy),
    Statement("Both margins are better than one: ELM is above one-stage DRO-LT", "Table 2", "elm", "dro-lt", _accuracy),
    Statement("LogAdj gains over CE on the torso", "Figure 2", "logadj", "ce", _accuracy, "torso"),
    Statement("LogAdj gains over CE on the tail", "Figure 2", "logadj", "ce", _accuracy, "tail"),
    Statement("… at the expense of the head: CE is above LogAdj there", "Figure 2", "ce", "logadj", _accuracy, "head"),
    Statement(_LESS.format("LogAdj"), "Figures 3 and 6", "elm", "logadj", _variances),
    Statement(_LESS.format("CE"), "Figures 3 and 6", "elm", "ce", _variances),
    Statement(_FAR.format("DRO-LT", "CE"), "Figure 4", "dro-lt", "ce", _distance),
    Statement(_FAR.format("CE", "ELM"), "Figure 4", "ce", "elm", _distance),
    Statement(_FAR.format("LogAdj", "ELM"), "Figure 4", "logadj", "elm", _distance),
    Statement(_TIGHT, "Section 5", "logadj", "elm", _distance, "tail"),
    _strength,
    Statement(_NEAR.format("LogAdj"), "Section 4.1", "elm", "logadj", _neighbours),
    Statement(_NEAR.format("CE"), "Section 4.1", "elm", "ce", _neighbours),
    _proposition,
]


def in_words(data: DataSet, claims: Sequence[Claim]) -> str:
    """In plain words: which claims the runs confirm, which not, which they cannot decide, and at what scale."""
    seeds = sorted({len(group.runs) for group in data.comparable})
    epochs = sorted({group.first.epochs for group in data.comparable if group.first.epochs is not None})
    scale = f"{_span(epochs)} epochs" if epochs else "an unknown number of epochs"
    if data.name in paper.TABLE3:
        scale += f" (the paper: {paper.TABLE3[data.name].epochs})"
    said = [f"The runs compared had {scale} and {_span(seeds)} seed{'' if seeds == [1] else 's'} a configuration."]
    words = {
        "confirmed": "Confirmed",
        "consistent": "Consistent with the runs",
        HOLDS: "Theorem",
        "contradicted": "Contradicted",
        "undecided": "Undecided",
        ONE_SEED: "Undecided with one seed",
        NOT_TESTED: "Not tested",
    }
    for verdict, word in words.items():
        if texts := [claim.text for claim in claims if claim.verdict == verdict and claim.where != OURS]:
            said.append(f"{word}: {'; '.join(texts)}.")
    if beyond := [f"{claim.text}: {claim.verdict}" for claim in claims if claim.where == OURS]:
        said.append(f"Beyond the paper: {'; '.join(beyond)}.")
    return " ".join(said)


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


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
        most: dict[tuple[int, str], int] = {}  # by length and network: one seed at two lengths is not two seeds
        for group in (g for d in sets if d.name == name and d.published for g in d.groups):
            if group.method == method and not group.changed:
                other = "" if group.first.model == paper.TABLE3[name].model else f", {group.first.model}"
                way = (group.first.epochs or 0, other)
                most[way] = max(most.get(way, 0), len(group.runs))
        said = [
            f"{n} seed{'' if n == 1 else 's'}" + (f" ({epochs} epochs{other})" if other or len(most) > 1 else "")
            for (epochs, other), n in sorted(most.items(), reverse=True)
        ]
        return ", ".join(said) or "not run"

    rows: list[Cells] = [
        {"Method": row.title, **{title: seeds(row.method, name) for name, title in paper.DATASETS.items()}}
        for row in paper.TABLE2
    ]
    return Table.of("coverage", "The paper's comparison: what was run and what was not", rows)
