import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluate_references as naive
from longtail import ClassCounts
from longtail.errors import InputError
from longtail.evaluate import diagnostics, theory
from longtail.margins import Power


def cloud(n, k, c, seed, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(c, (n,), generator=g)
    return scale * (torch.randn(n, k, generator=g, dtype=torch.float64) + y.unsqueeze(1)), y


def test_proposition1_against_the_loops(monkeypatch):
    monkeypatch.setattr(diagnostics.pairs_by_class, "__defaults__", (4,))
    x, y = cloud(40, 3, 5, 0)
    y[0] = 6  # a class of one has no pair: it is left out
    alpha = [0.0, 0.5, 2.0, 10.0, 100.0, 1.0, 1.0]
    found = theory.proposition1(x, y, alpha)
    expected = naive.proposition1(x.numpy(), y.tolist(), alpha)
    assert found.classes.tolist() == list(expected)
    np.testing.assert_allclose(found.lower, [v[0] for v in expected.values()], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.pull, [v[1] for v in expected.values()], rtol=1e-10, atol=1e-14)
    soft, hard = theory.pull_values(x, y, alpha)
    np.testing.assert_allclose(soft, naive.pull(x.tolist(), y.tolist(), alpha), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(hard, naive.hard_pull(x.tolist(), y.tolist(), alpha), rtol=1e-10, atol=1e-14)
    assert soft[0] == 0
    assert hard[0] == 0


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 40),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([1e-6, 1e-2, 1.0, 30.0, 1e4]),
    st.sampled_from([-5.0, 0.0, 1e-3, 1.0, 50.0]),
)
def test_proposition1_always_holds_and_the_hard_form_is_below(seed, n, k, c, scale, alpha):
    x, y = cloud(n, k, c, seed, scale)
    found = theory.proposition1(x, y, alpha)
    assert bool((found.lower <= found.pull).all())
    assert bool(found.holds.all())
    soft, hard = theory.pull_values(x, y, alpha)
    assert bool((hard <= soft).all())
    assert bool(torch.isfinite(soft).all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 5))
def test_proposition1_ignores_order_translation_and_rotation(seed, n, k):
    x, y = cloud(n, k, 3, seed)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=g)
    rotation = torch.linalg.qr(torch.randn(k, k, generator=g, dtype=torch.float64))[0]
    one, two = theory.proposition1(x, y, 1.0), theory.proposition1((x @ rotation)[order] - 7, y[order], 1.0)
    for name in ("classes", "lower", "pull", "hard"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-8, atol=1e-8)


def test_proposition1_is_tight_for_equal_distances_and_small_alpha():
    # all pairs at the same distance and e^(d² − α) ≫ 1: Jensen and the dropped 1 cost nothing
    x = 10 * torch.eye(4, dtype=torch.float64)
    found = theory.proposition1(x, torch.zeros(4, dtype=torch.long), 0.0)
    assert found.lower.item() == pytest.approx(found.pull.item(), rel=1e-9)
    assert found.lower.item() == pytest.approx(200 + math.log(3))


def test_the_printed_expansion_is_false():
    x, y = cloud(30, 4, 1, 0)
    found = theory.proposition1(x, y, 0.0)
    centred = x - x.mean(0)
    expanded = 2 * 30 / 29 * float(centred.square().sum()) + math.log(29)
    assert expanded > found.pull.item()


def test_alpha_may_come_from_counts_and_is_checked():
    x, y = cloud(30, 2, 3, 1)
    counts = ClassCounts.from_labels(y)
    alpha = Power(0.5, of="count")(counts)
    assert torch.equal(
        theory.proposition1(x, y, alpha).pull, theory.proposition1(x.numpy(), y.numpy(), alpha.numpy()).pull
    )
    with pytest.raises(InputError, match="one value for each of the 3 classes"):
        theory.proposition1(x, y, [1.0, 2.0])
    with pytest.raises(InputError, match="finite"):
        theory.proposition1(x, y, [1.0, 2.0, float("inf")])


def test_float32_embeddings_are_computed_in_float64():
    x, y = cloud(50, 8, 2, 3)
    found = theory.proposition1(x.float(), y, 1.0)
    exact = theory.proposition1(x.float().double(), y, 1.0)
    assert found.pull.dtype == torch.float64
    torch.testing.assert_close(found.pull, exact.pull, rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(1, 5), st.sampled_from([-1, 1]), st.floats(-5, 5))
def test_lemmas_4_and_5_hold_for_every_sample(seed, n, k, sign, margin):
    x, _ = cloud(n, k, 1, seed, 2.0)
    w = torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    four = theory.lemma4(x @ w, sign)
    assert four.holds
    assert four.left == pytest.approx(np.logaddexp(0, -sign * (x @ w).numpy()).var(), abs=1e-9)
    five = theory.lemma5(x, w, 0.3, sign, margin)
    assert five.holds
    assert five.right == pytest.approx(float(w @ w) * x.numpy().var(0).sum(), abs=1e-9)


def test_lemma3_by_hand_and_against_chance():
    z = np.array([0.0, 1.0, 0.5, 0.5])
    found = theory.lemma3(z, bound=1.0, delta=0.1)
    log = math.log(20)
    assert found == pytest.approx((0.5, math.sqrt(2 * z.var(ddof=1) * log / 4), 7 * log / 9))
    assert theory.lemma3(z, 1.0, 0.1, printed=True).deviation == pytest.approx(math.sqrt(2 * z.var() * log / 4))
    rng = np.random.default_rng(0)
    holds = [theory.lemma3(rng.beta(0.5, 5, size=60), 1.0, 0.05).total >= 0.5 / 5.5 for _ in range(300)]
    assert np.mean(holds) >= 0.95
    for bad, says in (([0.5], "two values"), ([0.5, 2.0], r"\[0, B\]"), ([-0.1, 0.5], r"\[0, B\]")):
        with pytest.raises(InputError, match=says):
            theory.lemma3(bad, 1.0)
    with pytest.raises(InputError, match="delta"):
        theory.lemma3(z, 1.0, delta=0)


# A binary problem whose true risk can be integrated: coordinates are Gaussians cut off at two standard deviations.
MEANS, SIGMA, CUT, PRIOR = np.array([[-1.0, 0.0], [1.0, 0.5]]), 0.5, 2.0, 0.1
W, B0 = np.array([2.0, 0.5]), 0.2
SHIFT = (math.log(PRIOR / (1 - PRIOR)),) * 2


def draw(rng, n):
    y = (rng.random(n) < PRIOR).astype(int)
    z = rng.normal(size=(4 * n, 2))
    z = z[(np.abs(z) <= CUT).all(1)][:n]
    return MEANS[y] + SIGMA * z, y


def true_risk():
    """Gauss-Legendre in both coordinates."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    density = np.exp(-((CUT * nodes) ** 2) / 2) * weights
    density /= density.sum()
    grid = np.stack(np.meshgrid(CUT * nodes, CUT * nodes, indexing="ij"), -1)
    risk = 0.0
    for y, p in ((0, 1 - PRIOR), (1, PRIOR)):
        f = (MEANS[y] + SIGMA * grid) @ W + B0 + SHIFT[y]
        risk += p * (np.logaddexp(0, -(2 * y - 1) * f) * np.outer(density, density)).sum()
    return risk


def test_proposition2_corrected_holds_in_200_of_200_draws(record_property):
    rng, risk = np.random.default_rng(0), true_risk()
    radius = max(np.linalg.norm(np.abs(m) + SIGMA * CUT) for m in MEANS)
    bound = theory.loss_bound(W, B0, radius, SHIFT)
    held, unprotected, totals, printed = 0, 0, [], []
    for _ in range(200):
        x, y = draw(rng, 600)
        found = theory.proposition2(x, y, W, B0, alpha=[1.0, 0.5], prior=PRIOR, bound=bound, margins=SHIFT, delta=0.05)
        held += found.corrected.total >= risk
        unprotected += found.corrected.empirical >= risk
        totals.append(found.corrected.total)
        printed.append(found.printed.total)
    record_property("true risk", float(risk))
    record_property("corrected bound, mean", float(np.mean(totals)))
    record_property("printed bound, mean", float(np.mean(printed)))
    assert held == 200
    assert 60 < unprotected < 140  # the empirical term alone is above the risk about half of the time
    assert risk < np.mean(printed) < np.mean(totals)
    # the true risk, by simulation too
    x, y = draw(rng, 400_000)
    f = x @ W + B0 + SHIFT[0]
    assert np.logaddexp(0, -(2 * y - 1) * f).mean() == pytest.approx(risk, rel=0.01)


def test_proposition2_terms_by_hand():
    rng = np.random.default_rng(2)
    x, y = draw(rng, 60)
    alpha, bound, delta = [0.3, 0.7], 9.0, 0.1
    found = theory.proposition2(x, y, W, B0, alpha=alpha, prior=0.3, bound=bound, margins=(0.1, -0.2), delta=delta)
    omega = np.array(naive.pull(x.tolist(), y.tolist(), alpha))
    n, p, shift = np.bincount(y), [0.7, 0.3], np.array([0.1, -0.2])
    losses = np.logaddexp(0, -(2 * y - 1) * (x @ W + B0 + shift[y]))
    empirical = sum(p[c] * losses[y == c].mean() for c in (0, 1))
    square = sum(p[c] / n[c] * (omega[y == c].mean() + alpha[c]) for c in (0, 1))
    for form, log in ((found.printed, math.log(2 / delta)), (found.corrected, math.log(4 / delta))):
        assert form.concentration == pytest.approx(7 * bound * log / 3 * sum(p[c] / (n[c] - 1) for c in (0, 1)))
        assert form.empirical == pytest.approx(empirical)
        assert form.pull == pytest.approx(np.linalg.norm(W) * math.sqrt(log * square))
        assert form.total == pytest.approx(form.concentration + form.empirical + form.pull)
    signs = theory.proposition2(
        x, 2 * y - 1, W, B0, alpha=alpha, prior=0.3, bound=bound, margins=(0.1, -0.2), delta=delta
    )
    assert signs == found
    # the pull term does bound the variance term of the proof, the variance dividing by n − 1
    variance = sum(p[c] * math.sqrt(2 * losses[y == c].var(ddof=1) * math.log(4 / delta) / n[c]) for c in (0, 1))
    assert variance <= found.corrected.pull


def test_proposition2_refuses_what_it_cannot_bound():
    x, y = draw(np.random.default_rng(0), 100)
    given = {"alpha": 1.0, "prior": 0.1, "bound": 10.0}
    with pytest.raises(InputError, match="at least two samples of each class"):
        theory.proposition2(x[y == 0], y[y == 0], W, B0, **given)
    with pytest.raises(InputError, match="is no bound"):
        theory.proposition2(x, y, W, B0, **{**given, "bound": 0.01})
    with pytest.raises(InputError, match="two classes"):
        theory.proposition2(x, y + 1, W, B0, **given)
    with pytest.raises(InputError, match="prior"):
        theory.proposition2(x, y, W, B0, **{**given, "prior": 1.5})
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        theory.proposition2(x, y, [1.0], B0, **given)


def test_proposition2_has_two_alphas_or_one():
    x, y = torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    for alpha in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(InputError, match="alpha"):
            theory.proposition2(x, y, torch.ones(4), 0.0, alpha=alpha, prior=0.5, bound=9.0)


def test_loss_bound_is_attained():
    w, bias, margins = np.array([3.0, 4.0]), 0.5, (0.2, -1.0)
    bound = theory.loss_bound(w, bias, 2.0, margins)
    worst = max(
        np.logaddexp(0, -s * (w @ (d * w / 5 * 2) + bias + m)) for s, m in ((-1, 0.2), (1, -1.0)) for d in (-1, 1)
    )
    assert bound == pytest.approx(worst)
    with pytest.raises(InputError, match="radius"):
        theory.loss_bound(w, bias, float("inf"))


# The Gaussian argument ------------------------------------------------------------------------------------------------


def gaussians(counts, k=6, sigma=0.7, seed=0):
    g = torch.Generator().manual_seed(seed)
    mu = torch.randn(len(counts), k, generator=g, dtype=torch.float64)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return mu[y] + sigma * torch.randn(len(y), k, generator=g, dtype=torch.float64), y, mu


def test_gaussian_head_is_the_bayes_rule_of_its_gaussians():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    counts = [3000, 600, 90]
    x, y, mu = gaussians(counts)
    head = theory.gaussian_head(x, y, counts)
    assert head.sigma2 == pytest.approx(0.49, rel=0.04)
    posterior = head.logits(x).softmax(1)
    prior = ClassCounts(counts).prior
    fitted = torch.stack([x[y == c].mean(0) for c in range(3)])
    for means, sigma2, tolerance in ((fitted, head.sigma2, 1e-9), (mu, 0.49, 0.15)):
        density = torch.stack([-(x - m).square().sum(1) / (2 * sigma2) for m in means], 1)
        torch.testing.assert_close(posterior, (density + prior.log()).softmax(1), atol=tolerance, rtol=0)
    balanced = theory.gaussian_head(x, y, counts, balanced=True)
    torch.testing.assert_close(head.bias - balanced.bias, prior.log())
    lda = LinearDiscriminantAnalysis(priors=prior.numpy()).fit(x.numpy(), y.numpy()).predict(x.numpy())
    assert np.mean(lda == posterior.argmax(1).numpy()) > 0.99


def test_heads_compared():
    counts = [400, 100, 30]
    x, y, _ = gaussians(counts)
    head = theory.gaussian_head(x, y, counts)
    same = theory.compare_heads(head, 2 * head.weight + 1, head.bias, x)  # a common row added is no change to softmax
    assert same.cosine == pytest.approx(1)
    assert theory.compare_heads(head, head.weight, head.bias, x) == pytest.approx((1, 1, 1))
    opposite = theory.compare_heads(head, -head.weight, None, x)
    assert opposite.cosine == pytest.approx(-1)
    assert opposite.agreement < 0.3
    with pytest.raises(InputError, match="shape"):
        theory.compare_heads(head, head.weight[:2], None, x)


def test_gaussianity_tells_gaussians_from_others():
    x, y, mu = gaussians([2000, 500, 100], k=4)
    fit = theory.gaussianity(x, y)
    assert fit.skewness < 0.15
    assert abs(fit.kurtosis) < 0.2
    assert fit.isotropy == pytest.approx(1, abs=0.02)
    assert fit.variance_cv < 0.1
    g = torch.Generator().manual_seed(0)
    flat = mu[y] + torch.rand(x.shape, generator=g, dtype=torch.float64)
    assert theory.gaussianity(flat, y).kurtosis == pytest.approx(-1.2, abs=0.1)
    stretched = x * torch.tensor([10.0, 1, 1, 1], dtype=torch.float64)
    assert theory.gaussianity(stretched, y).isotropy < 0.35
    uneven = mu[y] + (x - mu[y]) * (1.0 + 2 * (y == 1)).unsqueeze(1)
    assert theory.gaussianity(uneven, y).variance_cv > 0.8
    skewed = mu[y] + torch.empty(x.shape, dtype=torch.float64).exponential_(generator=g)
    assert theory.gaussianity(skewed, y).skewness == pytest.approx(2, abs=0.4)


def test_collapsed_classes_have_no_gaussian_head():
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0]])
    with pytest.raises(InputError, match="single point"):
        theory.gaussian_head(x, [0, 0, 1], [2, 1])
    assert all(math.isnan(v) for v in theory.gaussianity(x, [0, 0, 1]))
