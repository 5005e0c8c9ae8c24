"""Per-class functions and margins: values, zero counts, printing, plain data, the short form."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail import ClassCounts
from longtail.errors import InputError
from longtail.margins import (
    Constant,
    EffectiveNumber,
    Ldam,
    LogPrior,
    Margin,
    Power,
    Relative,
    from_data,
    parse,
)

N = [50, 20, 8, 0, 2]
COUNTS = ClassCounts(N)
FUNCTIONS = [
    Constant(3.0),
    Power(0.5),
    Power(-0.5, scale=2.0, of="count"),
    Power(1.0, of="count"),
    LogPrior(),
    LogPrior(-0.5),
    EffectiveNumber(),
    EffectiveNumber(0.0),
    Ldam(),
    Ldam(0.3, scale=30.0),
    Relative(0.05),
]
MARGINS = [Margin(), Margin.log_ratio(), Margin.log_ratio(0.5), Margin(target=Ldam()), Margin(other=Power(1.0))]


def values(function: object) -> list[float]:
    found = function(COUNTS)
    assert found.shape == (5,)
    assert found.dtype == torch.float64
    assert found.isfinite().all()
    return found.tolist()


def test_constant() -> None:
    assert values(Constant(2)) == [2.0] * 5


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("of", ["prior", "count"])
def test_power_says_zero_for_nothing(exponent: float, of: str) -> None:
    base = [n / 80 for n in N] if of == "prior" else N
    assert values(Power(exponent, scale=3.0, of=of)) == pytest.approx([3 * b**exponent for b in base], rel=1e-14)


@pytest.mark.parametrize("of", ["prior", "count"])
def test_negative_powers_take_zero_as_one(of: str) -> None:
    base = [max(n, 1) / (80 if of == "prior" else 1) for n in N]
    assert values(Power(-0.25, of=of)) == pytest.approx([b**-0.25 for b in base], rel=1e-14)


def test_log_prior() -> None:
    assert values(LogPrior(2.0)) == pytest.approx([2 * math.log(max(n, 1) / 80) for n in N], rel=1e-14)


def test_effective_number_sums_to_c_over_classes_that_have_samples() -> None:
    raw = [(1 - 0.9) / (1 - 0.9 ** max(n, 1)) for n in N]
    total = sum(r for r, n in zip(raw, N) if n)
    found = values(EffectiveNumber(0.9))
    assert found == pytest.approx([5 * r / total for r in raw], rel=1e-12)
    assert sum(f for f, n in zip(found, N) if n) == pytest.approx(5)
    assert values(EffectiveNumber(0.0)) == pytest.approx([5 / 4] * 5)
    # 1 − β is below the last digit that β^n would keep: the limit is 1/n
    near_one = values(EffectiveNumber(1 - 1e-15))
    assert near_one[0] / near_one[1] == pytest.approx(20 / 50, rel=1e-9)


def test_ldam_has_its_maximum_at_the_rarest_class_that_has_samples() -> None:
    found = values(Ldam(0.5))
    assert found == pytest.approx([0.5 * (max(n, 1) / 2) ** -0.25 for n in N], rel=1e-14)
    assert max(f for f, n in zip(found, N) if n) == 0.5
    assert values(Ldam(0.5, scale=30.0)) == pytest.approx([30 * f for f in found])


def test_relative() -> None:
    assert values(Relative(0.5)) == pytest.approx([(max(n, 1) / 50) ** 0.5 for n in N], rel=1e-14)


def test_log_ratio_is_the_logarithm_of_the_ratio_of_priors() -> None:
    margin = Margin.log_ratio(0.7)
    assert margin.target is not None
    assert margin.other is not None
    delta = margin.target(COUNTS)[:, None] + margin.other(COUNTS)[None, :]
    p = COUNTS.safe_prior
    torch.testing.assert_close(delta, 0.7 * (p[None, :] / p[:, None]).log(), rtol=1e-12, atol=1e-14)
    assert (delta.diagonal() == 0).all()


@pytest.mark.parametrize("made", [*FUNCTIONS, *MARGINS], ids=repr)
def test_prints_as_the_code_that_makes_it_and_survives_json(made: object) -> None:
    assert eval(repr(made)) == made
    data = json.loads(json.dumps(made.to_data()))
    assert from_data(data) == made
    assert hash(from_data(data)) == hash(made)


def test_numbers_of_any_kind_are_the_same_function() -> None:
    assert Power(1) == Power(np.float32(1)) == Power(np.int64(1))
    assert repr(Power(1, scale=np.int64(2))) == "Power(1.0, scale=2.0)"
    json.dumps(Power(np.float32(0.5)).to_data())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (3, Constant(3.0)),
        ("3", Constant(3.0)),
        ("-1e-3", Constant(-0.001)),
        ("count", Power(1.0, of="count")),
        ("n", Power(1.0, of="count")),
        ("n^0.5", Power(0.5, of="count")),
        ("prior", Power(1.0)),
        ("10*prior^0.5", Power(0.5, scale=10.0)),
        (" 0.1 * count ** .5 ", Power(0.5, scale=0.1, of="count")),
        ("prior^(-0.5)", Power(-0.5)),
        ("0.5*log_prior", LogPrior(0.5)),
        ("effective(0.999)", EffectiveNumber(0.999)),
        (Power(0.5), Power(0.5)),
        ({"kind": "Power", "exponent": 0.5}, Power(0.5)),
    ],
)
def test_short_form(text: object, expected: object) -> None:
    assert parse(text) == expected


@given(st.floats(-10, 10), st.floats(-100, 100), st.sampled_from(["prior", "count"]))
def test_short_form_of_any_power(exponent: float, scale: float, of: str) -> None:
    assert parse(f"{scale!r}*{of}^{exponent!r}") == Power(exponent, scale=scale, of=of)


@pytest.mark.parametrize(
    "text", ["", "m^2", "n^", "2*", "prior^0.5^2", "effective(2)", "nan", "inf*n", True, None, "log n"]
)
def test_unreadable_short_forms(text: object) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert str(text) in str(caught.value) or "beta must be a number" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(float("nan")), "Constant's value must be a finite number, got nan"),
        (lambda: Power("a"), "Power's exponent must be a finite number, got 'a'"),
        (lambda: Power(0.5, scale=None), "Power's scale must be a finite number, got None"),
        (lambda: Power(0.5, of="counts"), "unknown Power of 'counts': did you mean 'count'? Valid: prior, count"),
        (lambda: LogPrior(True), "LogPrior's tau must be a finite number, got True"),
        (lambda: Margin.log_ratio("1"), "LogPrior's tau must be a finite number, got '1'"),
        (lambda: EffectiveNumber(1.0), "beta must be a number of at least 0 and below 1, got 1.0"),
        (lambda: Ldam(float("inf")), "Ldam's max_margin must be a finite number, got inf"),
        (
            lambda: Margin(target=1.0),
            "Margin's target must be a per-class function such as LogPrior() or None, got 1.0",
        ),
        (lambda: from_data({"kind": "Powr"}), "unknown margin kind 'Powr': did you mean 'Power'?"),
        (lambda: from_data({"kind": ["Power"]}), "unknown margin kind"),
        (lambda: from_data({"kind": "Power"}), "the plain data of Power lacks 'exponent'"),
        (
            lambda: from_data({"kind": "Power", "exponent": 1, "off": "n"}),
            "unknown field of Power 'off': did you mean 'of'?",
        ),
        (lambda: from_data([1]), "a mapping with a 'kind', got [1]"),
        (lambda: parse({"kind": "Margin"}), "cannot read"),
    ],
)
def test_mistakes_are_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()
