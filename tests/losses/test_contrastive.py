"""InfoNCE, SupCon, Triplet: known values, oracles, and triplets that are counted without being formed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import references as naive
from longtail.errors import InputError
from longtail.losses import Features, InfoNCE, SupCon, Triplet


def batch(
    size: int = 10, k: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, k, generator=g, dtype=dtype), torch.randint(0, 3, (size,), generator=g)


def test_temperature_and_norm_act_on_the_similarity() -> None:
    x, y = batch()
    plain = SupCon([1, 1, 1])((None, F.normalize(x, dim=1) / 0.1**0.5), y)
    torch.testing.assert_close(SupCon([1, 1, 1], normalise=True, temperature=0.1)((None, x), y), plain)
    assert torch.equal(SupCon([1, 1, 1], temperature=1.0)((None, x), y), SupCon([1, 1, 1])((None, x), y))


def test_with_one_positive_each_infonce_is_cross_entropy_over_keys() -> None:
    x, y = batch(8)
    ids = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    similarities = (x @ x.T / 0.5).fill_diagonal_(-torch.inf)
    expected = F.cross_entropy(similarities, torch.tensor([4, 5, 6, 7, 0, 1, 2, 3]), reduction="none")
    found = InfoNCE([1, 1, 1], temperature=0.5)((None, x), y, ids=ids)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_infonce_does_not_look_at_labels() -> None:
    x, y = batch(8)
    ids = torch.arange(8) // 2
    term = InfoNCE([1, 1, 1])
    assert torch.equal(term((None, x), y, ids=ids), term((None, x), torch.zeros_like(y), ids=ids))


def test_infonce_without_ids_says_what_is_missing() -> None:
    x, y = batch(4)
    with pytest.raises(InputError, match="InfoNCE finds a sample's second view by its id, but the batch came without"):
        InfoNCE([1, 1, 1])((None, x), y)
    with pytest.raises(InputError, match="but the keys came without ids"):
        InfoNCE([1, 1, 1])((None, x), y, keys=Features(x, y), ids=torch.arange(4))


def test_infonce_finds_its_positive_among_keys() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    keys = Features(x, torch.tensor([0, 0]), torch.tensor([7, 8]))
    found = InfoNCE([1])((None, x), torch.tensor([0, 0]), keys=keys, ids=torch.tensor([7, 8]))
    assert found.tolist() == pytest.approx([math.log1p(math.exp(-1))] * 2, rel=1e-6)


def test_infonce_beside_a_memory_is_not_its_own_view() -> None:
    x, y = batch(6)
    more, more_y = batch(5, seed=1)
    ids, more_ids = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 10, 11, 12, 13])
    found = InfoNCE([1, 1, 1])((None, x), y, ids=ids, extra=Features(more, more_y, more_ids))
    # a batch of eleven of which the first six are asked
    whole = InfoNCE([1, 1, 1])((None, torch.cat([x, more])), torch.cat([y, more_y]), ids=torch.cat([ids, more_ids]))
    torch.testing.assert_close(found, whole[:6], rtol=1e-12, atol=0)


# --- triplets ---


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 14), st.integers(0, 999), st.sampled_from([0.0, 0.5, 1.0, 4.0]), st.booleans())
def test_triplets_are_counted_right_also_with_ties(size: int, seed: int, gamma: float, ties: bool) -> None:
    x, y = batch(size, 2, seed)
    if ties:  # whole numbers: many similarities are equal, many lie exactly on the margin
        x = x.round()
    found = Triplet([1, 1, 1], gamma=gamma)((None, x), y)
    expected = torch.tensor(naive.triplet(x.tolist(), y.tolist(), gamma), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_triplets_of_large_embeddings(dtype: torch.dtype) -> None:
    # Similarities near 1e6, where a margin of 1 is a few units of the last digit of float32
    x = 1e3 * F.normalize(torch.ones(12, 3) + 0.01 * batch(12, 3)[0].float(), dim=1)
    y = batch(12)[1]
    similarities = (x.to(dtype) @ x.to(dtype).T).double()
    hinge = (1 + similarities[:, None, :] - similarities[:, :, None]).clamp(min=0)
    positive = (y[:, None] == y[None, :]) & ~torch.eye(12, dtype=torch.bool)
    negative = y[:, None] != y[None, :]
    which = positive[:, :, None] & negative[:, None, :]
    expected = (hinge * which).sum((1, 2)) / which.sum((1, 2)).clamp(min=1)
    found = Triplet([1, 1, 1])((None, x.to(dtype)), y).double()
    torch.testing.assert_close(
        found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=0.05 if dtype == torch.float32 else 1e-6
    )


def test_the_gradient_of_a_triplet_is_what_violates_its_margin() -> None:
    x, y = batch(9)
    x.requires_grad_()
    similarities = x @ x.T
    total = torch.zeros((), dtype=torch.float64)
    for i in range(9):
        positives = [j for j in range(9) if j != i and y[j] == y[i]]
        negatives = [j for j in range(9) if y[j] != y[i]]
        for p in positives:
            for n in negatives:
                total = total + F.relu(1 + similarities[i, n] - similarities[i, p]) / (len(positives) * len(negatives))
    expected = torch.autograd.grad(total, x)[0]
    found = torch.autograd.grad(Triplet([1, 1, 1])((None, x), y).sum(), x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_no_triplet_is_formed() -> None:
    # B³ floats would be 4 GB, and some more
    x, y = batch(1024, 2, dtype=torch.float32)
    values = Triplet([1, 1, 1])((None, x.requires_grad_()), y)
    values.sum().backward()
    assert values.isfinite().all()


@pytest.mark.parametrize("term", [InfoNCE, SupCon])
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_temperature_is_named(term: type, temperature: float) -> None:
    with pytest.raises(InputError, match=f"temperature must be a number above 0, got {temperature}"):
        term([1], temperature=temperature)


def test_wrong_gamma_is_named() -> None:
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got -1"):
        Triplet([1], gamma=-1)
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got None"):
        Triplet([1], gamma=None)  # type: ignore[arg-type]
