"""The losses on logits: exact identities with torch's own, options of the cross-entropy, known values."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import longtail.losses.logit as module
import references as naive
from longtail import ClassCounts
from longtail.errors import InputError
from longtail.losses import HardMargin, Hybrid, MarginCrossEntropy, Objective, SigmoidFocal
from longtail.margins import Constant, EffectiveNumber, Ldam, LogPrior, Margin, Power, Relative

N = [60, 25, 9, 4, 0]
COUNTS = ClassCounts(N)
C = len(N)
WEIGHTS = torch.tensor([0.2, 1.0, 1.5, 3.0, 2.0], dtype=torch.float64)
LOG_PRIOR = COUNTS.safe_prior.log()


def batch(size: int = 20, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(size, C, generator=g, dtype=torch.float64)).to(dtype)
    return logits.requires_grad_(), torch.randint(0, C, (size,), generator=g)


def same_to_the_bit(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> None:
    """Values are equal bit for bit, gradients too."""
    assert torch.equal(a, b)
    g = torch.linspace(0.5, 2.0, len(a), dtype=a.dtype)
    assert torch.equal(torch.autograd.grad(a, x, g)[0], torch.autograd.grad(b, x, g)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("margin", [None, Margin(), Margin(target=Constant(0.0)), Margin.log_ratio(0.0)], ids=repr)
def test_no_margin_is_exactly_cross_entropy(margin: Margin | None, dtype: torch.dtype) -> None:
    x, y = batch(dtype=dtype)
    same_to_the_bit(MarginCrossEntropy(COUNTS, margin=margin)((x, None), y), F.cross_entropy(x, y, reduction="none"), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_log_ratio_is_exactly_cross_entropy_on_adjusted_logits(tau: float, dtype: torch.dtype) -> None:
    x, y = batch(dtype=dtype)
    adjusted = F.cross_entropy(x + (tau * LOG_PRIOR).to(dtype), y, reduction="none")
    same_to_the_bit(MarginCrossEntropy(COUNTS, margin=Margin.log_ratio(tau))((x, None), y), adjusted, x)


@pytest.mark.parametrize("margin", [None, Margin.log_ratio(), Margin(target=Ldam())], ids=repr)
def test_working_in_pieces_changes_no_bit(margin: Margin | None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = batch(23, dtype=torch.float32)
    whole = MarginCrossEntropy(COUNTS, margin=margin)((x, None), y)
    for piece in (4 * C, 1):
        monkeypatch.setattr(module, "PIECE", piece)
        same_to_the_bit(MarginCrossEntropy(COUNTS, margin=margin)((x, None), y), whole_again(whole, x, y, margin), x)


def whole_again(whole: torch.Tensor, x: torch.Tensor, y: torch.Tensor, margin: Margin | None) -> torch.Tensor:
    """The plain formula on all rows, with its own graph."""
    if margin is None:
        return F.cross_entropy(x, y, reduction="none")
    if margin.other is not None:
        return F.cross_entropy(x + LOG_PRIOR.float(), y, reduction="none")
    own = -Ldam()(COUNTS).float()
    again = F.cross_entropy(x.scatter_add(1, y[:, None], own[y][:, None]), y, reduction="none")
    assert torch.equal(again, whole)
    return again


def test_no_matrix_over_pairs_of_classes_is_made() -> None:
    c = 60_000  # C×C would be 28 GB
    term = MarginCrossEntropy(range(1, c + 1), margin=Margin(target=Ldam(), other=Power(1.0)), label_smoothing=0.1)
    assert term((torch.zeros(2, c), None), torch.tensor([0, c - 1])).isfinite().all()


def test_a_scale_comes_before_the_margin() -> None:
    x, y = batch()
    term = MarginCrossEntropy(COUNTS, margin=Margin.log_ratio(0.5), scale=Relative(0.3))
    expected = F.cross_entropy(x * Relative(0.3)(COUNTS) + 0.5 * LOG_PRIOR, y, reduction="none")
    torch.testing.assert_close(term((x, None), y), expected, rtol=1e-12, atol=0)
    ldam = MarginCrossEntropy(COUNTS, margin=Margin(target=Ldam(scale=30.0)), scale=30.0)
    cosines = x.tanh()
    shifted = cosines - F.one_hot(y, C) * Ldam()(COUNTS)[y][:, None]
    torch.testing.assert_close(
        ldam((cosines, None), y), F.cross_entropy(30 * shifted, y, reduction="none"), rtol=1e-12, atol=1e-14
    )


# --- weights, and what the mean is divided by ---


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_ignore_index_and_smoothing_are_those_of_torch(smoothing: float) -> None:
    x, y = batch()
    y[3] = y[7] = -1
    term = MarginCrossEntropy(COUNTS, weights=WEIGHTS, label_smoothing=smoothing, ignore_index=-1)
    settings = {"weight": WEIGHTS, "label_smoothing": smoothing, "ignore_index": -1}
    values = term((x, None), y)
    torch.testing.assert_close(values, F.cross_entropy(x, y, reduction="none", **settings), rtol=1e-12, atol=0)
    assert values[3] == values[7] == 0
    torch.testing.assert_close(
        Objective((1.0, term))((x, None), y), F.cross_entropy(x, y, **settings), rtol=1e-12, atol=0
    )
    assert (torch.autograd.grad(values.sum(), x)[0][3] == 0).all()


def test_weighted_means_are_divided_by_the_weights() -> None:
    x, y = batch()
    term = MarginCrossEntropy(COUNTS, margin=Margin.log_ratio(), weights=EffectiveNumber(0.99))
    w = EffectiveNumber(0.99)(COUNTS)
    found = term.weights(y, x)
    assert found is not None
    torch.testing.assert_close(found, w[y])
    expected = F.cross_entropy(x + LOG_PRIOR, y, weight=w)
    torch.testing.assert_close(Objective((1.0, term))((x, None), y), expected, rtol=1e-12, atol=0)
    assert MarginCrossEntropy(COUNTS).weights(y, x) is None


@pytest.mark.parametrize("ignore_index", [-100, 1])
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"focal": 2.0},
        {"label_smoothing": 0.2},
        {"margin": Margin(target=Ldam(), other=LogPrior()), "label_smoothing": 0.2},
    ],
    ids=repr,
)
def test_ignored_samples_are_as_if_not_there(ignore_index: int, knobs: dict) -> None:
    x, y = batch()
    y[y == 1] = 0
    y[::3] = ignore_index
    term, plain = MarginCrossEntropy(COUNTS, ignore_index=ignore_index, **knobs), MarginCrossEntropy(COUNTS, **knobs)
    kept = y != ignore_index
    values = term((x, None), y)
    assert (values[~kept] == 0).all()
    assert torch.equal(values[kept], plain((x, None), y.masked_fill(~kept, 0))[kept])
    mean = Objective((1.0, plain))((x[kept], None), y[kept])
    torch.testing.assert_close(Objective((1.0, term))((x, None), y), mean, rtol=1e-12, atol=0)


def test_a_batch_of_ignored_samples_is_0_not_nan() -> None:
    x, _ = batch(3)
    loss = Objective((1.0, MarginCrossEntropy(COUNTS, ignore_index=-1)))((x, None), torch.full((3,), -1))
    loss.backward()
    assert loss == 0
    assert x.grad is not None
    assert (x.grad == 0).all()


def test_only_the_ignored_label_may_be_outside() -> None:
    with pytest.raises(InputError, match=r"label -2 in labels is outside \[0, 5\)"):
        MarginCrossEntropy(COUNTS, ignore_index=-1)((torch.zeros(2, C), None), torch.tensor([-1, -2]))


def test_no_label_is_ignored_unasked_where_labels_are_not_looked_at() -> None:
    # A compiled term cannot look at values, as one on an accelerator does not; torch's own default would ignore -100.
    term = torch.compile(MarginCrossEntropy(COUNTS), backend="eager")
    with pytest.raises(IndexError, match="-100 is out of bounds"):
        term((torch.zeros(2, C), None), torch.tensor([0, -100]))


# --- soft labels ---

ASYMMETRIC = Margin(target=Ldam(2.0), other=Power(0.5))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 999),
    st.sampled_from([None, Margin.log_ratio(), ASYMMETRIC]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 1.5]),
)
def test_soft_labels_equal_the_naive_loop(seed: int, margin: Margin | None, smoothing: float, focal: float) -> None:
    x, _ = batch(6, seed)
    q = torch.rand(6, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = q / q.sum(1, keepdim=True)
    knobs = {"margin": margin, "label_smoothing": smoothing, "focal": focal, "weights": WEIGHTS}
    zero = Constant(0.0)
    parts = margin or Margin(zero, zero)
    expected = naive.margin_cross_entropy(
        x.tolist(),
        q.tolist(),
        (parts.target or zero)(COUNTS).tolist(),
        (parts.other or zero)(COUNTS).tolist(),
        weights=WEIGHTS.tolist(),
        focal=focal,
        smoothing=smoothing,
    )
    found = MarginCrossEntropy(COUNTS, **knobs)((x, None), q)
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-13)
    with torch.no_grad():
        narrow = MarginCrossEntropy(COUNTS, **knobs)((x.float(), None), q.float())
    torch.testing.assert_close(narrow.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("margin", [None, Margin.log_ratio(), ASYMMETRIC], ids=repr)
def test_soft_labels_of_one_class_are_hard_labels(margin: Margin | None) -> None:
    x, y = batch()
    term = MarginCrossEntropy(COUNTS, margin=margin, weights=WEIGHTS)
    q = F.one_hot(y, C).double()
    torch.testing.assert_close(term((x, None), q), term((x, None), y), rtol=1e-10, atol=1e-14)
    objective = Objective((1.0, term))
    torch.testing.assert_close(objective((x, None), q), objective((x, None), y), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("margin", [None, Margin.log_ratio(), ASYMMETRIC], ids=repr)
def test_gradients_of_soft_labels(margin: Margin | None) -> None:
    x, y = batch(5)
    q = 0.6 * F.one_hot(y, C).double() + 0.4 / C
    term = MarginCrossEntropy(COUNTS, margin=margin, weights=WEIGHTS, focal=0.7)
    assert torch.autograd.gradcheck(lambda x: term((x, None), q), (x,))


@pytest.mark.parametrize(
    "knobs", [{"margin": Margin.log_ratio()}, {"margin": ASYMMETRIC, "label_smoothing": 0.1}], ids=repr
)
def test_gradients_of_gradients(knobs: dict) -> None:
    x, y = batch(4)
    assert torch.autograd.gradgradcheck(lambda x: MarginCrossEntropy(COUNTS, **knobs)((x, None), y), (x,))


@pytest.mark.parametrize("ignore_index", [-100, 1])
def test_soft_labels_beside_an_ignored_label(ignore_index: int) -> None:
    x, y = batch()
    q = 0.6 * F.one_hot(y, C).double() + 0.4 / C
    for knobs in ({}, {"margin": ASYMMETRIC}):
        found = MarginCrossEntropy(COUNTS, ignore_index=ignore_index, **knobs)((x, None), q)
        assert torch.equal(found, MarginCrossEntropy(COUNTS, **knobs)((x, None), q))


def test_mixup_is_the_mixture_of_losses() -> None:
    x, y = batch()
    other = y.flip(0)
    term = MarginCrossEntropy(COUNTS, margin=ASYMMETRIC)
    q = 0.3 * F.one_hot(y, C).double() + 0.7 * F.one_hot(other, C).double()
    mixed = 0.3 * term((x, None), y) + 0.7 * term((x, None), other)
    torch.testing.assert_close(term((x, None), q), mixed, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("margin", [None, Margin.log_ratio(), ASYMMETRIC], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_soft_labels_at_the_extremes(margin: Margin | None, dtype: torch.dtype) -> None:
    x = torch.tensor([[1e4, -1e4, 0, 1e4, -1e4], [0, 0, 0, 0, 0], [40, 0, 0, 0, 0]], dtype=dtype, requires_grad=True)
    q = torch.tensor([[0.5, 0.5, 0, 0, 0], [0.2] * 5, [1.0, 0, 0, 0, 0]], dtype=dtype)
    values = MarginCrossEntropy(COUNTS, margin=margin, focal=0.5)((x, None), q)
    values.sum().backward()
    assert values.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_an_almost_certain_class_keeps_its_digits_in_float32() -> None:
    # p = 1 − 4e-8: the rest, 1 − p, has no digit left in float32, and the margin of 15 makes it matter
    x = torch.tensor([[17.0, 0.0, 0.0, 0.0, 0.0]])
    term = MarginCrossEntropy(COUNTS, margin=Margin(target=Constant(15.0)))
    hard, soft = term((x, None), torch.tensor([0])), term((x, None), torch.tensor([[1.0, 0, 0, 0, 0]]))
    exact = math.log1p(4 * math.exp(15 - 17))
    assert hard.item() == pytest.approx(exact, rel=1e-6)
    assert soft.item() == pytest.approx(exact, rel=1e-6)


def test_wrong_soft_labels_are_named() -> None:
    with pytest.raises(InputError, match=re.escape("soft labels must have shape (B, 5), got (3, 4)")):
        MarginCrossEntropy(COUNTS)((torch.zeros(3, C), None), torch.rand(3, 4))
    with pytest.raises(InputError, match="whole numbers"):
        HardMargin(COUNTS)((torch.zeros(3, C), None), torch.rand(3, C))


# --- one class, focal, wrong knobs ---


@pytest.mark.parametrize(
    "knobs", [{}, {"margin": ASYMMETRIC}, {"margin": ASYMMETRIC, "label_smoothing": 0.1}], ids=repr
)
def test_with_one_class_there_is_nothing_to_lose(knobs: dict) -> None:
    x = torch.randn(3, 1, requires_grad=True)
    for term in (MarginCrossEntropy([5], **knobs), HardMargin([5], margin=knobs.get("margin"))):
        values = term((x, None), torch.zeros(3, dtype=torch.long))
        assert (values == 0).all()
        assert (torch.autograd.grad(values.sum(), x)[0] == 0).all()


def test_focal_of_0_is_no_focal_and_a_sure_sample_counts_less() -> None:
    x, y = batch()
    plain = MarginCrossEntropy(COUNTS)((x, None), y)
    focal = MarginCrossEntropy(COUNTS, focal=2.0)((x, None), y)
    torch.testing.assert_close(focal, (1 - (-plain).exp()) ** 2 * plain, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"margin": Power(0.5)}, "margin must be a Margin such as Margin.log_ratio() or None, got Power(0.5)"),
        ({"weights": [1.0, 2.0]}, "weights must have one value for each of the 5 classes, got shape (2,)"),
        ({"weights": [-1.0] * 5}, "weights must not be negative, got -1.0"),
        ({"scale": 0.0}, "scale must be above 0 for every class, got 0.0"),
        ({"scale": float("nan")}, "scale must be finite for every class, got nan"),
        ({"focal": -1}, "focal must be a number of at least 0, got -1"),
        ({"label_smoothing": 1.5}, "label_smoothing must be a number of at least 0 and of at most 1, got 1.5"),
        ({"label_smoothing": None}, "label_smoothing must be a number of at least 0 and of at most 1, got None"),
        ({"focal": "2"}, "focal must be a number of at least 0, got '2'"),
        ({"focal": math.inf}, "focal must be a number of at least 0, got inf"),
        ({"ignore_index": 0.5}, "ignore_index must be a whole number, got 0.5"),
        (
            {"weights": "effective(0.9)"},
            "weights must be a per-class function such as Power(0.5), a number or 5 values",
        ),
        ({"scale": None}, "scale must be a per-class function such as Power(0.5), a number or 5 values, got None"),
    ],
)
def test_wrong_knobs_are_named(knobs: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        MarginCrossEntropy(COUNTS, **knobs)


def test_wrong_knobs_of_the_others() -> None:
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got -1"):
        SigmoidFocal(COUNTS, gamma=-1)
    with pytest.raises(InputError, match="gamma must be a number of at least 0, got inf"):
        SigmoidFocal(COUNTS, gamma=math.inf)
    with pytest.raises(InputError, match="weights must not be negative"):
        SigmoidFocal(COUNTS, weights=[-1.0] * 5)
    with pytest.raises(InputError, match="margin must be a Margin"):
        HardMargin(COUNTS, margin="log_ratio")


# --- the others ---


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 200))
def test_the_hinge_is_below_the_soft_form(seed: int) -> None:
    x, y = batch(6, seed)
    for margin in (None, Margin.log_ratio(), ASYMMETRIC):
        hinge, soft = (
            HardMargin(COUNTS, margin=margin)((x, None), y),
            MarginCrossEntropy(COUNTS, margin=margin)((x, None), y),
        )
        assert (hinge < soft).all()
        assert (soft <= hinge + math.log(C) + 1e-12).all()


def test_sigmoid_focal_without_focus_is_the_sum_of_binary_losses() -> None:
    x, y = batch()
    expected = F.binary_cross_entropy_with_logits(x, F.one_hot(y, C).double(), reduction="none").sum(1)
    torch.testing.assert_close(SigmoidFocal(COUNTS, gamma=0.0)((x, None), y), expected, rtol=1e-12, atol=0)


def test_the_mean_of_sigmoid_focal_is_over_the_batch() -> None:
    x, y = batch()
    term = SigmoidFocal(COUNTS, weights=EffectiveNumber())
    assert term.weights(y, x) is None
    values = term((x, None), y)
    torch.testing.assert_close(Objective((1.0, term))((x, None), y), values.mean())
    torch.testing.assert_close(values, SigmoidFocal(COUNTS)((x, None), y) * EffectiveNumber()(COUNTS)[y])


def test_hybrid_compares_the_column_of_the_label() -> None:
    logits = torch.tensor([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]])
    found = Hybrid([2, 1])((logits, None), torch.tensor([0, 0, 1]))
    expected = [
        math.log1p(math.exp(3 - 1)),
        math.log1p(math.exp(3 - 2)),
        math.log(1 + math.exp(5 - 3) + math.exp(4 - 3)),
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_logits_may_come_alone() -> None:
    x, y = batch()
    assert torch.equal(MarginCrossEntropy(COUNTS)(x, y), MarginCrossEntropy(COUNTS)((x, None), y))
