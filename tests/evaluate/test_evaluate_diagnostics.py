import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluate_references as naive
from longtail import ClassCounts, numeric
from longtail.errors import InputError
from longtail.evaluate import diagnostics, neighbours


def cloud(n=60, k=5, c=4, seed=0, dtype=torch.float64, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(c, (n,), generator=g)
    return (torch.randn(n, k, generator=g, dtype=torch.float64) + y.unsqueeze(1) + shift).to(dtype), y


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that every loop over them runs several times."""
    monkeypatch.setattr(numeric.row_blocks, "__defaults__", (37,))
    monkeypatch.setattr(diagnostics.pairs_by_class, "__defaults__", (7,))
    monkeypatch.setattr(neighbours, "_KEY_ROWS", 11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_margins(dtype):
    f, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).to(dtype), torch.arange(30) % 4
    found = diagnostics.margins(f, y)
    expected = [naive.margin(row, label) for row, label in zip(f.double().tolist(), y.tolist())]
    np.testing.assert_allclose(found.double(), expected, atol=1e-6)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(found > 0, f.float().argmax(1) == y)
    torch.testing.assert_close(diagnostics.margins(f.float() + 3, y), found.float(), atol=1e-5, rtol=0)
    before = f.clone()
    diagnostics.margins(f, y)
    assert torch.equal(f, before)


def test_margins_need_two_classes():
    with pytest.raises(InputError, match="two classes"):
        diagnostics.margins([[1.0]], [0])


def test_cdf():
    x, share = diagnostics.cdf([2.0, -1.0, 5.0, 5.0])
    assert x.tolist() == [-1, 2, 5, 5]
    assert share.tolist() == [0.25, 0.5, 0.75, 1]
    values = np.random.default_rng(0).normal(size=1001)
    q, at = diagnostics.cdf(values, points=11)
    np.testing.assert_allclose(q, np.quantile(values, at))
    with pytest.raises(InputError):
        diagnostics.cdf([])
    with pytest.raises(InputError):
        diagnostics.cdf([1.0], points=1)


def test_max_intra_distance(small_blocks):
    x, y = cloud()
    y[0] = 7  # alone in its class
    found = diagnostics.max_intra_distance(x, y)
    np.testing.assert_allclose(found, naive.d_max(x.tolist(), y.tolist()), rtol=1e-12)
    assert found[0] == 0
    norm = x.norm(dim=1).max()
    torch.testing.assert_close(diagnostics.max_intra_distance(x, y, normalise=True), found / norm)
    torch.testing.assert_close(diagnostics.max_norm(x), norm)
    assert diagnostics.max_intra_distance(x.numpy(), y.tolist()).tolist() == found.tolist()


def test_max_intra_distance_is_accurate_in_float32_far_from_the_origin():
    x, y = cloud(200, 16, 3, dtype=torch.float32, shift=1000.0)
    exact = diagnostics.max_intra_distance(x.double(), y)
    found = diagnostics.max_intra_distance(x, y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    same = torch.full((5, 3), 0.1)
    assert diagnostics.max_intra_distance(same, torch.zeros(5, dtype=torch.long)).tolist() == [0.0] * 5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6), st.integers(1, 5))
def test_invariances(seed, n, k, c):
    x, y = cloud(n, k, c, seed)
    g = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(k, k, generator=g, dtype=torch.float64))[0]
    order = torch.randperm(n, generator=g)
    moved = 2.5 * (x @ rotation)[order] + 3
    torch.testing.assert_close(
        diagnostics.max_intra_distance(moved, y[order]), 2.5 * diagnostics.max_intra_distance(x, y)[order]
    )
    before, after = diagnostics.scatter(x, y, c), diagnostics.scatter(moved, y[order], c)
    torch.testing.assert_close(after.variances, 6.25 * before.variances, equal_nan=True)
    if before.inter > 1e-9:
        assert after.ratio == pytest.approx(before.ratio)


def test_scatter_against_numpy(small_blocks):
    x, y = cloud(50, 3, 4)
    found = diagnostics.scatter(x, y, num_classes=6)
    assert torch.equal(diagnostics.class_variances(x, y, 6).isnan(), torch.tensor([False] * 4 + [True] * 2))
    means = []
    for c in range(4):
        mine = x[y == c].numpy()
        assert found.variances[c] == pytest.approx(mine.var(0).sum())
        means.append(mine.mean(0))
    np.testing.assert_allclose(found.means[:4], means)
    between = np.var(means, axis=0).sum()
    assert found.inter == pytest.approx(between)
    assert found.ratio == pytest.approx(np.mean([x[y == c].numpy().var(0).sum() for c in range(4)]) / between)
    assert np.isnan(diagnostics.scatter(x, torch.zeros_like(y)).ratio)


def test_neural_collapse_against_numpy(small_blocks):
    x, y = cloud(80, 3, 4)
    found = diagnostics.neural_collapse(x, y)
    assert found.nc1 == pytest.approx(naive.nc1(x.numpy(), y.tolist()))
    means = np.stack([x[y == c].mean(0).numpy() for c in range(4)])
    m = means - means.mean(0)
    lengths = np.linalg.norm(m, axis=1)
    assert found.equinorm == pytest.approx(lengths.std() / lengths.mean())
    u = m / lengths[:, None]
    cos = (u @ u.T)[~np.eye(4, dtype=bool)]
    assert found.equiangle == pytest.approx(cos.std())
    assert found.max_angle == pytest.approx(np.abs(cos + 1 / 3).mean())
    assert found.self_duality is None
    assert found.ncm_mismatch is None


def test_neural_collapse_is_zero_at_collapse_and_says_what_it_cannot():
    simplex = torch.eye(4, dtype=torch.float64) - 0.25
    y = torch.arange(4).repeat_interleave(3)
    found = diagnostics.neural_collapse(5 * simplex[y], y, head_weight=2 * simplex, logits=simplex[y])
    np.testing.assert_allclose(found, 0, atol=1e-7)
    assert np.isnan(diagnostics.neural_collapse(simplex[y], torch.zeros_like(y)).nc1)


def test_class_means_that_coincide_have_no_angles():
    found = diagnostics.neural_collapse(torch.ones(4, 2), [0, 0, 1, 1])
    assert np.isnan([found.nc1, found.equinorm, found.equiangle, found.max_angle]).all()


def test_labels_of_text_are_named_as_such():
    with pytest.raises(InputError, match="an array of <U1"):
        diagnostics.margins(np.eye(2), np.array(["a", "b"]))


def test_neighbours_against_naive_and_scikit_learn(small_blocks):
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid, NearestNeighbors

    x, y = cloud(70, 4, 3)
    q, truth = cloud(25, 4, 3, seed=1)
    distances, where = neighbours.nearest(x, q, 5)
    reference = NearestNeighbors(n_neighbors=5).fit(x.numpy()).kneighbors(q.numpy())
    np.testing.assert_allclose(distances.sqrt(), reference[0])
    np.testing.assert_array_equal(where, reference[1])
    counts = ClassCounts.from_labels(y)
    for k in (1, 3, 4):
        winner = neighbours.majority(neighbours.nearest_labels(x, y, q, k, 3))
        expected = [naive.vote(x.numpy(), y.numpy(), row, k) for row in q.numpy()]
        assert winner.tolist() == expected
        found = diagnostics.knn_accuracy(x, y, q, truth, counts, k)
        assert found.accuracy == pytest.approx(np.mean(np.array(expected) == truth.numpy()))
    one = KNeighborsClassifier(1).fit(x.numpy(), y.numpy()).predict(q.numpy())
    assert neighbours.nearest_labels(x, y, q, 1, 3)[:, 0].tolist() == one.tolist()
    centroid = NearestCentroid().fit(x.numpy(), y.numpy()).predict(q.numpy())
    assert neighbours.nearest_mean(x, y, q, 3).tolist() == centroid.tolist()
    assert diagnostics.ncm_accuracy(x, y, q, truth, counts).accuracy == np.mean(centroid == truth.numpy())
    with pytest.raises(InputError, match="between 1 and"):
        neighbours.nearest(x, q, 71)


def test_nearest_mean_never_names_a_class_without_samples():
    winner = neighbours.nearest_mean(torch.tensor([[5.0], [9.0]]), torch.tensor([1, 3]), torch.zeros(2, 1), 5)
    assert winner.tolist() == [1, 1]


def test_has_positive_and_its_expectation_by_formula_and_by_counting():
    counts = ClassCounts([40, 12, 5, 1, 0])
    chance = diagnostics.expected_positives(counts, 8)
    expected = [naive.chance_of_positive(n, 58, 8) for n in (40, 12, 5, 1)]
    np.testing.assert_allclose(chance[:4], expected, rtol=1e-10, atol=1e-12)
    assert chance[4].isnan()
    g = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(4), counts.n[:4])
    hits, seen = torch.zeros(4), torch.zeros(4)
    for _ in range(4000):
        batch = labels[torch.randperm(58, generator=g)[:8]]
        hits += torch.bincount(batch, diagnostics.has_positive(batch).float(), minlength=4)
        seen += torch.bincount(batch, minlength=4)
    np.testing.assert_allclose(hits / seen, chance[:4], atol=0.02)


def test_expected_positives_at_the_edges():
    assert diagnostics.expected_positives([3, 2], 1).tolist() == [0, 0]
    assert diagnostics.expected_positives([3, 2], 5).tolist() == [1, 1]
    assert diagnostics.expected_positives([3, 2], 500).tolist() == [1, 1]
    inat = ClassCounts([5] + [1000] * 437 + [508])
    assert diagnostics.expected_positives(inat, 1024)[0] == pytest.approx(0.009, abs=5e-4)
    cifar = ClassCounts([int(500 * 100 ** (-i / 99)) for i in range(100)])
    assert diagnostics.expected_positives(cifar, 128)[99] == pytest.approx(0.046, abs=5e-4)
    with pytest.raises(InputError):
        diagnostics.expected_positives([3, 2], 0)


def test_refuses_mismatched_embeddings():
    with pytest.raises(InputError, match="3 samples, but 2 labels"):
        diagnostics.max_intra_distance(torch.zeros(3, 2), [0, 1])
    with pytest.raises(InputError, match="row 1 holds nan"):
        diagnostics.class_variances([[0.0], [float("nan")]], [0, 1])
    with pytest.raises(InputError, match="2 columns"):
        neighbours.nearest_labels(torch.zeros(3, 2), [0, 1, 0], torch.zeros(1, 3), 1, 2)
