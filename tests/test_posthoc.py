import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import evaluate_references as naive
from longtail import ClassCounts, posthoc
from longtail.errors import InputError
from longtail.evaluate import Part, Predictions, accuracy

N = [300, 80, 25, 8]


def problem(seed=0, k=5, sigma=1.2):
    """Gaussian classes, and the logits of the exact posterior under the training prior."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=(4, k))

    def part(sizes):
        y = np.repeat(np.arange(4), sizes)
        x = mu[y] + sigma * rng.normal(size=(len(y), k))
        f = x @ mu.T / sigma**2 - (mu**2).sum(1) / (2 * sigma**2) + np.log(np.array(N) / sum(N))
        return Part(torch.from_numpy(f), torch.from_numpy(y), torch.from_numpy(x))

    return Predictions(
        train=part(N),
        val=part([40] * 4),
        test=part([500] * 4),
        head_weight=torch.from_numpy(mu / sigma**2),
        head_bias=torch.from_numpy(np.log(np.array(N) / sum(N)) - (mu**2).sum(1) / (2 * sigma**2)),
    )


def balanced(part):
    return accuracy.summary(part.logits, part.labels, N).balanced


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_the_kind_that_goes_in_comes_out(kind):
    f, w = kind(np.random.default_rng(0).normal(size=(6, 3))), kind(np.eye(3))
    y = kind(np.array([0, 1, 2, 0, 1, 2]))
    for found in (
        posthoc.logit_adjust(f, [5, 3, 1]),
        posthoc.tau_normalise(w),
        posthoc.tau_norm(f, w, 0.5),
        posthoc.lws_scales(f, y),
        posthoc.ncm(f, f, y, 3),
        posthoc.knn(f, f, y, 3, k=2),
        posthoc.mean_prior(f),
        posthoc.em_prior(f),
        posthoc.implied_prior(f),
        posthoc.shift_prior(f, [1, 1, 1], [3, 2, 1]),
    ):
        assert isinstance(found, type(f))


def test_logit_adjustment_by_hand_and_with_an_empty_class():
    f = np.array([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(posthoc.logit_adjust(f, [6, 4, 0], tau=2.0), f - 2 * np.log([0.6, 0.4, 0.1]))
    np.testing.assert_allclose(posthoc.logit_adjust(f, prior=[3, 2, 5]), f - np.log([0.3, 0.2, 0.5]))
    assert posthoc.logit_adjust(f.astype(np.float16), [6, 4, 1]).dtype == np.float32
    np.testing.assert_allclose(posthoc.logit_adjust(f, [6, 4, 1], tau=0), f)
    with pytest.raises(InputError, match="either"):
        posthoc.logit_adjust(f)
    with pytest.raises(InputError, match="either"):
        posthoc.logit_adjust(f, [1, 1, 1], prior=[1, 1, 1])
    with pytest.raises(InputError, match="3 positive"):
        posthoc.logit_adjust(f, prior=[1, 0, 1])


def test_adjusting_exact_posteriors_gives_the_balanced_rule():
    p = problem()
    adjusted = posthoc.apply(p, "logit-adjust", value=1.0).predictions
    means = p.head_weight * 1.44
    expected = torch.cdist(p.test.embeddings, means).argmin(1)
    assert torch.equal(adjusted.test.logits.argmax(1), expected)
    assert balanced(adjusted.test) > balanced(p.test) + 0.05


def test_tau_normalisation():
    w = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(posthoc.tau_normalise(w, 0.0), w)
    torch.testing.assert_close(posthoc.tau_normalise(w, 1.0).norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(posthoc.tau_normalise(w, 2.0)[0], w[0] / 25)
    x = torch.tensor([[1.0, 1.0]])
    torch.testing.assert_close(posthoc.tau_norm(x, w, 1.0), torch.tensor([[1.4, 0.0, 1.0]]))


def test_lws_minimises_its_convex_objective():
    p = problem()
    f, y = p.train.logits, p.train.labels

    def objective(s, strength):
        loss = -torch.log_softmax(f * s, 1)[torch.arange(len(y)), y]
        return float(torch.stack([loss[y == c].mean() for c in range(4)]).mean() + strength * (s - 1).square().mean())

    for strength in (10.0, 0.01):
        s = posthoc.lws_scales(f, y, strength)
        best = objective(s, strength)
        g = torch.Generator().manual_seed(0)
        assert best <= objective(torch.ones(4), strength)
        for _ in range(30):
            step = 0.02 * torch.randn(4, generator=g, dtype=torch.float64)
            assert best <= objective(s + step, strength) + 1e-9
    assert (posthoc.lws_scales(f, y, 1e4) - 1).abs().max() < 1e-3
    with pytest.raises(InputError, match="at least 0"):
        posthoc.lws_scales(f, y, -1.0)


def test_lws_stays_finite_on_logits_that_are_already_perfect():
    scales = posthoc.lws_scales(50 * torch.eye(3), torch.arange(3), 0.01)
    assert bool(torch.isfinite(scales).all())


def test_ncm_and_knn_against_the_loops():
    p = problem()
    train, query = p.train, p.test.embeddings[:40]
    x, y = train.embeddings.numpy(), train.labels.numpy()
    scores = posthoc.ncm(query, train.embeddings, train.labels, 4)
    assert scores.argmax(1).tolist() == [naive.nearest_mean(x, y, q) for q in query.numpy()]
    np.testing.assert_allclose(scores[:, 0], [-naive.squared(x[y == 0].mean(0), q) / 2 for q in query.numpy()])
    for k in (1, 4, 7):
        votes = posthoc.knn(query, train.embeddings, train.labels, 4, k)
        assert votes.argmax(1).tolist() == [naive.vote(x, y, q, k) for q in query.numpy()]
        assert bool(torch.isfinite(votes).all())
        torch.testing.assert_close(votes.exp().sum(1), torch.ones(40), atol=1e-3, rtol=0)


def test_cosine_versions_ignore_length():
    p = problem()
    x, y = p.train.embeddings, p.train.labels
    q = p.test.embeddings[:30]
    length = torch.rand(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    for method in (posthoc.ncm, posthoc.knn):
        torch.testing.assert_close(method(q, x, y, 4, normalise=True), method(q * length, x, y, 4, normalise=True))


def test_ncm_ranks_a_class_without_samples_last():
    scores = posthoc.ncm(torch.zeros(2, 1), torch.tensor([[5.0], [9.0]]), torch.tensor([1, 3]), 5)
    assert scores.argmax(1).tolist() == [1, 1]
    assert bool(torch.isfinite(scores).all())
    assert bool((scores[:, [0, 2, 4]] < scores[:, [1, 3]].min()).all())


def test_priors_are_recovered():
    p = problem(sigma=0.9)
    truth = ClassCounts(N).prior
    # the training distribution, seen through exact posteriors
    assert (posthoc.mean_prior(p.train.logits) - truth).abs().max() < 0.02
    # balanced data: what prior was the model trained under?
    implied = posthoc.implied_prior(p.test.logits)
    assert (implied.log() - truth.log()).abs().max() < 0.25
    # balanced posteriors on data of the training prior: what is the data's prior?
    flat = posthoc.logit_adjust(p.train.logits, N)
    assert (posthoc.em_prior(flat) - truth).abs().max() < 0.03
    assert (posthoc.em_prior(p.test.logits, source=truth) - 0.25).abs().max() < 0.04
    for prior in (implied, posthoc.em_prior(flat)):
        assert float(prior.sum()) == pytest.approx(1)


def test_implied_prior_reaches_its_fixed_point():
    p = problem()
    target = np.array([0.4, 0.3, 0.2, 0.1])
    prior = posthoc.implied_prior(p.test.logits.numpy(), target)
    shifted = torch.from_numpy(p.test.logits.numpy() - np.log(prior) + np.log(target)).softmax(1).mean(0)
    np.testing.assert_allclose(shifted, target, atol=1e-6)


def test_shift_prior_is_bayes_rule():
    f = torch.log(torch.tensor([[0.6, 0.4]], dtype=torch.float64))
    moved = posthoc.shift_prior(f, [0.5, 0.5], [0.8, 0.2]).softmax(1)
    torch.testing.assert_close(moved, torch.tensor([[0.48, 0.08]], dtype=torch.float64) / 0.56)


def test_choose_takes_the_best_and_of_equals_the_first():
    f, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    found = posthoc.choose(lambda v: v * f, [-1.0, 3.0, 1.0], y)
    assert found.value == 3.0
    assert found.scores == {-1.0: 0.0, 3.0: 1.0, 1.0: 1.0}
    with pytest.raises(InputError, match="empty"):
        posthoc.choose(lambda v: f, [], y)


@pytest.mark.parametrize("kind", posthoc.KINDS)
def test_apply_chooses_on_validation_and_never_on_test(kind):
    p = problem()
    found = posthoc.apply(p, kind)
    assert found.step["kind"] == kind
    assert found.step["knob"] == posthoc.KINDS[kind].knob
    # other test labels, other test samples: the same choice, and the same validation logits
    g = torch.Generator().manual_seed(1)
    other = replace(p.test, labels=p.test.labels[torch.randperm(len(p.test), generator=g)])
    again = posthoc.apply(replace(p, test=other), kind)
    assert again.step == found.step
    assert torch.equal(again.predictions.test.logits, found.predictions.test.logits)
    assert torch.equal(found.predictions.train.logits, p.train.logits)
    if posthoc.KINDS[kind].knob is not None:
        best = max(found.step["val"], key=found.step["val"].get)
        assert float(best) == found.step["value"]
        fixed = posthoc.apply(p, kind, value=found.step["value"])
        assert torch.equal(fixed.predictions.test.logits, found.predictions.test.logits)
        assert fixed.step["val"] == {}
        assert balanced(found.predictions.val) == pytest.approx(found.step["val"][best])


def test_apply_without_counts_estimates_the_prior():
    p = problem()
    bare = Predictions(val=p.val, test=p.test)
    assert bare.counts is None
    found = posthoc.apply(bare, "logit-adjust").predictions
    known = posthoc.apply(p, "logit-adjust").predictions
    assert balanced(found.test) == pytest.approx(balanced(known.test), abs=0.03)
    assert balanced(found.test) > balanced(p.test) + 0.05
    only_test = posthoc.apply(Predictions(test=p.test), "logit-adjust", value=1.0).predictions
    assert balanced(only_test.test) == pytest.approx(balanced(known.test), abs=0.03)


def test_apply_says_what_is_missing():
    p = problem()
    bare = Predictions(test=p.test, counts=N)
    with pytest.raises(InputError, match="needs a validation part"):
        posthoc.apply(bare, "logit-adjust")
    with pytest.raises(InputError, match="head_weight"):
        posthoc.apply(bare, "tau-norm", value=1.0)
    with pytest.raises(InputError, match="training embeddings"):
        posthoc.apply(bare, "knn", value=1)
    with pytest.raises(InputError, match="neither"):
        posthoc.apply(bare, "lws", value=1)
    with pytest.raises(InputError, match="no knob"):
        posthoc.apply(p, "ncm", value=1.0)
    with pytest.raises(InputError, match="did you mean 'tau-norm'"):
        posthoc.apply(p, "tau_norm")
    flat = replace(p, val=replace(p.val, embeddings=None))
    with pytest.raises(InputError, match="needs embeddings"):
        posthoc.apply(flat, "ncm")


def test_training_samples_are_scored_by_the_others_with_the_same_tie_break():
    p = problem()
    keep = torch.randperm(len(p.train), generator=torch.Generator().manual_seed(0))[:60]
    train = Part(p.train.logits[keep], p.train.labels[keep], p.train.embeddings[keep])
    for k in (1, 2, 4):
        scores = posthoc.knn_on_train(replace(p, train=train), k).train.logits
        for i in range(60):
            others = torch.arange(60) != i
            alone = posthoc.knn(train.embeddings[i : i + 1], train.embeddings[others], train.labels[others], 4, k)
            torch.testing.assert_close(scores[i], alone[0])


def test_knn_grid_is_cut_to_the_data():
    p = problem()
    few = replace(p, train=Part(p.train.logits[:4], torch.arange(4), p.train.embeddings[:4]))
    assert set(posthoc.apply(few, "knn").step["val"]) == {"1", "3"}


def test_lws_without_training_logits_learns_on_validation():
    p = problem()
    found = posthoc.apply(Predictions(val=p.val, test=p.test, counts=N), "lws")
    assert found.step["value"] == 0.1
    assert math.isfinite(balanced(found.predictions.test))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: posthoc.lws_scales(x, [0, 1, 4]), r"labels must be in \[0, 4\), but row 2 holds 4"),
        (
            lambda x: posthoc.lws_scales(x, [0, 1, 2], strength=math.nan),
            "strength must be a number of at least 0",
        ),
        (lambda x: posthoc.logit_adjust(x, N, tau=math.nan), "tau must be a finite number, got nan"),
        (lambda x: posthoc.logit_adjust(x, N, tau="1"), "tau must be a finite number, got '1'"),
        (lambda x: posthoc.tau_normalise(x, tau=math.inf), "tau must be a finite number, got inf"),
        (lambda x: posthoc.knn(x, x, [0, 1, 2], 4, k=2.5), "k must be a whole number of at least 1, got 2.5"),
        (lambda x: posthoc.mean_prior(x[:0]), "a prior is estimated from samples, and there are none"),
        (lambda x: posthoc.em_prior(x[:0]), "there are none"),
        (lambda x: posthoc.implied_prior(x[:0]), "there are none"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call(np.eye(3, 4))


def test_the_kind_is_that_of_the_logits_in_whatever_order_arguments_come():
    assert isinstance(posthoc.logit_adjust(counts=N, logits=torch.zeros(2, 4)), torch.Tensor)
    assert isinstance(posthoc.logit_adjust(counts=torch.tensor(N), logits=np.zeros((2, 4))), np.ndarray)
    assert torch.equal(
        posthoc.knn(*(torch.eye(3, 4),) * 2, [0, 1, 2], 4, k=2.0),
        posthoc.knn(*(torch.eye(3, 4),) * 2, [0, 1, 2], 4, k=2),
    )
