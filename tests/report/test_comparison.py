"""Differences of groups of runs: which samples and seeds are compared, and what their intervals cover."""

import json

import numpy as np
import pytest
from scipy import stats

from fake_runs import SMALL, edit, make_run, predictions
from longtail import ClassCounts
from longtail.evaluate import accuracy
from longtail.report.comparison import accuracy_difference, mean_error, pair, share_training, typical_spread
from longtail.report.grouping import datasets
from longtail.report.uncertainty import Source, half_width, seed_source
from longtail.runs.read import find

SEEDS = 4


def read(path):
    (data,) = datasets(find([path]).runs)
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("four")
    for method in ("ce", "logadj", "elm"):
        for seed in range(SEEDS):
            make_run(root / f"{method}-{seed}", method, seed=seed)
    return root


@pytest.mark.parametrize("sizes", [[30, 20, 14, 10, 7, 5, 4, 2], [20, *[1] * 9], [30, 10, 3, 2, 1, 1, 1, 1]])
def test_no_verdict_from_a_handful_of_test_samples(sizes):
    """Two methods that know each class as well, but not the same samples of it; seeds agree on most of them."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    mean = np.stack([labels == c for c in range(len(sizes))]) / np.array(sizes)[:, None]
    trials, false = 400, 0
    for _ in range(trials):
        accuracy = rng.uniform(0.2, 0.9, len(sizes))[labels]
        sides = [rng.random((5, len(labels))) < rng.beta(0.3 * accuracy, 0.3 * (1 - accuracy)) for _ in range(2)]
        balanced = [(side @ mean.T).mean(1) for side in sides]
        gaps = sides[0].mean(0) - sides[1].mean(0)
        sources = (seed_source(*balanced), Source(mean_error([gaps[labels == c] for c in range(len(sizes))])))
        gap = float(balanced[0].mean() - balanced[1].mean())
        false += half_width(sources) < abs(gap)
    assert false <= stats.binom.ppf(0.999, trials, 0.05)


def test_the_error_over_test_samples_is_that_of_the_paired_bootstrap(folder):
    data = read(folder)
    elm, logadj = pair(data, "elm", "logadj")
    found = accuracy_difference(elm, logadj, "tail")
    right, labels = {}, None
    for method in ("elm", "logadj"):
        tests = [predictions(method, seed=seed).test for seed in range(SEEDS)]
        right[method] = np.stack([(test.logits.argmax(1) == test.labels).numpy() for test in tests])
        labels = tests[0].labels
    wanted = accuracy.compare(right["elm"], right["logadj"], labels, ClassCounts(SMALL)).difference["tail"]
    assert found.value == pytest.approx(wanted.value)
    assert 2 * 1.96 * found.sources[1].error == pytest.approx(wanted.high - wanted.low, rel=0.15)
    assert found.how == "paired over test samples; the spread of seeds included"
    seeds = seed_source(*([run.group_accuracy("tail") for run in group.runs] for group in (elm, logadj)))
    assert found.sources[0] == seeds


def test_seeds_that_only_one_side_has_are_used(folder, tmp_path):
    for seed in range(SEEDS):
        make_run(tmp_path / f"ce-{seed}", "ce", seed=seed)
    for seed in (1, 7):
        make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
    elm, ce = pair(read(tmp_path), "elm", "ce")
    found = accuracy_difference(elm, ce)
    assert found.value == pytest.approx(elm.balanced.mean - ce.balanced.mean)
    assert (found.seeds, len(found.by_seed)) == (2, 1)


def test_methods_that_share_training_are_compared_by_pairs_of_seeds(tmp_path):
    """Seeds of cross-entropy differ by ten points; τ-normalisation of each is a point above it."""
    for seed, accuracy_ in enumerate((0.4, 0.5, 0.6)):
        for method, gain in (("ce", 0.0), ("tau-norm", 0.01 + 0.0001 * seed), ("logadj", 0.01 + 0.0001 * seed)):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            test = json.loads((run / "summary.json").read_text())["test"]
            edit(run, "summary.json", test={**test, "balanced": accuracy_ + gain, "correct": None, "per_class_n": None})
    data = read(tmp_path)
    shared = accuracy_difference(*pair(data, "tau-norm", "ce"))
    apart = accuracy_difference(*pair(data, "logadj", "ce"))
    assert shared.value == pytest.approx(apart.value)
    assert shared.verdict() == "confirmed"
    assert "they share training" in shared.how
    assert apart.verdict() == "undecided"


def test_shared_training_is_seen_in_the_runs_and_not_in_their_method_s_name(tmp_path):
    for lr in (0.1, 0.2):
        for seed in range(2):
            make_run(tmp_path / f"ce-{lr}-{seed}", "ce", seed=seed, recipe={"lr": lr})
            make_run(tmp_path / f"zero-{lr}-{seed}", "elm", seed=seed, recipe={"lr": lr}, lam=0)
            make_run(tmp_path / f"logadj-{lr}-{seed}", "logadj", seed=seed, recipe={"lr": lr})
            metrics = (tmp_path / f"logadj-{lr}-{seed}" / "metrics.jsonl").read_text()
            (tmp_path / f"zero-{lr}-{seed}" / "metrics.jsonl").write_text(metrics)  # λ = 0 is the same training
    first, second = ({g.method: g for g in data.groups} for data in datasets(find([tmp_path]).runs))
    assert share_training(first["elm"], first["logadj"])
    assert not share_training(first["ce"], first["logadj"])
    assert not share_training(first["ce"], second["ce"])  # another learning rate: another training


def test_the_typical_spread_counts_shared_training_once_and_leaves_out_the_wild(tmp_path):
    spreads = {"ce": 0.01, "tau-norm": 0.01, "logadj": 0.02, "elm": 0.015, "vs": 0.3, "center": 0.0}
    for method, spread in spreads.items():
        for seed, sign in enumerate((-1, 1)):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            test = json.loads((run / "summary.json").read_text())["test"]
            edit(run, "summary.json", test={**test, "balanced": 0.5 + sign * spread / 2**0.5})
    found = typical_spread(read(tmp_path).groups)
    assert found == pytest.approx(np.sqrt(np.mean(np.square([0.01, 0.02, 0.015]))))


def test_without_kept_bits_the_error_is_unpaired_and_wider(folder, tmp_path):
    for method in ("elm", "logadj"):
        for seed in range(2):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            test = json.loads((run / "summary.json").read_text())["test"]
            edit(run, "summary.json", test={**test, "correct": None if method == "elm" else "!!!"})
    loose = accuracy_difference(*pair(read(tmp_path), "elm", "logadj"))
    tight = accuracy_difference(*pair(read(folder), "elm", "logadj"))
    assert loose.how.startswith("unpaired")
    assert loose.sources[1].error > tight.sources[1].error


def test_other_test_samples_are_not_paired(tmp_path):
    make_run(tmp_path / "elm", "elm")
    make_run(tmp_path / "logadj", "logadj", fingerprint="another")
    assert accuracy_difference(*pair(read(tmp_path), "elm", "logadj")).how.startswith("unpaired")
