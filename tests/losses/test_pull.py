"""Pull, HardPull and RelativePull against naive loops, on both of their paths, and where others get NaN."""

import copy
import io
import math
import pickle

import pytest
import torch

from longtail import ClassCounts
from longtail.errors import InputError
from longtail.losses import Features, HardPull, Objective, Pull, RelativePull, pull_kernel
from longtail.losses.memory import ClassMemory
from longtail.margins import Constant, Power
from losses import pull_references as naive

REFERENCE = {Pull: naive.pull, HardPull: naive.hard_pull, RelativePull: naive.relative_pull}
TERMS = list(REFERENCE)
C = 7
COUNTS = ClassCounts([40, 20, 10, 5, 2, 1, 0])
ALPHA = torch.tensor([3.0, 0.5, 2.0, 1.0, 0.0, 4.0, 1.5], dtype=torch.float64)


def force(plan, patch):
    """Make one of the two plans the cheaper one, whatever the batch; the grouped one in small pieces."""
    if plan == "dense":
        patch.setattr(pull_kernel, "BLOCK", math.inf)
        return
    for price in ("MAC", "PAIR", "MOVE", "BLOCK"):
        patch.setattr(pull_kernel, price, 0.0)
    patch.setattr(pull_kernel, "PIECE", 500)


@pytest.fixture(params=["dense", "grouped"])
def path(request, monkeypatch):
    """Small batches exercise both plans."""
    force(request.param, monkeypatch)
    return request.param


def batch(b=24, k=5, seed=0, dtype=torch.float64, scale=0.7):
    g = torch.Generator().manual_seed(seed)
    x = (scale * torch.randn(b, k, generator=g, dtype=torch.float64)).to(dtype)
    labels = torch.multinomial(torch.tensor([8.0, 4, 2, 2, 1, 1, 1]), b, replacement=True, generator=g)
    return x, labels


def variants(seed, dtype, b=24, m=31, k=5):
    """(x, labels, ids, keys): the batch itself, with shared ids, keys without and with ids."""
    x, labels = batch(b, k, seed, dtype)
    z, key_labels = batch(m, k, seed + 50, dtype)
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 12, (len(x),), generator=g) * 1000
    key_ids = torch.randint(0, 12, (len(z),), generator=g) * 1000
    yield x, labels, None, None
    yield x, labels, ids, None
    yield x, labels, ids, Features(z, key_labels)
    yield x, labels, ids, Features(z, key_labels, key_ids)


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_the_naive_loop(kind, dtype, rtol, path):
    term = kind(COUNTS, alpha=ALPHA)
    for seed in range(3):
        for x, labels, ids, keys in variants(seed, dtype):
            values = term((None, x), labels, keys=keys, ids=ids)
            assert values.dtype == dtype
            expected = REFERENCE[kind](x, labels, ALPHA, ids, keys)
            torch.testing.assert_close(values.double(), expected, rtol=rtol, atol=rtol * 1e-2)


@pytest.mark.parametrize("kind", TERMS)
def test_gradcheck(kind, path):
    # HardPull is smooth away from ties, and random data has none.
    term = kind(COUNTS, alpha=ALPHA / 4)
    for x, labels, ids, keys in variants(4, torch.float64, b=13, m=17, k=3):
        x.requires_grad_()
        assert torch.autograd.gradcheck(lambda e: term(e, labels, keys=keys, ids=ids), (x,))  # noqa: B023
        if keys is not None:
            z = keys.embeddings.clone().requires_grad_()
            both = lambda e, k: term(e, labels, keys=keys._replace(embeddings=k), ids=ids)  # noqa: B023, E731
            assert torch.autograd.gradcheck(both, (x, z))
            assert torch.autograd.gradcheck(lambda k: both(x.detach(), k), (z,))  # noqa: B023


def test_the_plans_for_large_batches_agree():
    counts = ClassCounts([int(500 * 0.01 ** (i / 99)) for i in range(100)])
    g = torch.Generator().manual_seed(0)
    labels = torch.multinomial(counts.prior, 700, replacement=True, generator=g)
    x = torch.randn(700, 32, generator=g, dtype=torch.float64)

    def run(kind):
        e = x.clone().requires_grad_()
        values = kind(counts)(e, labels)
        values.mul(torch.linspace(0, 1, 700)).sum().backward()
        return values, e.grad

    for kind in TERMS:
        values, grad = run(kind)
        for plan in ("dense", "grouped"):
            with pytest.MonkeyPatch.context() as patch:
                force(plan, patch)
                forced_values, forced_grad = run(kind)
            torch.testing.assert_close(values, forced_values, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(grad, forced_grad, rtol=1e-8, atol=1e-10)


def test_pull_is_never_below_hard_pull(path):
    for seed in range(5):
        x, labels = batch(seed=seed, scale=2.0)
        soft, hard = Pull(COUNTS, alpha=ALPHA)(x, labels), HardPull(COUNTS, alpha=ALPHA)(x, labels)
        alive = Pull(COUNTS).alive(labels)
        assert (soft >= hard * (1 - 1e-12)).all()
        assert (soft[alive] > 0).all()
        assert (soft[~alive] == 0).all()


@pytest.mark.parametrize("kind", TERMS)
def test_a_shift_and_a_permutation_change_nothing(kind, path):
    x, labels = batch(seed=7)
    term = kind(COUNTS, alpha=ALPHA)
    values = term(x, labels)
    torch.testing.assert_close(term(x + 100.0, labels), values, rtol=1e-9, atol=1e-11)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(term(x[order], labels[order]), values[order], rtol=1e-12, atol=0)


def test_classes_far_from_the_origin_and_from_each_other_lose_no_digits(path):
    x, labels = batch(seed=3, scale=0.3)
    centres = 1e3 * torch.randn(C, 5, generator=torch.Generator().manual_seed(2))
    far = (x + centres[labels].double()).float()
    expected = naive.pull(far, labels, ALPHA)
    torch.testing.assert_close(Pull(COUNTS, alpha=ALPHA)(far, labels).double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_degenerate_batches_are_finite(kind, dtype, path):
    term = kind(COUNTS)
    g = torch.Generator().manual_seed(0)
    large = torch.nn.functional.normalize(torch.randn(16, 8, generator=g), dim=1) * 1e3
    cases = {
        "norm 1e3": (large, torch.arange(16) % 3),
        "batch of one": (large[:1], torch.tensor([2])),
        "no positives": (large[:C], torch.arange(C)),
        "all of one class": (large, torch.full((16,), 6)),
        "identical": (torch.full((6, 8), 3.7), torch.tensor([0, 0, 0, 6, 6, 5])),
        "huge and identical": (torch.full((6, 8), 3e4), torch.tensor([0, 0, 0, 6, 6, 5])),
        "one apart": (torch.cat([torch.zeros(5, 8), torch.ones(1, 8)]), torch.zeros(6, dtype=torch.long)),
    }
    for name, (x, labels) in cases.items():
        x = x.to(dtype).requires_grad_()
        values = term(x, labels)
        values.sum().backward()
        assert values.requires_grad, name
        assert torch.isfinite(values).all(), name
        assert x.grad is not None, name
        assert torch.isfinite(x.grad).all(), name
        if name in ("batch of one", "no positives"):
            assert (values == 0).all(), name
        if "identical" in name or name in ("batch of one", "no positives"):
            assert (x.grad == 0).all(), name


def test_an_empty_batch_gives_no_values():
    x = torch.zeros(0, 4, requires_grad=True)
    values = Pull(COUNTS)(x, torch.zeros(0, dtype=torch.long))
    assert values.shape == (0,)
    values.sum().backward()


def test_an_anchor_without_a_positive_has_no_gradient_among_others_that_have(path):
    x, labels = torch.randn(5, 3), torch.tensor([0, 0, 1, 2, 2])
    x.requires_grad_()
    Pull(COUNTS)(x, labels).sum().backward()
    assert (x.grad[2] == 0).all()
    assert (x.grad[[0, 1, 3, 4]] != 0).any(dim=1).all()


def test_ids_exclude_and_positions_do_not_where_keys_are_given():
    x = torch.zeros(2, 3)
    labels, ids = torch.tensor([1, 1]), torch.tensor([10, 11])
    term = Pull(COUNTS, alpha=0.0)
    one = torch.log(torch.tensor(2.0))
    two = torch.log(torch.tensor(3.0))
    torch.testing.assert_close(term(x, labels), one.expand(2))
    torch.testing.assert_close(term(x, labels, ids=torch.tensor([4, 4])), torch.zeros(2))
    torch.testing.assert_close(term(x, labels, keys=Features(x, labels)), two.expand(2))
    torch.testing.assert_close(term(x, labels, keys=Features(x, labels, ids), ids=ids), one.expand(2))
    only = Features(x[:1], labels[:1], ids[:1])
    torch.testing.assert_close(term(x, labels, keys=only, ids=ids), torch.stack([torch.tensor(0.0), one]))
    nothing = Features(x[:0], labels[:0])
    assert (term(x.requires_grad_(), labels, keys=nothing) == 0).all()


def test_alive_counts_what_the_values_sum_over():
    term = Pull(COUNTS, alpha=0.0)
    for x, labels, ids, keys in variants(11, torch.float64):
        expected = torch.tensor([len(d) > 0 for d in naive.distances(x, labels, ids, keys)])
        assert torch.equal(term.alive(labels, keys, ids), expected)
        assert torch.equal(term(x, labels, keys=keys, ids=ids) > 0, expected)


@pytest.mark.parametrize("kind", TERMS)
def test_a_memory_takes_in_the_batch_before_backward_which_knows_nothing_of_it(kind, path):
    """What backward needs of the keys is what they were, also where the gradient is differentiated."""
    term = kind(COUNTS, alpha=ALPHA)
    objective = Objective((1.0, term), memory=ClassMemory(COUNTS, capacity=4))
    for seed in range(3):
        x, labels = batch(seed=seed)
        ids = torch.arange(len(labels)) + 100 * seed
        x.requires_grad_()
        keys = objective.memory.recall(labels, ids)
        loss = objective(x, labels, ids=ids)
        expected = term(x, labels, ids=ids, **({} if keys is None else {"extra": keys})).mean()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        (other,) = torch.autograd.grad(expected, x, create_graph=True)
        torch.testing.assert_close(grad, other)
        second = [torch.autograd.grad(g.square().sum(), x)[0] for g in (grad, other)]
        torch.testing.assert_close(*second)
        x.grad = None
        objective(x, labels, ids=ids).backward()  # pushes the same samples once more


@pytest.mark.parametrize("kind", TERMS)
def test_keys_beside_the_batch_are_the_union(kind, path):
    x, labels = batch(seed=5)
    z, key_labels = batch(b=20, seed=6)
    ids, key_ids = torch.arange(24), torch.arange(14, 34)
    x.requires_grad_()
    term = kind(COUNTS, alpha=ALPHA)
    together = term(x, labels, ids=ids, extra=Features(z, key_labels, key_ids))
    (grad,) = torch.autograd.grad(together.sum(), x)
    union = Features(torch.cat([x, z]), torch.cat([labels, key_labels]), torch.cat([ids, key_ids]))
    joined = term(x, labels, keys=union, ids=ids)
    torch.testing.assert_close(together, joined, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grad, torch.autograd.grad(joined.sum(), x)[0], rtol=1e-8, atol=1e-10)


def test_scaled_multiplies_the_sum_by_the_class_over_what_is_at_hand(path):
    x, labels = batch(seed=9)
    n = COUNTS.n.tolist()
    expected = naive.pull(x, labels, ALPHA, factor=lambda i, m: max(n[labels[i]] - 1, 1) / m)
    torch.testing.assert_close(Pull(COUNTS, alpha=ALPHA, scaled=True)(x, labels), expected, rtol=1e-9, atol=1e-12)


def test_scaled_sum_is_unbiased_its_logarithm_low_and_the_whole_class_exact():
    n, m = 9, 3
    x = 0.8 * torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.zeros(n, dtype=torch.long)
    plain, scaled = Pull([n], alpha=0.5), Pull([n], alpha=0.5, scaled=True)
    full = plain(x, labels)
    torch.testing.assert_close(scaled(x, labels), full, rtol=1e-12, atol=0)
    # Every way of having m of the other n − 1 at hand, so that the mean is exact.
    subsets = torch.combinations(torch.arange(1, n), m)
    values = torch.stack([scaled(x[:1], labels[:1], keys=Features(x[s], labels[s]))[0] for s in subsets])
    torch.testing.assert_close(values.expm1().mean(), full[0].expm1(), rtol=1e-12, atol=0)
    assert values.mean() < full[0]
    without = torch.stack([plain(x[:1], labels[:1], keys=Features(x[s], labels[s]))[0] for s in subsets])
    assert without.mean() < values.mean()


def test_scaled_is_unbiased_where_there_is_a_positive_and_0_where_there_is_none():
    # A batch of 2 besides the anchor, of 3 samples of its class and 4 others: every one of them.
    x, labels = batch(b=7, seed=3)[0], torch.tensor([0, 0, 0, 1, 1, 1, 1])
    scaled = Pull([3, 4], alpha=0.5, scaled=True)
    full = Pull([3, 4], alpha=0.5)(x, labels)[0].expm1()
    batches = [torch.tensor([0, *others]) for others in torch.combinations(torch.arange(1, 7), 2).tolist()]
    sums = torch.stack([scaled(x[b], labels[b])[0].expm1() for b in batches])
    alive = torch.tensor([bool((labels[b[1:]] == 0).any()) for b in batches])
    torch.testing.assert_close(sums[alive].mean(), full, rtol=1e-12, atol=0)
    assert (sums[~alive] == 0).all()


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-8, 1e-9, 1e-10, 1e-12, 1e-14, 1e-15, 1e-16, 1e-20, 1e6, 1e15])
def test_relative_pull_has_a_finite_gradient_however_small_embeddings_are(size, path):
    x, labels = batch(seed=2, dtype=torch.float32)
    x = (size * x).requires_grad_()
    RelativePull(COUNTS)(x, labels).mean().backward()
    assert x.grad.isfinite().all()


def test_relative_pull_ignores_the_scale_and_its_gradient_has_no_part_along_it(path):
    x, labels = batch(seed=2)
    x.requires_grad_()
    term = RelativePull(COUNTS, alpha=1.0)
    values = term(x, labels)
    torch.testing.assert_close(term(37.0 * x, labels), values, rtol=1e-10, atol=0)
    (grad,) = torch.autograd.grad(values.sum(), x)
    assert grad.abs().max() > 1e-3
    assert abs(float((grad * (x - x.mean(0)).detach()).sum())) < 1e-10  # shrinking everything gains nothing


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (2, [2.0, 2.0]),
        ("10*prior^0.5", [10 * 0.9**0.5, 10 * 0.1**0.5]),
        (Constant(0.25), [0.25, 0.25]),
        ([1.0, 2.0], [1.0, 2.0]),
        (torch.tensor([3, 4]), [3.0, 4.0]),
        (Power(0.5, of="count"), [90**0.5, 10**0.5]),
    ],
)
def test_alpha_in_all_its_forms(alpha, expected):
    vector = Pull([90, 10], alpha=alpha).vector("alpha", torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(vector, torch.tensor(expected, dtype=torch.float64))


def test_default_alpha_is_the_root_of_the_count():
    assert Pull(COUNTS).alpha == HardPull(COUNTS).alpha == Power(0.5, of="count")
    assert "Power(0.5, of='count')" in repr(Pull(COUNTS))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Pull(COUNTS, alpha="sqrt(n)"), "sqrt"),
        (lambda: Pull(COUNTS, alpha=[1.0, 2.0]), "one value for each of the 7 classes"),
        (lambda: Pull(COUNTS, alpha=float("nan")), "finite"),
        (lambda: Pull(COUNTS, alpha=None), "alpha must be a per-class function such as .* 7 values, got None"),
        (lambda: Pull(COUNTS, scaled=2), "True or False"),
        (lambda: Pull(COUNTS)((None, None), torch.tensor([0])), "needs embeddings"),
        (lambda: Pull(COUNTS)(torch.zeros(2, 3), torch.tensor([0, 7])), r"label 7 .* outside \[0, 7\)"),
        (lambda: Pull(COUNTS)(torch.zeros(2, 3), torch.tensor([0.0, 1.0])), "whole numbers"),
        (lambda: Pull(COUNTS)(torch.zeros(2, 3), torch.tensor([0, 1]), ids=torch.tensor([0])), "ids must be"),
        (lambda: Pull(COUNTS).alive(torch.tensor([9])), "outside"),
    ],
)
def test_mistakes_are_named(call, match):
    with pytest.raises(InputError, match=match):
        call()


@pytest.mark.parametrize("kind", TERMS)
def test_copies_pickles_casts_and_compiles(kind):
    x, labels = batch(seed=8, dtype=torch.float32)
    term = kind(COUNTS)
    values = term(x, labels)
    stream = io.BytesIO()
    torch.save(term.state_dict(), stream)
    compiled = torch.compile(copy.deepcopy(term), backend="eager")
    for other in (pickle.loads(pickle.dumps(term)), copy.deepcopy(term), copy.deepcopy(term).half(), compiled):
        assert torch.equal(other(x, labels), values)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x.requires_grad_()
        inside = term(x, labels)
        inside.sum().backward()
        grad, x.grad = x.grad, None
    assert torch.equal(inside, values)
    term(x, labels).sum().backward()
    assert torch.equal(grad, x.grad)


def test_no_grad_leaves_nothing_behind():
    x, labels = batch()
    x.requires_grad_()
    with torch.no_grad():
        assert not Pull(COUNTS)(x, labels).requires_grad
