"""The paper's claims, each as a number from the runs with a verdict.

Verdicts: *confirmed* and *contradicted* as far as ``RULE`` says, which is printed below the table, since not every
number has the same kind of interval; *undecided* otherwise; *not applicable* for an empty group; *not tested* with what
would be needed. A claim is tested at the methods' default knobs and under equal model, epochs and recipe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..runs.identity import circumstances
from ..runs.read import Run
from ..runs.schema import Numbers
from . import paper
from .comparison import (
    ONE_SEED,
    Difference,
    accuracy_difference,
    class_difference,
    difference_at_equal_head,
    holm,
    over_seeds,
    pair,
    partner,
    rate_difference,
)
from .grouping import SHORT, DataSet, Group, knob_text
from .table import Column, Table

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
    number: str
    verdict: str
    note: str = ""
    difference: Difference | None = None
    p: float | None = None


@dataclass(frozen=True)
class Sweep:
    """Groups which differ in one knob only, in ascending order of its value."""

    method: str
    knob: str
    values: list[Any]
    groups: list[Group]


def check(data: DataSet) -> list[Claim]:
    """All claims on one data set."""
    found = list(_accuracy_claims(data))
    found += _margin_claims(data)
    found += _distance_claims(data)
    found += _strength_claims(data)
    found += _neighbour_claims(data)
    found.append(_proposition(data))
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
    columns: list[Column[Claim]] = [
        Column("The paper's claim", lambda claim: claim.text),
        Column("Where", lambda claim: claim.where),
        Column("Our number", lambda claim: claim.number),
        Column(
            "p (Holm)", lambda claim: None if claim.p is None else f"{claim.p:.3f}" if claim.p >= 0.001 else "< 0.001"
        ),
        Column("Verdict", lambda claim: claim.verdict),
        Column("Remark", lambda claim: claim.note),
    ]
    return Table.of(f"claims-{data.slug}", f"The paper's claims on {data.title}", claims, columns, RULE)


def _compared(data: DataSet, text: str, where: str, first: str, second: str, part: str = "balanced") -> Claim:
    """A claim that the first method's accuracy is above the second's."""
    if part != "balanced" and not data.sizes[part]:
        return Claim(text, where, "–", "not applicable", f"no classes in the {part}")
    groups = pair(data, first, second)
    if isinstance(groups, str):
        return Claim(text, where, "–", NOT_TESTED, groups)
    return _above(text, where, accuracy_difference(*groups, part))


def _above(text: str, where: str, difference: Difference | None) -> Claim:
    """A claim that a difference of accuracies is positive."""
    if difference is None:
        return Claim(text, where, "–", NOT_TESTED, "the runs' summaries lack the number")
    return Claim(text, where, difference.points(), "", difference.how, difference)


def _accuracy_claims(data: DataSet) -> Iterator[Claim]:
    yield _compared(data, "ELM is above LogAdj overall", "Table 2", "elm", "logadj")
    for part in ("torso", "tail"):
        yield _compared(data, f"ELM is above LogAdj on the {part}", "Figure 2", "elm", "logadj", part)
    groups = pair(data, "elm", "logadj")
    if not isinstance(groups, str):
        yield from _at_equal_head(data, *groups)
    # Variants of ELM which change more than its strength, such as a memory of positives, are not the paper's: said so.
    for group in data.groups:
        if group.method == "elm" and set(group.changed) - {"lam", "alpha", "tau"}:
            other = partner(group, data.plain("logadj"))
            for part in ("balanced", "torso", "tail") if other else ():
                where = "overall" if part == "balanced" else f"on the {part}"
                if other is not None and (part == "balanced" or data.sizes[part]):
                    text = f"{group.label} is above LogAdj {where}"
                    yield _above(text, OURS, accuracy_difference(group, other, part))
            if other is not None:
                yield from _at_equal_head(data, group, other)
    yield _compared(data, "A logit margin helps: LogAdj is above CE", "Table 2", "logadj", "ce")
    yield _compared(data, "A logit margin helps: LDAM + DRW is above CE", "Table 2", "ldam-drw", "ce")
    yield _compared(data, "An embedding margin helps: one-stage DRO-LT is above CE", "Table 2", "dro-lt", "ce")
    yield _compared(data, "Both margins are better than one: ELM is above one-stage DRO-LT", "Table 2", "elm", "dro-lt")
    for part in ("torso", "tail"):
        yield _compared(data, f"LogAdj gains over CE on the {part}", "Figure 2", "logadj", "ce", part)
    yield _compared(data, "… at the expense of the head: CE is above LogAdj there", "Figure 2", "ce", "logadj", "head")


def _at_equal_head(data: DataSet, group: Group, logadj: Group) -> Iterator[Claim]:
    """Whether a gain or loss on the tail is more than another balance between head and tail."""
    found = difference_at_equal_head(data, group, logadj, "tail")
    if found is not None:
        yield _above(f"{group.label} is above LogAdj on the tail at equal accuracy of the head", OURS, found)


def _margin_claims(data: DataSet) -> Iterator[Claim]:
    for other in ("logadj", "ce"):
        text = f"Margins vary less under ELM than under {SHORT[other]}"
        groups = pair(data, "elm", other)
        if isinstance(groups, str):
            yield Claim(text, "Figures 3 and 6", "–", NOT_TESTED, groups)
            continue
        for split in ("test", "train"):
            yield _variance_claim(data, f"{text} ({split} samples)", *groups, split)


def _variance_claim(data: DataSet, text: str, elm: Group, other: Group, split: str) -> Claim:
    where = "Figures 3 and 6"
    sizes = data.first.split.counts if split == "train" else data.first.summary.test.per_class_n

    def logs(run: Run) -> Numbers | None:
        values = run.diagnostics.margin_variance.get(split)
        return values and [math.log(v) if v else None for v in values]

    enough = np.asarray(sizes if sizes is not None else [FEWEST] * data.counts.num_classes) >= FEWEST
    how = "geometric mean over classes; not independent of the logits' scale"
    found = class_difference(elm, other, logs, enough, how)
    if found is None:
        lack = f"needs margin variances of {split} samples in two or more classes of at least {FEWEST} samples"
        return Claim(text, where, "–", NOT_TESTED, lack)
    difference, gaps = found
    number = f"variance × {math.exp(difference.value):.3f}"
    if difference.interval is not None:
        number += " [{:.3f}, {:.3f}]".format(*map(math.exp, difference.interval))
    if len(difference.by_seed) > 1:
        number += f", by seed × {', × '.join(f'{math.exp(d):.3f}' for d in difference.by_seed)}"
    number += f", smaller in {int((gaps < 0).sum())} of {gaps.size} classes"
    smaller = replace(difference, value=-difference.value, by_seed=tuple(-d for d in difference.by_seed))
    return Claim(text, where, number, "", difference.how, smaller)


def _distance_claims(data: DataSet) -> Iterator[Claim]:
    for first, second in (("dro-lt", "ce"), ("ce", "elm"), ("logadj", "elm")):
        text = f"d_max (training data, over the largest norm) is larger under {SHORT[first]} than under {SHORT[second]}"
        yield _distance_claim(data, text, "Figure 4", first, second)
    text = "Tail classes are tighter under ELM than under LogAdj (d_max of the tail)"
    yield _distance_claim(data, text, "Section 5", "logadj", "elm", "tail")


def _distance_claim(data: DataSet, text: str, where: str, first: str, second: str, part: str | None = None) -> Claim:
    """A claim that d_max, mean over the classes (of one group), is larger under the first method."""
    if part is not None and not data.sizes[part]:
        return Claim(text, where, "–", "not applicable", f"no classes in the {part}")
    groups = pair(data, first, second)
    if isinstance(groups, str):
        return Claim(text, where, "–", NOT_TESTED, groups)
    members = np.ones(data.counts.num_classes, dtype=bool)
    if part is not None:
        members = np.isin(np.arange(members.size), data.members[part])
    found = class_difference(*groups, lambda run: run.diagnostics.dmax.by_class, members, "mean over classes")
    if found is None:
        return _distance_of_samples(data, text, where, groups, part)
    difference, gaps = found
    number = f"{difference.text(digits=4)}, larger in {int((gaps > 0).sum())} of {gaps.size} classes"
    return Claim(text, where, number, "", difference.how, difference)


def _distance_of_samples(data: DataSet, text: str, where: str, groups: tuple[Group, Group], part: str | None) -> Claim:
    """The same from runs which kept no d_max by class: their one number, with an interval over seeds alone."""

    def value(run: Run) -> float | None:
        dmax = run.diagnostics.dmax
        return dmax.mean if part is None else dmax.mean_by_group.get(part) if data.parts.stored else None

    difference = over_seeds(*groups, value, "the runs kept no d_max by class")
    if difference is None:
        return Claim(text, where, "–", NOT_TESTED, "the runs' summaries lack the number")
    return Claim(text, where, difference.text(digits=4), "", difference.how, difference)


def sweeps(data: DataSet) -> list[Sweep]:
    """Every knob of which at least three values were run with all else equal; the widest sweep of each knob."""
    best: dict[tuple[str, str], Sweep] = {}
    for group in data.groups:
        for knob in group.first.knobs:
            rest = _all_but(group, knob)
            same = {knob_text(g.first.knobs[knob]): g for g in data.groups if _all_but(g, knob) == rest}
            if len(same) < 3 or len(same) <= len(best.get((group.method, knob), Sweep("", "", [], [])).groups):
                continue
            ordered = sorted(same.values(), key=lambda g, knob=knob: _sort_key(g.first.knobs[knob]))  # type: ignore[misc]
            best[group.method, knob] = Sweep(group.method, knob, [g.first.knobs[knob] for g in ordered], ordered)
    return list(best.values())


def _all_but(group: Group, knob: str) -> tuple[Any, ...] | None:
    knobs = group.first.knobs
    if knob not in knobs:
        return None
    others = {k: v for k, v in knobs.items() if k != knob}
    return group.method, others, circumstances(group.first)


def _sort_key(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, knob_text(value))


def _strength_claims(data: DataSet) -> Iterator[Claim]:
    where = "Figure 7"
    texts = (
        "Too large a λ hurts: the best λ is above the largest",
        "Too small a λ does nothing: the smallest λ > 0 is as good as λ = 0 (LogAdj)",
        "A λ in between gains over λ = 0 (LogAdj)",
    )
    sweep = next((s for s in sweeps(data) if s.method == "elm" and s.knob == "lam"), None)
    if sweep is None:
        lack = "needs runs of elm with at least three values of lam, all else equal"
        yield from (Claim(text, where, "–", NOT_TESTED, lack) for text in texts)
        return
    best, picked = _best(sweep)
    if best == len(sweep.groups) - 1:
        number = f"the largest λ tried, {knob_text(sweep.values[-1])}, is the best"
        yield Claim(texts[0], where, number, "undecided", "try larger values")
    else:
        claim = _above(texts[0], where, accuracy_difference(sweep.groups[best], sweep.groups[-1]))
        at = f"λ = {knob_text(sweep.values[best])} against {knob_text(sweep.values[-1])}: "
        yield replace(claim, number=at + claim.number, note=f"{claim.note}; {picked}")
    zero = sweep.groups[0] if sweep.values[0] == 0 else partner(sweep.groups[0], data.plain("logadj"))
    positive = [g for g, v in zip(sweep.groups, sweep.values) if isinstance(v, (int, float)) and v > 0]
    if zero is None or not positive:
        lack = "needs a run of elm with lam=0, or of logadj under the same recipe"
        yield from (Claim(text, where, "–", NOT_TESTED, lack) for text in texts[1:])
        return
    claim = _above(texts[1], where, accuracy_difference(positive[0], zero))
    if claim.difference is not None:
        claim = replace(claim, verdict=SAME, note=f"{claim.note}; the paper writes “standard cross-entropy”")
    yield claim
    if sweep.groups[best] is zero:
        yield Claim(texts[2], where, "λ = 0 is the best", "undecided", picked)
    else:
        claim = _above(texts[2], where, accuracy_difference(sweep.groups[best], zero))
        yield replace(claim, note=f"{claim.note}; {picked}")


def _best(sweep: Sweep) -> tuple[int, str]:
    """Which value is best, by validation data where every run has it, else by test, and how that was chosen."""
    scores = [group.stat(lambda run: run.summary.val.balanced) for group in sweep.groups]
    if all(score is not None for score in scores):
        means = [score.mean for score in scores if score is not None]
        return int(np.argmax(means)), f"best of {len(means)} values by validation data"
    tests = [group.balanced.mean for group in sweep.groups]
    return int(np.argmax(tests)), f"best of {len(tests)} values by these very test results, so the gain is flattered"


def _neighbour_claims(data: DataSet) -> Iterator[Claim]:
    for other in ("logadj", "ce"):
        text = f"k-NN on the embeddings is better under ELM than under {SHORT[other]}"
        groups = pair(data, "elm", other)
        if isinstance(groups, str):
            yield Claim(text, "Section 4.1", "–", NOT_TESTED, groups)
            continue
        size = groups[0].first.summary.test.n or 0
        value = lambda run: run.diagnostics.knn.balanced  # noqa: E731
        yield _above(text, "Section 4.1", rate_difference(*groups, value, size, "unpaired, binomial"))


def _proposition(data: DataSet) -> Claim:
    text, where = "Proposition 1 holds for every class", "Section 4.2"
    found = [run.summary.theory.proposition1 for run in data.runs]
    done = [(one.holds, one.of) for one in found if one.holds is not None and one.of]
    if not done:
        return Claim(text, where, "–", NOT_TESTED, "needs training embeddings in the summaries")
    held, total = sum(h for h, _ in done), sum(n for _, n in done)
    number = f"{held} of {total} classes in {len(done)} run(s)"
    return Claim(text, where, number, HOLDS if held == total else "contradicted", "a theorem: it must hold")


def in_words(data: DataSet, claims: Sequence[Claim]) -> str:
    """In plain words: which claims the runs confirm, which not, which they cannot decide, and at what scale."""
    by_verdict: dict[str, list[str]] = {}
    beyond = []
    for claim in claims:
        if claim.where == OURS:
            beyond.append(f"{claim.text}: {claim.verdict}")
        else:
            by_verdict.setdefault(claim.verdict, []).append(claim.text)
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
    said += [f"{word}: {'; '.join(by_verdict[verdict])}." for verdict, word in words.items() if verdict in by_verdict]
    if beyond:
        said.append(f"Beyond the paper: {'; '.join(beyond)}.")
    return " ".join(said)


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
