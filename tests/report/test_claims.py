"""Claims: the numbers are those of the paired comparison, and a verdict says no more than they allow."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from fake_runs import SMALL, edit, make_run, predictions
from longtail import ClassCounts
from longtail.evaluate import accuracy
from longtail.report import claims, comparison
from longtail.report.comparison import Difference, accuracy_difference, pair
from longtail.report.grouping import datasets
from longtail.runs.read import find


def read(path):
    (data,) = datasets(find([path]).runs)
    return data


def set_distances(run, values):
    summary = json.loads((run / "summary.json").read_text())
    summary["diagnostics"]["dmax"]["by_class"] = values
    (run / "summary.json").write_text(json.dumps(summary))


def by_text(data):
    return {claim.text: claim for claim in claims.check(data)}


SEEDS = 4


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    root = tmp_path_factory.mktemp("four")
    for method in ("ce", "logadj", "elm", "dro-lt"):
        for seed in range(SEEDS):
            make_run(root / f"{method}-{seed}", method, seed=seed)
    return read(root)


def test_the_difference_is_the_paired_comparison(four):
    elm, logadj = pair(four, "elm", "logadj")
    found = accuracy_difference(elm, logadj, "tail")
    right, labels = {}, None
    for method in ("elm", "logadj"):
        rows = []
        for seed in range(SEEDS):
            test = predictions(method, seed=seed).test
            rows.append((test.logits.argmax(1) == test.labels).numpy())
            labels = test.labels
        right[method] = np.stack(rows)
    wanted = accuracy.compare(right["elm"], right["logadj"], labels, ClassCounts(SMALL)).difference["tail"]
    assert (found.value, found.low, found.high) == pytest.approx(tuple(wanted))
    assert found.how == "paired over test samples"
    assert found.seeds == SEEDS


def test_without_kept_bits_the_interval_is_unpaired_and_wider(four, tmp_path):
    for method in ("elm", "logadj"):
        run = make_run(tmp_path / method, method)
        summary = json.loads((run / "summary.json").read_text())
        del summary["test"]["correct"]
        (run / "summary.json").write_text(json.dumps(summary))
    elm, logadj = pair(read(tmp_path), "elm", "logadj")
    loose = accuracy_difference(elm, logadj)
    assert loose.how.startswith("unpaired")
    pairs = [g for g in four.groups if g.method in ("elm", "logadj")]
    tight = accuracy_difference(*sorted((g for g in pairs), key=lambda g: g.method))
    assert loose.high - loose.low > tight.high - tight.low
    assert loose.low < tight.value < loose.high


def test_other_test_samples_are_not_paired(tmp_path):
    make_run(tmp_path / "elm", "elm")
    make_run(tmp_path / "logadj", "logadj", fingerprint="another")
    assert accuracy_difference(*pair(read(tmp_path), "elm", "logadj")).how.startswith("unpaired")


def test_verdicts_need_an_interval_without_zero_and_seeds_that_agree():
    agree, differ = (0.05, 0.1, 0.15), (-0.1, 0.1, 0.3)
    assert Difference(0.1, 0.05, 0.15, agree, "").verdict == "confirmed"
    assert Difference(-0.1, -0.15, -0.05, (-0.1, -0.1), "").verdict == "contradicted"
    assert Difference(0.1, 0.05, 0.15, (0.1,), "").verdict == "confirmed (one seed)"
    assert Difference(0.1, -0.05, 0.25, agree, "").verdict == "undecided"
    assert Difference(0.1, 0.05, 0.15, differ, "").verdict == "undecided"
    assert Difference(0.1, 0.05, 0.15, (0.0, 0.2), "").verdict == "undecided"
    assert Difference(0.1, None, None, agree, "").verdict == "confirmed"
    assert Difference(0.1, None, None, (0.1,), "").verdict == "undecided"


def test_few_seeds_are_listed_and_of_many_it_is_said_how_many_agree():
    start = "+1.23 points [+1.00, +2.00]"
    assert Difference(0.0123, 0.01, 0.02, (0.0123,), "").points() == start
    assert Difference(0.0123, 0.01, 0.02, (-0.01, 0.0346), "").points() == f"{start}, by seed -1.00, +3.46"
    assert Difference(0.0123, 0.01, 0.02, (-0.01, *[0.0162] * 6), "").points() == f"{start}, same sign in 6 of 7 seeds"


def test_the_papers_claims_on_runs_drawn_as_it_says(four):
    found = by_text(four)
    for text in (
        "ELM is above LogAdj overall",
        "A logit margin helps: LogAdj is above CE",
        "Margins vary less under ELM than under LogAdj (test samples)",
        "d_max (training data, over the largest norm) is larger under DRO-LT than under CE",
        "d_max (training data, over the largest norm) is larger under CE than under ELM",
        "k-NN on the embeddings is better under ELM than under CE",
    ):
        assert found[text].verdict == "confirmed", found[text]
    assert found["Proposition 1 holds for every class"].verdict == claims.HOLDS
    assert "Theorem: Proposition 1 holds" in claims.in_words(four, claims.check(four))
    assert found["An embedding margin helps: one-stage DRO-LT is above CE"].verdict in ("contradicted", "undecided")


def naive_spread(data, value):
    """What the pooled spread of all seeds adds to a difference, from the formula."""
    values = [[value(run) for run in group.runs] for group in data.groups]
    pooled = np.mean([np.var(v, ddof=1) for v in values]) ** 0.5
    return stats.t.ppf(0.975, len(data.groups) * (SEEDS - 1)) * pooled * (2 / SEEDS) ** 0.5


def test_the_spread_of_seeds_widens_an_interval(four):
    elm, logadj = pair(four, "elm", "logadj")
    narrow = accuracy_difference(elm, logadj, "tail")
    wide = naive_spread(four, lambda run: run.group_accuracy("tail"))
    low, high = (
        narrow.value - np.hypot(narrow.value - narrow.low, wide),
        narrow.value + np.hypot(narrow.high - narrow.value, wide),
    )
    claim = by_text(four)["ELM is above LogAdj on the tail"]
    assert claim.number.startswith(f"{100 * narrow.value:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]")
    assert claim.note == "paired over test samples; spread of seeds included"


def test_the_spread_of_other_configurations_holds_for_single_seeds_too(tmp_path):
    """A difference of single seeds, clear over test samples, is undecided where a third method's seeds vary as much."""
    make_run(tmp_path / "elm", "elm")
    make_run(tmp_path / "logadj", "logadj")
    text = "ELM is above LogAdj overall"
    assert by_text(read(tmp_path))[text].verdict == "confirmed (one seed)"
    for seed in range(2):
        run = make_run(tmp_path / f"ce-{seed}", "ce", seed=seed)
        test = json.loads((run / "summary.json").read_text())["test"]
        edit(run, "summary.json", test={**test, "balanced": 0.5 + 0.2 * seed})
    claim = by_text(read(tmp_path))[text]
    assert (claim.verdict, claim.note) == ("undecided", "paired over test samples; spread of seeds included")


def test_an_interval_of_seeds_alone_is_an_interval():
    found = Difference(0.1, None, None, (0.1, 0.1), "mean over seeds").widened(0.2)
    assert (found.low, found.high, found.verdict) == (pytest.approx(-0.1), pytest.approx(0.3), "undecided")
    assert Difference(0.1, 0.05, 0.15, (0.1,), "").widened(None) == Difference(0.1, 0.05, 0.15, (0.1,), "")


FAR = "d_max (training data, over the largest norm) is larger under CE than under ELM"
TIGHT = "Tail classes are tighter under ELM than under LogAdj (d_max of the tail)"


def test_d_max_has_the_interval_of_its_classes(four):
    ce, elm = pair(four, "ce", "elm")
    rows = [[run.diagnostics.dmax.by_class for run in group.runs] for group in (ce, elm)]
    gaps = np.mean(rows[0], 0) - np.mean(rows[1], 0)
    half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    half = np.hypot(half, naive_spread(four, lambda run: np.mean(run.diagnostics.dmax.by_class)))
    low, high = gaps.mean() - half, gaps.mean() + half
    claim = by_text(four)[FAR]
    seeds = ", ".join(f"{np.mean(a) - np.mean(b):+.4f}" for a, b in zip(*rows))
    assert f"({gaps.mean():+.4f} [{low:+.4f}, {high:+.4f}], by seed {seeds})" in claim.number
    assert claim.number.endswith(f"larger in {(gaps > 0).sum()} of {len(gaps)} classes")


def test_a_difference_of_d_max_that_the_classes_do_not_share_is_undecided(tmp_path):
    for method, tail in {"logadj": [0.3, 0.7], "elm": [0.65, 0.4]}.items():
        set_distances(make_run(tmp_path / method, method), [0.9, 0.5, 0.5, 0.5, *tail])
    claim = by_text(read(tmp_path))[TIGHT]
    assert claim.verdict == "undecided"
    assert "[-" in claim.number


def test_runs_that_kept_no_d_max_by_class_have_an_interval_over_seeds_and_one_seed_decides_nothing(tmp_path):
    means = {"ce": [0.5, 0.52], "elm": [0.2, 0.23]}
    for method, values in means.items():
        for seed, value in enumerate(values):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            summary = json.loads((run / "summary.json").read_text())
            dmax = {**summary["diagnostics"]["dmax"], "mean": value, "by_class": None}
            edit(run, "summary.json", diagnostics={**summary["diagnostics"], "dmax": dmax})
    claim = by_text(read(tmp_path))[FAR]
    assert (claim.verdict, claim.note) == ("confirmed", "over seeds alone: the runs kept no d_max by class")
    half = 4.30265 * ((0.02**2 / 2 + 0.03**2 / 2) / 2) ** 0.5  # t, 97.5 %, 2 degrees of freedom; √(2/n) is 1
    assert f"(+0.2950 [{0.295 - half:+.4f}, {0.295 + half:+.4f}], by seed +0.3000, +0.2900)" in claim.number
    for method in ("ce", "elm"):
        shutil.rmtree(tmp_path / f"{method}-1")
    claim = by_text(read(tmp_path))[FAR]
    assert claim.verdict == "undecided"
    assert "[" not in claim.number


def test_what_was_not_run_is_not_tested_and_says_what_is_needed(tmp_path):
    make_run(tmp_path / "elm", "elm")
    found = by_text(read(tmp_path))
    above = found["ELM is above LogAdj overall"]
    assert (above.verdict, above.note) == ("not tested", "needs runs of logadj")
    assert found["A logit margin helps: LDAM + DRW is above CE"].note == "needs runs of ldam-drw and ce"
    assert found["A λ in between gains over λ = 0 (LogAdj)"].verdict == "not tested"


def test_runs_of_unequal_length_are_not_compared(tmp_path):
    make_run(tmp_path / "elm", "elm", epochs=9)
    make_run(tmp_path / "logadj", "logadj", epochs=3)
    claim = by_text(read(tmp_path))["ELM is above LogAdj overall"]
    assert claim.verdict == "not tested"
    assert "same model, epochs and recipe" in claim.note
    make_run(tmp_path / "short", "elm", epochs=3)
    assert by_text(read(tmp_path))["ELM is above LogAdj overall"].verdict == "confirmed (one seed)"


def test_variances_of_few_classes_have_a_wide_interval(tmp_path):
    """Two ratios, .75 and .8: the normal quantile would call that certain, Student's with one degree of freedom not."""
    for method, variances in (("elm", [0.75, 0.8]), ("logadj", [1.0, 1.0])):
        run = make_run(tmp_path / method, method)
        both = variances + [None] * (len(SMALL) - 2)
        edit(run, "summary.json", diagnostics={"margin_variance": {"train": both, "test": both}})
    claim = by_text(read(tmp_path))["Margins vary less under ELM than under LogAdj (test samples)"]
    logs = np.log([0.75, 0.8])
    half = 12.7062 * logs.std(ddof=1) / 2**0.5  # t, 97.5 %, 1 degree of freedom
    low, middle, high = np.exp(logs.mean() + np.array([-half, 0, half]))
    assert claim.number == f"variance × {middle:.3f} [{low:.3f}, {high:.3f}], smaller in 2 of 2 classes"
    assert claim.verdict == "undecided"


def test_a_class_without_variance_in_one_seed_is_left_out_of_all(tmp_path):
    """Else that seed would count with another set of classes than the others."""
    for method, seeds in (("elm", [[0.5, 0.6, 0.0], [0.5, 0.6, 0.7]]), ("logadj", [[1.0, 1.1, 1.2]] * 2)):
        for seed, variances in enumerate(seeds):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            row = variances + [None] * (len(SMALL) - 3)
            edit(run, "summary.json", diagnostics={"margin_variance": {"train": row, "test": row}})
    claim = by_text(read(tmp_path))["Margins vary less under ELM than under LogAdj (test samples)"]
    middle = np.exp(np.log([0.5 / 1.0, 0.6 / 1.1]).mean())
    assert claim.number.startswith(f"variance × {middle:.3f} [")
    assert claim.number.endswith("smaller in 2 of 2 classes")


def test_an_empty_group_is_not_applicable(tmp_path):
    for method in ("elm", "logadj"):
        make_run(tmp_path / method, method, counts=(200, 150, 60))
    claim = by_text(read(tmp_path))["ELM is above LogAdj on the tail"]
    assert (claim.verdict, claim.note) == ("not applicable", "no classes in the tail")


def test_a_sweep_is_found_and_judged(tmp_path):
    tightness = {0: 1.5, 0.0001: 1.5, 0.01: 1.0, 10: 3.0}
    for lam, tight in tightness.items():
        make_run(tmp_path / f"{lam}", "elm", lam=lam, tight=tight)
    make_run(tmp_path / "memory", "elm", memory=8)  # not part of the sweep
    data = read(tmp_path)
    (sweep,) = claims.sweeps(data)
    assert (sweep.method, sweep.knob, sweep.values) == ("elm", "lam", [0, 0.0001, 0.01, 10])
    found = by_text(data)
    assert found["Too large a λ hurts: the best λ is above the largest"].verdict == "confirmed (one seed)"
    assert "flattered" in found["Too large a λ hurts: the best λ is above the largest"].note
    same = "Too small a λ does nothing: the smallest λ > 0 is as good as λ = 0 (LogAdj)"
    assert found[same].verdict == "consistent"
    assert found["A λ in between gains over λ = 0 (LogAdj)"].verdict == "confirmed (one seed)"


def test_the_best_value_is_taken_by_validation_data_where_there_is_some(tmp_path):
    for lam, val in ((0.1, 0.9), (0.2, 0.1), (0.3, 0.2)):
        edit(make_run(tmp_path / f"{lam}", "elm", lam=lam, tight=3 * lam), "summary.json", val={"balanced": val})
    (sweep,) = claims.sweeps(read(tmp_path))
    assert sweep.values == [0.1, 0.2, 0.3]
    claim = by_text(read(tmp_path))["Too large a λ hurts: the best λ is above the largest"]
    assert claim.number.startswith("λ = 0.1 against 0.3: ")
    assert "best of 3 values by validation data" in claim.note


def test_the_largest_value_being_best_decides_nothing(tmp_path):
    for lam, tight in ((0.1, 3.0), (0.2, 2.0), (0.3, 0.5)):
        make_run(tmp_path / f"{lam}", "elm", lam=lam, tight=tight)
    claim = by_text(read(tmp_path))["Too large a λ hurts: the best λ is above the largest"]
    assert (claim.verdict, claim.note) == ("undecided", "try larger values")


def test_variants_of_ours_are_marked_as_such(tmp_path):
    make_run(tmp_path / "logadj", "logadj")
    make_run(tmp_path / "memory", "elm", memory=8)
    ours = [c for c in claims.check(read(tmp_path)) if c.where == claims.OURS]
    assert [c.text for c in ours] == [
        f"ELM (memory = 8) is above LogAdj {w}"
        for w in ("overall", "on the torso", "on the tail", "on the tail at equal accuracy of the head")
    ]


def test_a_violation_of_proposition_1_would_be_seen(tmp_path):
    run = make_run(tmp_path / "ce", "ce")
    edit(run, "summary.json", theory={"proposition1": {"lower": [1.0], "pull": [0.5], "holds": 0, "of": 1}})
    assert by_text(read(tmp_path))["Proposition 1 holds for every class"].verdict == "contradicted"


def test_the_paragraph_says_scale_and_outcome(four):
    text = claims.in_words(four, claims.check(four))
    assert text.startswith("The runs compared had 3 epochs and 4 seeds a configuration.")
    assert "Confirmed: ELM is above LogAdj overall" in text
    assert "Not tested:" in text
    assert "needs" not in text


def test_the_paragraph_s_scale_is_that_of_the_runs_compared(tmp_path):
    for method in ("ce", "elm"):
        make_run(tmp_path / method, method, epochs=3)
    make_run(tmp_path / "long", "elm", epochs=50)
    for path, epochs in ((tmp_path, 3), (tmp_path / "long", 50)):
        data = read(path)
        said = claims.in_words(data, claims.check(data))
        assert said.startswith(f"The runs compared had {epochs} epochs and 1 seed a configuration.")


def test_damaged_bits_fall_back_to_the_unpaired_interval(tmp_path):
    for method in ("elm", "logadj"):
        run = make_run(tmp_path / method, method)
        summary = json.loads((run / "summary.json").read_text())
        edit(run, "summary.json", test={**summary["test"], "correct": "!!!"})
    groups = pair(read(tmp_path), "elm", "logadj")
    assert comparison.accuracy_difference(*groups).how.startswith("unpaired")
