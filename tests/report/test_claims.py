"""Claims: the numbers are those of the paired comparison, and a verdict says no more than they allow."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from fake_runs import SMALL, edit, make_run
from longtail.report import claims
from longtail.report.comparison import pair
from longtail.report.grouping import datasets
from longtail.report.uncertainty import holm, seed_source
from longtail.runs.read import find


def read(path):
    (data,) = datasets(find([path]).runs)
    return data


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


def test_the_papers_claims_on_runs_drawn_as_it_says(four):
    found = by_text(four)
    for text in (
        "ELM is above LogAdj overall",
        "A logit margin helps: LogAdj is above CE",
        "Margins vary less under ELM than under LogAdj (test samples)",
    ):
        assert found[text].verdict == "confirmed", found[text]
    for text in (
        "d_max (training data, over the largest norm) is larger under DRO-LT than under CE",
        "d_max (training data, over the largest norm) is larger under CE than under ELM",
        "k-NN on the embeddings is better under ELM than under CE",
    ):
        assert found[text].difference.verdict() == "confirmed", found[text]
    assert found["Proposition 1 holds for every class"].verdict == claims.HOLDS
    assert "Theorem: Proposition 1 holds" in claims.in_words(four, claims.check(four))
    assert found["An embedding margin helps: one-stage DRO-LT is above CE"].verdict in ("contradicted", "undecided")


def test_one_seed_decides_nothing(tmp_path):
    make_run(tmp_path / "elm", "elm")
    make_run(tmp_path / "logadj", "logadj")
    claim = by_text(read(tmp_path))["ELM is above LogAdj overall"]
    assert claim.verdict == "one seed: undecided"
    assert claim.p is None
    assert claim.note == "paired over test samples"
    assert "[" in claim.number  # the estimate has the interval of the test samples


def test_verdicts_are_those_of_holm_over_the_whole_table(four):
    found = claims.check(four)
    own = [claim.difference.p for claim in found if claim.difference is not None]
    shown = [claim.p for claim in found if claim.difference is not None]
    assert shown == holm(own)
    assert min(shown) > min(own)
    for claim in found:
        if claim.p is not None and claim.verdict != "consistent":
            assert (claim.verdict == "undecided") == (claim.p > 0.05), claim


FAR = "d_max (training data, over the largest norm) is larger under CE than under ELM"


def test_d_max_has_the_interval_of_its_classes_and_seeds(four):
    ce, elm = pair(four, "ce", "elm")
    rows = [[run.diagnostics.dmax.by_class for run in group.runs] for group in (ce, elm)]
    gaps = np.mean(rows[0], 0) - np.mean(rows[1], 0)
    of_classes = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    seeds = seed_source(*(np.mean(side, 1) for side in rows))
    half = np.hypot(of_classes, stats.t.ppf(0.975, seeds.freedom) * seeds.error)
    claim = by_text(four)[FAR]
    by_seed = ", ".join(f"{np.mean(a) - np.mean(b):+.4f}" for a, b in zip(*rows))
    wanted = f"{gaps.mean():+.4f} [{gaps.mean() - half:+.4f}, {gaps.mean() + half:+.4f}], by seed {by_seed}"
    assert claim.number == f"{wanted}, larger in {(gaps > 0).sum()} of {len(gaps)} classes"


def test_runs_that_kept_no_d_max_by_class_have_an_interval_over_seeds_and_one_seed_decides_nothing(tmp_path):
    means = {"ce": [0.5, 0.52, 0.51], "elm": [0.2, 0.23, 0.215]}
    for method, values in means.items():
        for seed, value in enumerate(values):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            summary = json.loads((run / "summary.json").read_text())
            dmax = {**summary["diagnostics"]["dmax"], "mean": value, "by_class": None}
            edit(run, "summary.json", diagnostics={**summary["diagnostics"], "dmax": dmax})
    claim = by_text(read(tmp_path))[FAR]
    assert claim.note == "the runs kept no d_max by class; the spread of seeds included"
    assert claim.difference.p < 0.05
    for method in ("ce", "elm"):
        for seed in (1, 2):
            shutil.rmtree(tmp_path / f"{method}-{seed}")
    claim = by_text(read(tmp_path))[FAR]
    assert claim.verdict == "one seed: undecided"
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
    assert by_text(read(tmp_path))["ELM is above LogAdj overall"].verdict == "one seed: undecided"


def test_margin_variances_leave_out_classes_of_few_samples(tmp_path):
    """Training counts are 200 … 12, 6 and 2: the last class does not count on training data, and does on test data."""
    counts = (200, 120, 60, 30, 12, 2)
    for method, variances in (("elm", [0.5, 0.5, 0.5, 0.5, 0.5, 50.0]), ("logadj", [1.0] * 6)):
        for seed in range(3):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed, counts=counts)
            scaled = [v * (1 + 0.01 * seed) for v in variances]
            edit(run, "summary.json", diagnostics={"margin_variance": {"train": scaled, "test": scaled}})
    found = by_text(read(tmp_path))
    train = found["Margins vary less under ELM than under LogAdj (train samples)"]
    assert train.number.startswith("variance × 0.500 [")
    assert "by seed × 0.500, × 0.500, × 0.500" in train.number
    assert train.number.endswith("smaller in 5 of 5 classes")
    test = found["Margins vary less under ELM than under LogAdj (test samples)"]
    assert test.number.endswith("smaller in 5 of 6 classes")
    assert test.verdict == "undecided"


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
        make_run(tmp_path / method, method, data="cifar10-lt", counts=(200, 150, 60))
    claim = by_text(read(tmp_path))["ELM is above LogAdj on the tail"]
    assert (claim.verdict, claim.note) == ("not applicable", "no classes in the tail")


def test_a_sweep_is_found_and_judged(tmp_path):
    tightness = {0: 1.5, 0.0001: 1.5, 0.01: 1.0, 10: 3.0}
    for lam, tight in tightness.items():
        make_run(tmp_path / f"{lam}", "elm", lam=lam, tight=tight)
    make_run(tmp_path / "memory", "elm", memory=8)  # not part of the sweep
    data = read(tmp_path)
    (sweep,) = data.sweeps
    assert (sweep.method, sweep.knob, sweep.values) == ("elm", "lam", [0, 0.0001, 0.01, 10])
    found = by_text(data)
    assert found["Too large a λ hurts: the best λ is above the largest"].verdict == "one seed: undecided"
    assert "flattered" in found["Too large a λ hurts: the best λ is above the largest"].note
    same = "Too small a λ does nothing: the smallest λ > 0 is as good as λ = 0 (LogAdj)"
    assert found[same].verdict == "one seed: undecided"
    assert found["A λ in between gains over λ = 0 (LogAdj)"].verdict == "one seed: undecided"


def test_the_best_value_is_taken_by_validation_data_where_there_is_some(tmp_path):
    for lam, val in ((0.1, 0.9), (0.2, 0.1), (0.3, 0.2)):
        edit(make_run(tmp_path / f"{lam}", "elm", lam=lam, tight=3 * lam), "summary.json", val={"balanced": val})
    (sweep,) = read(tmp_path).sweeps
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
