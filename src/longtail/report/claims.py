"""The paper's claims, each as a number from the runs with a verdict.

Verdicts: *confirmed* and *contradicted* as far as ``RULE`` says, which is printed below the table, since not every
number has the same kind of interval; *undecided* otherwise; *not applicable* for an empty group; *not tested* with what
would be needed. A claim is tested at the methods' default knobs and under equal model, epochs and recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runs.read import Run, circumstances
from ..runs.schema import Numbers
from . import paper, tradeoff
from .comparison import (
    Difference,
    accuracy_difference,
    accuracy_of,
    pair,
    paired_runs,
    partner,
    rate_difference,
    spread_of_training,
    value_difference,
)
from .grouping import SHORT, DataSet, Group, knob_text, slug
from .table import Cell, Table

NOT_TESTED = "not tested"
HOLDS = "holds"
OURS = "ours, not the paper's"
RULE = (
    "“Confirmed” and “contradicted” need a 95 % interval without 0 and all paired seeds on one side. Intervals are "
    "over test samples (accuracies) or classes (margin variances, d_max). Where configurations have several seeds, "
    "their pooled spread is included, with Student's quantile: what training by chance does to a difference, be it of "
    "single seeds. Otherwise “one seed” means that the luck of training is not covered. Many claims are tested and no "
    "interval is widened for that."
)


@dataclass(frozen=True)
class Claim:
    """What the paper says and where, what the runs say, and the verdict."""

    text: str
    where: str
    number: str
    verdict: str
    note: str = ""


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
    return found


def table(data: DataSet, claims: Sequence[Claim]) -> Table:
    rows: list[list[Cell]] = [[c.text, c.where, c.number, c.verdict, c.note] for c in claims]
    columns = ["The paper's claim", "Where", "Our number", "Verdict", "Remark"]
    return Table(f"claims-{slug(data.title)}", f"The paper's claims on {data.title}", columns, rows, RULE)


def _compared(data: DataSet, text: str, where: str, first: str, second: str, part: str = "balanced") -> Claim:
    """A claim that the first method's accuracy is above the second's."""
    if part != "balanced" and not data.sizes[part]:
        return Claim(text, where, "–", "not applicable", f"no classes in the {part}")
    groups = pair(data, first, second)
    if isinstance(groups, str):
        return Claim(text, where, "–", NOT_TESTED, groups)
    return _verdict(text, where, _above(data, *groups, part))


def _above(data: DataSet, first: Group, second: Group, part: str = "balanced") -> Difference | None:
    """Accuracy of the first less that of the second, over test samples and seeds."""
    found = accuracy_difference(first, second, part)
    return found and found.widened(spread_of_training(data, first, second, lambda run: accuracy_of(run, part)))


def _verdict(text: str, where: str, difference: Difference | None) -> Claim:
    if difference is None:
        return Claim(text, where, "–", NOT_TESTED, "the runs' summaries lack the number")
    return Claim(text, where, difference.points(), difference.verdict, difference.how)


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
                    yield _verdict(text, OURS, _above(data, group, other, part))
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
    found = tradeoff.difference(data, group, logadj, "tail")
    if found is not None:
        yield _verdict(f"{group.label} is above LogAdj on the tail at equal accuracy of the head", OURS, found)


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
    variance = lambda run: run.diagnostics.margin_variance.get(split)  # noqa: E731
    ours, theirs = (_class_values(g.runs, variance) for g in (elm, other))
    if ours is None or theirs is None:
        return Claim(text, where, "–", NOT_TESTED, f"the summaries hold no margin variances of {split} samples")
    each = [_class_values([run], variance) for run in (*elm.runs, *other.runs)]
    both = np.all([values > 0 for values in each if values is not None], 0)  # NaN (a class without samples) is false
    if both.sum() < 2:
        return Claim(text, where, "–", NOT_TESTED, "fewer than two classes have a margin variance in both")
    logs = np.log(ours[both] / theirs[both])

    def size(run: Run) -> float | None:
        """How large a run's margin variances are, as a logarithm."""
        values = _class_values([run], variance)
        return None if values is None or not (values[both] > 0).all() else float(np.log(values[both]).mean())

    seeds = value_difference(other, elm, size)
    assert seeds is not None  # in the classes of ``both`` every run has a variance
    how = "geometric mean over classes; not independent of the logits' scale"
    found = Difference(*_interval(-logs), seeds.by_seed, how)
    found = found.widened(spread_of_training(data, elm, other, size))
    ends = [math.exp(-v) for v in (found.value, found.high or 0.0, found.low or 0.0)]
    number = "variance × {:.3f} [{:.3f}, {:.3f}]".format(*ends)
    number += f", smaller in {int((logs < 0).sum())} of {logs.size} classes"
    return Claim(text, where, number, found.verdict, found.how)


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval of two or more values, one a class."""
    from scipy import stats  # takes long to import

    # Student's quantile: with few classes their spread is known from as few numbers
    width = float(stats.t.ppf(0.975, values.size - 1)) * float(values.std(ddof=1)) / math.sqrt(values.size)
    middle = float(values.mean())
    return middle, middle - width, middle + width


def _class_values(runs: Sequence[Run], values: Callable[[Run], Numbers | None]) -> np.ndarray | None:
    """A per-class diagnostic, mean over runs; NaN where a class has none, None where a run has it for no class."""
    rows = [row for run in runs if (row := values(run)) is not None]
    if len(rows) < len(runs):
        return None
    means: np.ndarray = np.asarray(rows, dtype=float).mean(0)  # None becomes NaN
    return means


def _distances(run: Run) -> Numbers | None:
    return run.diagnostics.dmax.by_class


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
    both = list(zip(*paired_runs(*groups)))
    members = slice(None) if part is None else data.counts.groups()[part].numpy()
    kept = [[_class_values([run], _distances) for run in runs] for runs in both]
    if any(row is None for rows in kept for row in rows):
        return _distance_of_samples(data, text, where, groups, part)
    one, two = (np.asarray(rows)[:, members] for rows in kept)  # (seeds, classes)
    known = ~np.isnan(one - two).any(0)
    if known.sum() < 2:
        return Claim(text, where, "–", NOT_TESTED, "fewer than two classes have a d_max in both")
    gaps = (one - two)[:, known]
    middle, low, high = _interval(gaps.mean(0))
    difference = Difference(middle, low, high, tuple(gaps.mean(1).tolist()), "mean over classes, interval over classes")

    def mean(run: Run) -> float | None:
        values = _class_values([run], _distances)
        found = math.nan if values is None else float(values[members][known].mean())
        return None if math.isnan(found) else found

    difference = difference.widened(spread_of_training(data, *groups, mean))
    number = f"{one[:, known].mean():.4f} against {two[:, known].mean():.4f} ({difference.text(digits=4)})"
    number += f", larger in {int((gaps.mean(0) > 0).sum())} of {gaps.shape[1]} classes"
    return Claim(text, where, number, difference.verdict, difference.how)


def _distance_of_samples(data: DataSet, text: str, where: str, groups: tuple[Group, Group], part: str | None) -> Claim:
    """The same from runs which kept no d_max by class: their one number, with an interval over seeds alone."""

    def value(run: Run) -> float | None:
        dmax = run.diagnostics.dmax
        return dmax.mean if part is None else dmax.mean_by_group.get(part)

    difference = value_difference(*groups, value)
    if difference is None:
        return Claim(text, where, "–", NOT_TESTED, "the runs' summaries lack the number")
    sides = [
        math.fsum(v for run in runs if (v := value(run)) is not None) / len(runs) for runs in zip(*paired_runs(*groups))
    ]
    difference = difference.widened(spread_of_training(data, *groups, value))
    number = f"{sides[0]:.4f} against {sides[1]:.4f} ({difference.text(digits=4)})"
    return Claim(text, where, number, difference.verdict, "over seeds alone: the runs kept no d_max by class")


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
        claim = _verdict(texts[0], where, _above(data, sweep.groups[best], sweep.groups[-1]))
        at = f"λ = {knob_text(sweep.values[best])} against {knob_text(sweep.values[-1])}: "
        yield Claim(claim.text, where, at + claim.number, claim.verdict, f"{claim.note}; {picked}")
    zero = sweep.groups[0] if sweep.values[0] == 0 else partner(sweep.groups[0], data.plain("logadj"))
    positive = [g for g, v in zip(sweep.groups, sweep.values) if isinstance(v, (int, float)) and v > 0]
    if zero is None or not positive:
        lack = "needs a run of elm with lam=0, or of logadj under the same recipe"
        yield from (Claim(text, where, "–", NOT_TESTED, lack) for text in texts[1:])
        return
    small = _above(data, positive[0], zero)
    claim = _verdict(texts[1], where, small)
    if small is not None:  # sameness is never proven: the interval says how large a difference could hide
        verdict = "consistent" if small.verdict == "undecided" else "contradicted"
        claim = Claim(texts[1], where, claim.number, verdict, f"{small.how}; the paper writes “standard cross-entropy”")
    yield claim
    claim = _verdict(texts[2], where, _above(data, sweep.groups[best], zero))
    yield Claim(claim.text, where, claim.number, claim.verdict, f"{claim.note}; {picked}")


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
        difference = rate_difference(data, *groups, value, size, "unpaired, binomial")
        if difference is None:
            yield Claim(text, "Section 4.1", "–", NOT_TESTED, "the summaries hold no k-NN accuracy")
        else:
            yield _verdict(text, "Section 4.1", difference)


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
            by_verdict.setdefault(claim.verdict.split(" (")[0], []).append(claim.text)
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
        NOT_TESTED: "Not tested",
    }
    said += [f"{word}: {'; '.join(by_verdict[verdict])}." for verdict, word in words.items() if verdict in by_verdict]
    if beyond:
        said.append(f"Beyond the paper: {'; '.join(beyond)}.")
    return " ".join(said)


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
