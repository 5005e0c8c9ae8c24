"""Center, range, spreadout, DRO-LT: known values, centroids, state."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch

import references as naive
from longtail import ClassCounts
from longtail.errors import InputError
from longtail.losses import Center, DroLt, Features, Objective, Range, Spreadout
from longtail.losses.pairs import squared_distances
from longtail.margins import Constant

COUNTS = ClassCounts([40, 9, 0])


def embeddings(size: int = 8, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, k, generator=g, dtype=torch.float64), torch.randint(0, 3, (size,), generator=g)


def test_means_of_classes_do_not_depend_on_how_many_classes_there_are() -> None:
    counts = torch.ones(1_000_000, dtype=torch.long)  # a table of all classes' means would be 16 GB
    term = Center(counts)
    assert term((None, torch.zeros(4, 2048)), torch.tensor([0, 999_999, 5, 5])).eq(0).all()


def test_range_is_about_the_closest_two() -> None:
    x = torch.tensor([[0.0], [3.0], [3.5]], requires_grad=True)
    values = Range([1, 1, 1], gamma=2.0)((None, x), torch.tensor([0, 1, 2]))
    assert values.tolist() == [1.75, 1.75, 1.75]
    values.mean().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0.0, 1.0, -1.0]
    assert Range([1, 1, 1])((None, 10 * x), torch.tensor([0, 1, 2])).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("term", [Range(COUNTS, gamma=50.0), Spreadout(COUNTS)], ids=lambda t: t.name)
def test_terms_of_a_whole_batch_say_the_same_for_every_sample(term: Range | Spreadout) -> None:
    x, y = embeddings()
    values = term((None, x), y)
    assert values.shape == (8,)
    assert (values == values[0]).all()
    assert values[0] > 0
    assert Objective((1.0, term))((None, x), y) == pytest.approx(values[0].item())


def test_spreadout_knows_orthogonal_from_parallel() -> None:
    y = torch.zeros(2, dtype=torch.long)
    for rows, expected in (([[2.0, 0], [0, 3]], 0.0), ([[2.0, 0], [3, 0]], 1.5), ([[2.0, 0], [-3, 0]], 1.5)):
        assert Spreadout(COUNTS)((None, torch.tensor(rows)), y).tolist() == pytest.approx([expected] * 2)


def test_spreadout_does_not_see_norms_however_small_or_large() -> None:
    x, y = embeddings(6)
    expected = Spreadout(COUNTS)((None, x), y)
    for scale in (1e-200, 1e-30, 1e200):
        torch.testing.assert_close(Spreadout(COUNTS)((None, x * scale), y), expected, rtol=1e-9, atol=0)


def test_distances_of_far_away_points_keep_their_digits() -> None:
    g = torch.Generator().manual_seed(0)
    offset = 1e3 * torch.nn.functional.normalize(torch.randn(1, 16, generator=g), dim=1)
    x = offset + torch.randn(32, 16, generator=g)
    y = torch.randint(0, 3, (32,), generator=g)
    for term in (Center(COUNTS), DroLt(COUNTS), Range(COUNTS, gamma=30.0)):
        exact = term((None, x.double()), y)
        torch.testing.assert_close(term((None, x), y).double(), exact, rtol=1e-5, atol=1e-5)


def test_squared_distances_are_never_negative() -> None:
    x = 1e3 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    assert (squared_distances(x, x) >= 0).all()


# --- DRO-LT ---


def test_dro_lt_by_hand() -> None:
    x = torch.tensor([[0.0], [2.0], [4.0]])
    found = DroLt([2, 1], epsilon=Constant(0.5))((None, x), torch.tensor([0, 0, 1]))
    # class 0 has its mean at 1, where both its samples are at distance 1 and the third at 9
    first = math.log(2 + math.exp(1 - 9 + 0.5))
    third = math.log(1 + math.exp(0 - 16 + 0.5) + math.exp(0 - 4 + 0.5))
    assert found.tolist() == pytest.approx([first, first, third], rel=1e-6)


def test_epsilon_is_one_over_the_root_of_the_prior_by_default() -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    found = DroLt([3, 1])((None, x), y)
    assert found.tolist() == pytest.approx([math.log1p(math.exp((4 / 3) ** 0.5)), math.log1p(math.exp(2.0))], rel=1e-6)


def test_the_mean_takes_the_anchor_and_its_keys() -> None:
    x, y = torch.tensor([[0.0], [10.0]]), torch.tensor([0, 1])
    keys = Features(torch.tensor([[2.0], [4.0], [7.0]]), torch.tensor([0, 0, 1]))
    found = DroLt([2, 1], epsilon=Constant(0.0))((None, x), y, keys=keys)
    # means: (0 + 2 + 4)/3 = 2 and (10 + 7)/2 = 8.5
    expected = [
        math.log(1 + math.exp(4 - 0) + math.exp(4 - 4) + math.exp(4 - 25)),
        math.log(1 + math.exp(2.25 - 42.25) + math.exp(2.25 - 20.25) + math.exp(2.25 - 2.25)),
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_frozen_centroids_stay_and_take_no_gradient() -> None:
    x, y = embeddings(k=3)
    centroids = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    term = DroLt(COUNTS, centroids=centroids.requires_grad_())
    found = term((None, x), y)
    epsilon = COUNTS.safe_prior**-0.5
    expected = naive.dro_lt(x.tolist(), y.tolist(), epsilon.tolist(), centroids.tolist())
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)
    assert not found.requires_grad
    later = DroLt(COUNTS)
    assert later.centroids is None
    assert not torch.equal(later((None, x), y), found)
    later.set_centroids(centroids)
    assert torch.equal(later((None, x), y), found)
    with torch.no_grad():
        centroids += 1
    assert torch.equal(later((None, x), y), found)


def test_centroids_travel_in_the_state_dict() -> None:
    x, y = embeddings(k=3)
    trained = Objective((0.1, DroLt(COUNTS, centroids=torch.randn(3, 3, dtype=torch.float64))))
    expected = trained((None, x), y)
    state = trained.state_dict()
    assert list(state) == ["terms.0.centroids"]
    for fresh in (Objective((0.1, DroLt(COUNTS))), Objective((0.1, DroLt(COUNTS, centroids=torch.zeros(3, 9))))):
        fresh.load_state_dict(state)
        assert torch.equal(fresh((None, x), y), expected)
    assert not DroLt(COUNTS).state_dict()
    assert torch.equal(copy.deepcopy(trained)((None, x), y), expected)
    with pytest.raises(RuntimeError, match="centroids"):
        DroLt([1, 2]).load_state_dict(DroLt(COUNTS, centroids=torch.zeros(3, 3)).state_dict())


def test_casting_the_module_leaves_centroids_alone() -> None:
    centroids = torch.randn(3, 3)
    for cast in (DroLt.half, DroLt.double, DroLt.bfloat16, lambda t: t.to(torch.float16)):
        term = cast(DroLt(COUNTS, centroids=centroids))
        assert term.centroids is not None
        assert torch.equal(term.centroids, centroids)
    moved = DroLt(COUNTS, centroids=centroids).to("meta").half()
    assert moved.centroids is not None
    assert moved.centroids.device.type == "meta"
    assert moved.centroids.dtype == torch.float32


def test_the_centroid_of_a_class_without_samples_may_be_undefined() -> None:
    centroids = torch.zeros(3, 2)
    centroids[2] = torch.nan
    assert DroLt(COUNTS, centroids=centroids)((None, torch.ones(2, 2)), torch.tensor([2, 0])).isfinite().all()


@pytest.mark.parametrize(
    ("centroids", "message"),
    [
        (torch.zeros(4, 2), "centroids must be a tensor of shape (3, K), got (4, 2)"),
        (torch.zeros(3), "centroids must be a tensor of shape (3, K), got (3,)"),
        ([[0.0]] * 3, "centroids must be a tensor of shape (3, K), got list"),
        (torch.tensor([[0.0], [torch.inf], [0.0]]), "centroids must be finite, but that of class 1 is not"),
    ],
)
def test_wrong_centroids_are_named(centroids: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        DroLt(COUNTS, centroids=centroids)


def test_centroids_of_another_width_are_named() -> None:
    with pytest.raises(InputError, match="centroids have 5 columns, embeddings 3"):
        DroLt(COUNTS, centroids=torch.zeros(3, 5))((None, torch.zeros(2, 3)), torch.tensor([0, 1]))


def test_wrong_gamma_is_named() -> None:
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got -1"):
        Range(COUNTS, gamma=-1)
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got '1'"):
        Range(COUNTS, gamma="1")  # type: ignore[arg-type]
