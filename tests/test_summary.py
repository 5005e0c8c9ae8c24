import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from longtail import ClassCounts, summary
from longtail.errors import InputError
from longtail.evaluate import Part, Predictions, accuracy, diagnostics, theory
from longtail.margins import Power

N = [150, 60, 30, 12, 5, 1]


def predictions(k=6, seed=0, c=6):
    g = torch.Generator().manual_seed(seed)
    mu, w = torch.randn(c, k, generator=g), torch.randn(c, k, generator=g)

    def part(sizes):
        y = torch.repeat_interleave(torch.arange(c), torch.tensor(sizes[:c]))
        y = y[torch.randperm(len(y), generator=g)]
        x = mu[y] + torch.randn(len(y), k, generator=g)
        return Part(x @ (w + mu).T, y, x)

    return Predictions(train=part(N), val=part([0, 5, 5, 5, 5, 5]), test=part([20] * 6), head_weight=w + mu)


@pytest.fixture(scope="module")
def made():
    p = predictions()
    return p, summary.summarise(p, ClassCounts(N), class_names=list("abcdef"), seed=3)


def test_keys_and_plain_json(made):
    _, s = made
    assert json.loads(json.dumps(s, allow_nan=False)) == s
    assert set(s) == {"format", "test", "val", "train", "posthoc", "adjusted", "tradeoff", "diagnostics", "theory"}
    common = {"n", "balanced", "balanced_ci", "accuracy", "groups", "per_class", "per_class_n", "worst_class"} | {
        "geometric_mean", "harmonic_mean", "ece", "ece_groups", "evaluated"
    }  # fmt: skip
    assert set(s["test"]) == common | {"correct", "labels", "confusion"}
    assert set(s["val"]) == common
    assert s["val"]["per_class"][0] is None
    assert s["val"]["evaluated"] == 5
    diagnosed = {"labels", "names", "margins", "margin_variance", "dmax", "class_variance", "intra_inter"}
    assert set(s["diagnostics"]) == diagnosed | {"neural_collapse", "knn", "ncm", "tsne"}
    assert set(s["theory"]) == {"proposition1", "gaussian"}


def test_logits_are_adjusted_with_the_tau_that_is_best_on_validation_data(made):
    p, s = made
    log_prior = torch.tensor(N).double().div(sum(N)).log()

    def recalls(part, tau):
        hit = (part.logits.double() - tau * log_prior).argmax(1) == part.labels
        return [float(hit[part.labels == c].double().mean()) for c in range(6) if (part.labels == c).any()]

    scores = {round(0.1 * i, 1): np.mean(recalls(p.val, 0.1 * i)) for i in range(-20, 21)}
    tau = s["adjusted"]["tau"]
    assert scores[tau] == max(scores.values())
    assert s["adjusted"]["val"] == pytest.approx(scores[tau], rel=1e-5)
    after = recalls(p.test, tau)
    assert s["adjusted"]["balanced"] == pytest.approx(np.mean(after), rel=1e-5)
    assert s["adjusted"]["groups"]["tail"]["accuracy"] == pytest.approx(np.mean(after[3:]), rel=1e-5)
    assert summary.summarise(replace(p, val=None), ClassCounts(N))["adjusted"] is None
    trade = s["tradeoff"]
    assert trade["tau"] == sorted(scores)
    wanted = [recalls(p.test, tau) for tau in trade["tau"]]
    assert trade["head"] == pytest.approx([np.mean(np.array(r)[np.array(N) >= 100]) for r in wanted], rel=1e-5)
    assert trade["tail"] == pytest.approx([np.mean(np.array(r)[np.array(N) < 20]) for r in wanted], rel=1e-5)


def test_values_are_those_of_the_functions(made):
    p, s = made
    a = accuracy.summary(p.test.logits, p.test.labels, N)
    assert s["test"]["balanced"] == pytest.approx(a.balanced, rel=1e-5)
    low, high = s["test"]["balanced_ci"]
    assert low <= s["test"]["balanced"] <= high
    assert s["test"]["groups"]["head"] == {"accuracy": pytest.approx(a.groups["head"][0]), "classes": 1, "evaluated": 1}
    assert s["train"]["accuracy"] == pytest.approx(
        accuracy.summary(p.train.logits, p.train.labels, N).accuracy, rel=1e-5
    )
    labels = s["diagnostics"]["labels"]
    gamma = diagnostics.margins(p.test.logits, p.test.labels)[p.test.labels == labels[0]]
    shown = s["diagnostics"]["margins"]["test"][str(labels[0])]
    assert sum(shown["counts"]) == len(gamma)
    assert len(shown["quantiles"]) == 101
    assert shown["quantiles"][50] == pytest.approx(float(np.median(gamma)), rel=1e-4)
    assert shown["mean"] == pytest.approx(float(gamma.mean()), rel=1e-4)
    variance = s["diagnostics"]["margin_variance"]["test"][labels[0]]
    assert variance == pytest.approx(float(gamma.double().var(correction=0)), rel=1e-4)
    d = diagnostics.max_intra_distance(p.train.embeddings, p.train.labels, normalise=True)
    assert s["diagnostics"]["dmax"]["mean"] == pytest.approx(float(d.mean()), rel=1e-4)
    tail = [float(d[p.train.labels == c].mean()) for c in (3, 4, 5)]
    assert s["diagnostics"]["dmax"]["mean_by_group"]["tail"] == pytest.approx(np.mean(tail), rel=1e-4)
    assert s["diagnostics"]["dmax"]["by_class"][3:6] == pytest.approx(tail, rel=1e-4)
    one = theory.proposition1(p.train.embeddings, p.train.labels, Power(0.5, of="count")(ClassCounts(N)))
    assert s["theory"]["proposition1"]["holds"] == s["theory"]["proposition1"]["of"] == 5
    assert s["theory"]["proposition1"]["pull"] == pytest.approx(one.pull.tolist(), rel=1e-5)
    assert s["theory"]["proposition1"]["alpha"] == "Power(0.5, of='count')"
    knn = diagnostics.knn_accuracy(p.train.embeddings, p.train.labels, p.test.embeddings, p.test.labels, N, 10)
    assert s["diagnostics"]["knn"]["balanced"] == pytest.approx(knn.balanced, rel=1e-5)
    correct = summary.unpack_correct(s["test"]["correct"], s["test"]["n"])
    assert torch.equal(correct, a.correct)
    assert torch.equal(summary.unpack_labels(s["test"]["labels"], s["test"]["n"]), p.test.labels)


def test_rounding_is_to_six_digits(made):
    def floats(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [f for v in value for f in floats(v)]
        return [value] if isinstance(value, float) else []

    found = floats(made[1])
    assert len(found) > 500
    assert all(f == float(f"{f:.6g}") for f in found)


def test_deterministic(made):
    p, s = made
    assert summary.summarise(p, ClassCounts(N), class_names=list("abcdef"), seed=3) == s


def test_tsne_is_bounded_and_can_be_left_out(made):
    p, s = made
    points = s["diagnostics"]["tsne"]
    assert len(points["x"]) == len(points["y"]) == len(points["labels"]) <= 300
    assert set(points["labels"]) == set(range(6))
    assert summary.summarise(p, N, tsne=False)["diagnostics"]["tsne"] is None


@pytest.mark.parametrize(("n", "mapped"), [(90, False), (91, True)])
def test_no_tsne_of_fewer_points_than_its_perplexity_needs(n, mapped):
    p = predictions()
    few = replace(p, train=Part(p.train.logits[:n], p.train.labels[:n], p.train.embeddings[:n]))
    assert (summary.summarise(few, N)["diagnostics"]["tsne"] is not None) == mapped


def test_planar_embeddings_are_kept():
    s = summary.summarise(predictions(k=2), N, tsne=False)
    flat = s["diagnostics"]["embeddings2d"]["train"]
    assert len(flat["x"]) == sum(N)
    assert sorted(set(flat["labels"])) == list(range(6))


def test_logits_alone_suffice():
    p = predictions()
    alone = Predictions(test=Part(p.test.logits, p.test.labels))
    s = summary.summarise(alone, N)
    json.dumps(s, allow_nan=False)
    assert s["train"] is None
    assert s["val"] is None
    assert s["diagnostics"]["dmax"] is None
    assert s["diagnostics"]["margins"]["train"] is None
    assert s["theory"] == {"proposition1": None, "gaussian": None}
    with_features = Predictions(test=p.test)
    s = summary.summarise(with_features, N)
    assert s["diagnostics"]["intra_inter"]["train"] is None
    assert s["diagnostics"]["intra_inter"]["test"] > 0


def test_collapsed_embeddings_do_not_break_it():
    p = predictions()
    flat = replace(p, train=replace(p.train, embeddings=torch.zeros_like(p.train.embeddings)))
    s = summary.summarise(flat, N)
    json.dumps(s, allow_nan=False)
    assert s["diagnostics"]["tsne"] is None
    assert s["theory"]["gaussian"]["isotropy"] is None
    assert s["diagnostics"]["dmax"]["mean"] == 0


def test_two_classes_and_alpha_by_value():
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 20 + [1] * 3)
    part = Part(torch.randn(23, 2, generator=g), y, torch.randn(23, 3, generator=g))
    s = summary.summarise(
        Predictions(train=part, test=part), [20, 3], alpha=torch.tensor([1.0, 2.0]), posthoc=[{"kind": "x"}]
    )
    assert s["diagnostics"]["labels"] == [0, 1]
    assert s["posthoc"] == [{"kind": "x"}]
    assert s["theory"]["proposition1"]["classes"] == [0, 1]


def test_small_for_a_hundred_classes():
    g = torch.Generator().manual_seed(0)
    n = [int(500 * 100 ** (-i / 99)) for i in range(100)]
    y = torch.repeat_interleave(torch.arange(100), torch.tensor(n))[::4]
    test = torch.arange(100).repeat(100)
    p = Predictions(
        train=Part(torch.randn(len(y), 100, generator=g), y, torch.randn(len(y), 16, generator=g)),
        test=Part(torch.randn(10_000, 100, generator=g), test, torch.randn(10_000, 16, generator=g)),
    )
    s = summary.summarise(p, n)
    assert len(json.dumps(s)) < 300_000
    assert s["diagnostics"]["labels"] == [10, 50, 90]


def test_picks():
    assert summary.pick_labels(ClassCounts([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50])) == [1, 5, 8]
    assert summary.pick_labels(ClassCounts([95, 5])) == [0, 1]
    assert summary.pick_labels(ClassCounts([5])) == [0]
    assert summary.pick_labels(ClassCounts([5, 500, 50, 0])) == [1, 2, 0]
    assert summary.pick_labels(ClassCounts([500, 400, 300]), torch.tensor([2, 2])) == [2]


def test_what_is_wrong_is_said():
    p = predictions()
    with pytest.raises(InputError, match="test part"):
        summary.summarise(Predictions(train=p.train), N)
    with pytest.raises(InputError, match="2 class names"):
        summary.summarise(p, N, class_names=["a", "b"])
    with pytest.raises(InputError, match="of 2 classes"):
        summary.summarise(p, [1, 2])


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_packing_round_trips(n):
    g = torch.Generator().manual_seed(n)
    bits, labels = torch.rand(n, generator=g) < 0.5, torch.randint(8142, (n,), generator=g)
    assert torch.equal(summary.unpack_correct(summary.pack_correct(bits), n), bits)
    assert torch.equal(summary.unpack_labels(summary.pack_labels(labels), n), labels)


def test_packing_refuses_what_does_not_fit():
    packed = summary.pack_correct(torch.ones(16, dtype=torch.bool))
    for text, n in ((packed, 17), (packed, 8), ("§", 1), ("a", 1)):
        with pytest.raises(InputError):
            summary.unpack_correct(text, n)
    labels = summary.pack_labels(torch.arange(4))
    for text, n in ((labels, 3), (labels, 5), ("AAAA", 1)):
        with pytest.raises(InputError):
            summary.unpack_labels(text, n)


def test_rounded():
    assert summary.rounded((1.23456789, math.inf, {1: True})) == [1.23457, None, {"1": True}]
