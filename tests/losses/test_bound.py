"""The bound on a pull's weight: against derivatives by differences, and what it does to an objective."""

import pytest
import torch

from longtail import ELM, ClassCounts, Objective
from longtail.errors import InputError
from longtail.losses import HardPull, MarginCrossEntropy, Outputs, Pull, RelativePull
from longtail.margins import Margin

COUNTS = ClassCounts([60, 9, 3])
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 0])
STEP = 1e-6


def problem(seed=0, size=1.0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, 3, generator=g, dtype=torch.float64) + 3 * torch.eye(3, dtype=torch.float64)[LABELS]
    return logits, size * torch.randn(8, 5, generator=g, dtype=torch.float64)


def along(function):
    return (function(1 + STEP) - function(1 - STEP)) / (2 * STEP)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_growth_is_the_derivative_along_the_logits(scale):
    logits, _ = problem()
    term = MarginCrossEntropy(COUNTS, margin=Margin.log_ratio(), scale=scale)
    expected = -along(lambda t: term((t * logits, None), LABELS))
    torch.testing.assert_close(term.growth(Outputs(logits), LABELS), expected, rtol=1e-5, atol=1e-8)
    soft = torch.nn.functional.one_hot(LABELS, 3).double()
    torch.testing.assert_close(term.growth(Outputs(logits), soft), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("size", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("kind", [Pull, HardPull])
def test_shrinkage_is_an_upper_estimate_of_the_derivative_along_the_embeddings(kind, size):
    _, x = problem(size=size)
    term = kind(COUNTS, alpha=0.5)
    exact = along(lambda t: term(t * x, LABELS))
    found = term.shrinkage(term(x, LABELS), LABELS)
    assert (found >= exact - 1e-6).all()
    two = torch.tensor([3, 4])  # with a single positive it is exact
    torch.testing.assert_close(found[two], exact[two], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [0.1, 3.0, 1e3])
def test_an_automatic_weight_takes_back_at_most_half_of_the_growth(size):
    logits, x = problem(size=size)
    criterion = ELM(COUNTS, lam="auto")
    loss, parts = criterion((logits, x), LABELS, return_parts=True)
    logit, pull = (term for _, term in criterion.weighted)
    growth = logit.growth(Outputs(logits), LABELS).mean()
    shrinkage = pull.shrinkage(pull(x, LABELS), LABELS).mean()
    assert 0 < parts["lam"] <= 0.01
    assert parts["lam"] * shrinkage <= 0.5 * growth * (1 + 1e-9)
    assert parts["lam"] == 0.01 or float(parts["lam"] * shrinkage) == pytest.approx(0.5 * float(growth))
    torch.testing.assert_close(loss, parts["logit"] + parts["lam"] * parts["pull"])
    fixed = ELM(COUNTS, lam=0.01)((logits, x), LABELS)
    assert loss <= fixed


def test_the_weight_is_a_constant_to_the_gradient_and_zero_where_logits_ask_for_no_growth():
    logits, x = problem(size=3.0)
    x.requires_grad_()
    criterion = ELM(COUNTS, lam="auto")
    loss, parts = criterion((logits, x), LABELS, return_parts=True)
    (found,) = torch.autograd.grad(loss, x)
    (pull,) = torch.autograd.grad(Pull(COUNTS)(x, LABELS).mean(), x)
    torch.testing.assert_close(found, parts["lam"] * pull)
    assert criterion((-logits, x), LABELS, return_parts=True)[1]["lam"] == 0


def test_a_limit_of_one_is_lowered_too():
    logits, x = problem(size=3.0)
    objective = Objective((1.0, MarginCrossEntropy(COUNTS)), (1.0, Pull(COUNTS)), bound=0.5)
    loss, parts = objective((logits, x), LABELS, return_parts=True)
    assert 0 < parts["lam"] < 1
    torch.testing.assert_close(loss, parts["logit"] + parts["lam"] * parts["pull"])


def test_what_shrinking_cannot_satisfy_keeps_its_weight():
    logits, x = problem(size=100.0)
    for term in (RelativePull(COUNTS), Pull(COUNTS, normalise=True)):
        _, parts = Objective((1.0, MarginCrossEntropy(COUNTS)), (0.01, term), bound=0.5)(
            (logits, x), LABELS, return_parts=True
        )
        assert "lam" not in parts


def test_lam_and_bound_are_checked():
    with pytest.raises(InputError, match="lam must be a number of at least 0, got 'much'"):
        ELM(COUNTS, lam="much")
    with pytest.raises(InputError, match="bound must be a number of at least 0, got -1"):
        Objective((1.0, MarginCrossEntropy(COUNTS)), bound=-1)
