import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluate_references as naive
from longtail import ClassCounts
from longtail.errors import InputError
from longtail.evaluate import accuracy


def sample(n=400, c=7, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, c, generator=g) * scale
    labels = torch.where(torch.rand(n, generator=g) < 0.4, logits.argmax(1), torch.randint(c, (n,), generator=g))
    return logits, labels, ClassCounts([500, 120, 99, 40, 20, 19, 0][:c])


def test_agrees_with_scikit_learn_and_torchmetrics():
    from sklearn import metrics
    from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassConfusionMatrix

    logits, labels, counts = sample()
    s = accuracy.summary(logits, labels, counts)
    predicted = logits.argmax(1)
    assert s.balanced == pytest.approx(metrics.balanced_accuracy_score(labels, predicted), abs=1e-12)
    assert s.accuracy == pytest.approx(metrics.accuracy_score(labels, predicted), abs=1e-12)
    assert s.balanced == pytest.approx(float(MulticlassAccuracy(7, average="macro")(logits, labels)), abs=1e-6)
    np.testing.assert_allclose(s.per_class, metrics.recall_score(labels, predicted, average=None), atol=1e-12)
    np.testing.assert_array_equal(s.confusion, metrics.confusion_matrix(labels, predicted))
    torch.testing.assert_close(s.confusion, MulticlassConfusionMatrix(7)(logits, labels), check_dtype=False)
    ece = MulticlassCalibrationError(7, n_bins=15, norm="l1")
    assert s.ece == pytest.approx(float(ece(logits.double(), labels)), abs=1e-6)
    assert s.error == 1 - s.balanced
    for name, classes in counts.groups().items():
        member = torch.isin(labels, classes)
        expected = float(MulticlassCalibrationError(7, n_bins=15, norm="l1")(logits[member].double(), labels[member]))
        assert s.ece_groups[name] == pytest.approx(expected, abs=1e-6)


def test_groups_means_and_worst_class_by_hand():
    logits = torch.eye(4)[torch.tensor([0, 0, 1, 0, 2, 2, 3])]
    s = accuracy.summary(logits, torch.tensor([0, 0, 1, 1, 2, 2, 2]), ClassCounts([200, 150, 30, 5]))
    assert s.per_class[:3].tolist() == [1.0, 0.5, pytest.approx(2 / 3)]
    assert math.isnan(s.per_class[3])
    assert s.balanced == pytest.approx((1 + 0.5 + 2 / 3) / 3)
    assert s.groups == {"head": (0.75, 2), "torso": (pytest.approx(2 / 3), 1), "tail": (None, 1)}
    assert s.worst == (1, 0.5)
    assert s.geometric_mean == pytest.approx((0.5 * 2 / 3) ** (1 / 3))
    assert s.harmonic_mean == pytest.approx(3 / (1 + 2 + 1.5))
    assert s.evaluated == 3
    assert s.top_confusions() == [(1, 0, 1), (2, 3, 1)]
    assert s.ece_groups["tail"] is None


def test_a_group_without_classes_is_none_and_zero():
    s = accuracy.summary(torch.eye(2), torch.tensor([0, 1]), ClassCounts([500, 200]))
    assert s.groups == {"head": (1.0, 2), "torso": (None, 0), "tail": (None, 0)}


def test_a_class_never_right_makes_both_means_zero():
    s = accuracy.summary(torch.eye(2)[[0, 0]], torch.tensor([0, 1]), [9, 1])
    assert (s.geometric_mean, s.harmonic_mean, s.worst) == (0.0, 0.0, (1, 0.0))


def test_takes_numpy_half_precision_and_lists():
    logits, labels, counts = sample(50)
    expected = accuracy.summary(logits.half(), labels, counts).balanced
    assert accuracy.summary(logits.half().numpy(), labels.tolist(), counts.n.numpy()).balanced == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 6))
def test_matches_the_naive_recalls_and_ignores_order_shift_and_scale(seed, n, c):
    logits, labels, _ = sample(n, c, seed)
    counts = [10] * c
    s = accuracy.summary(logits, labels, counts)
    np.testing.assert_allclose(s.per_class, naive.recalls(logits.argmax(1).tolist(), labels.tolist(), c), atol=1e-12)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    again = accuracy.summary(3 * logits[order] + 1, labels[order], counts)
    assert again.balanced == pytest.approx(s.balanced, abs=1e-12)
    assert torch.equal(again.confusion, s.confusion)
    assert accuracy.of_labels(s.predicted, labels, counts).balanced == s.balanced
    assert 0 <= s.harmonic_mean <= s.geometric_mean + 1e-12 <= s.balanced + 2e-12


@pytest.mark.parametrize(
    ("logits", "labels", "says"),
    [
        ([[0.0, 1.0], [float("nan"), 0.0]], [0, 1], "row 1 holds nan"),
        ([[0.0, 1.0], [float("inf"), 0.0]], [0, 1], "row 1 holds inf"),
        ([[0.0, 1.0], [1.0, 0.0]], [0, 2], r"\[0, 2\), but row 1 holds 2"),
        ([[0.0, 1.0], [1.0, 0.0]], [0, -1], "row 1 holds -1"),
        ([[0.0, 1.0], [1.0, 0.0]], [0], "2 samples, but 1 labels"),
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 1], "row 0 holds 0.5"),
        ([[0.0, 1.0, 2.0]], [0], "of 2 classes, but the logits of 3"),
        ([0.0, 1.0], [0, 1], "two dimensions"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "no samples"),
        ("what", [0], "array of numbers"),
    ],
)
def test_refuses_in_one_sentence(logits, labels, says):
    with pytest.raises(InputError, match=says):
        accuracy.summary(logits, labels, [9, 1])


def test_bootstrap_interval_is_that_of_plain_resampling():
    logits, labels, counts = sample(300)
    s = accuracy.summary(logits, labels, counts)
    fast = accuracy.bootstrap(s.correct, labels, counts, resamples=4000)["balanced"]
    rng = np.random.default_rng(1)
    by_class = [np.flatnonzero(labels.numpy() == c) for c in range(7)]
    correct = s.correct.numpy()
    draws = [np.mean([correct[rng.choice(m, len(m))].mean() for m in by_class]) for _ in range(2000)]
    low, high = np.percentile(draws, [2.5, 97.5])
    assert fast.value == pytest.approx(s.balanced)
    assert fast.low == pytest.approx(low, abs=0.006)
    assert fast.high == pytest.approx(high, abs=0.006)
    assert fast.low < fast.value < fast.high


def test_bootstrap_of_many_distinct_values_has_the_right_width():
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=400), np.repeat([0, 1], 200)
    interval = accuracy.bootstrap(values, labels, [9, 1], resamples=4000)["balanced"]
    deviation = math.sqrt(values[:200].var() / 200 + values[200:].var() / 200) / 2
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * deviation, rel=0.08)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    recall, sizes = np.array([0.9, 0.6, 0.3]), [80, 60, 40]
    labels, hits, trials = np.repeat([0, 1, 2], sizes), 0, 200
    for i in range(trials):
        correct = rng.random(len(labels)) < recall[labels]
        found = accuracy.bootstrap(correct, labels, [9, 5, 1], resamples=300, seed=i)["balanced"]
        hits += found.low <= recall.mean() <= found.high
    assert 0.88 <= hits / trials <= 0.99


def test_bootstrap_is_seeded_and_reports_missing_groups():
    logits, labels, _ = sample(100, 3)
    correct = logits.argmax(1) == labels
    first, second = (accuracy.bootstrap(correct, labels, [500, 200, 100], seed=3) for _ in range(2))
    assert first == second
    assert first["torso"] is None
    assert first["head"] == first["balanced"]
    with pytest.raises(InputError, match="level"):
        accuracy.bootstrap(correct, labels, [1, 1, 1], level=1.5)
    with pytest.raises(InputError, match="one a sample"):
        accuracy.bootstrap(correct[:5], labels, [1, 1, 1])


def test_over_seeds():
    spread = accuracy.over_seeds([0.5, 0.6, 0.7])
    assert spread.mean == pytest.approx(0.6)
    assert spread.std == pytest.approx(np.std([0.5, 0.6, 0.7], ddof=1))
    assert accuracy.over_seeds([0.5]) == (0.5, None, 1)
    with pytest.raises(InputError):
        accuracy.over_seeds([])


def test_comparison_is_paired_and_antisymmetric():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 100)
    hard = rng.random(400) < 0.5
    second = ~hard & (rng.random(400) < 0.95)
    first = second | (hard & (rng.random(400) < 0.1))
    counts = [200, 150, 30, 5]
    found = accuracy.compare(first, second, labels, counts)
    expected = np.mean([first[labels == c].mean() - second[labels == c].mean() for c in range(4)])
    d = found.difference["balanced"]
    assert d.value == pytest.approx(expected)
    assert found.decided
    back = accuracy.compare(second, first, labels, counts).difference["balanced"]
    assert back.value == pytest.approx(-d.value)
    assert back.low == pytest.approx(-d.high, abs=0.01)
    # unpaired, the two intervals would be several times wider than that of the difference
    alone = accuracy.bootstrap(first, labels, counts)["balanced"]
    assert d.high - d.low < 0.6 * (alone.high - alone.low)
    same = accuracy.compare(first, first, labels, counts)
    assert same.difference["balanced"] == (0, 0, 0)
    assert not same.decided


def test_comparison_over_seeds():
    rng = np.random.default_rng(1)
    labels = np.array([0, 0, 0, 1])
    a, b = rng.random((3, 4)) < 0.7, rng.random((3, 4)) < 0.5
    found = accuracy.compare(a, b, labels, [9, 1])
    each = [
        np.mean([(x[labels == c].mean() - y[labels == c].mean()) for c in (0, 1)]) for x, y in zip(a * 1.0, b * 1.0)
    ]
    assert found.seeds.mean == pytest.approx(np.mean(each))
    assert found.seeds.std == pytest.approx(np.std(each, ddof=1))
    assert found.difference["balanced"].value == pytest.approx(np.mean(each))
    with pytest.raises(InputError, match="same samples"):
        accuracy.compare(a, b[:, :3], labels, [9, 1])


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "says"),
    [
        ([0.5, 0.6], [1], 15, "one a sample"),
        ([[0.5]], [[1]], 15, "one a sample"),
        ([1.5], [1], 15, "confidence must be in"),
        ([math.nan], [1], 15, "confidence must be in"),
        ([0.5], [7], 15, "correct must be in"),
        ([0.5], [1], 0, "bins"),
        ([0.5], [1], 1.5, "bins"),
    ],
)
def test_calibration_refuses_in_one_sentence(confidence, correct, bins, says):
    with pytest.raises(InputError, match=says):
        accuracy.calibration_error(confidence, correct, bins)


def test_intervals_refuse_values_that_are_no_correctness():
    with pytest.raises(InputError, match="row 1"):
        accuracy.bootstrap([1.0, math.nan, 1.0], [0, 1, 1], [9, 9])
    with pytest.raises(InputError, match="not logits or labels"):
        accuracy.compare([3.0, -1.0, 2.0], [True, True, False], [0, 1, 1], [9, 9])


def test_confidence_of_exactly_one_is_in_the_last_bin():
    assert accuracy.calibration_error([1.0, 1.0], [True, False]) == 0.5
    assert accuracy.calibration_error([0.95, 1.0], [True, True]) == pytest.approx(0.025)
