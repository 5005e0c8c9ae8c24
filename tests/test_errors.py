import numpy as np
import pytest

from longtail.errors import InputError, one_of, real, true_or_false, whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_kind_become_ints(value):
    assert type(whole("n", value, 1, 3)) is int


@pytest.mark.parametrize(
    ("value", "bounds", "words"),
    [
        (True, {}, "n must be a whole number, got True"),
        (1.0, {}, "n must be a whole number, got 1.0"),
        ("1", {"at_least": 0}, "n must be a whole number of at least 0, got '1'"),
        (-1, {"at_least": 0, "at_most": 9}, "n must be a whole number of at least 0 and of at most 9, got -1"),
        (10, {"at_most": 9}, "n must be a whole number of at most 9, got 10"),
    ],
)
def test_what_is_no_such_whole_number_is_refused_with_the_bounds(value, bounds, words):
    with pytest.raises(InputError) as e:
        whole("n", value, **bounds)
    assert str(e.value) == words


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int16(1)])
def test_numbers_of_any_kind_become_floats(value):
    assert type(real("x", value, above=0, at_most=1)) is float


@pytest.mark.parametrize(
    ("value", "bounds", "words"),
    [
        (float("nan"), {}, "x must be a finite number, got nan"),
        (None, {}, "x must be a finite number, got None"),
        (True, {"at_least": 0}, "x must be a number of at least 0, got True"),
        (float("inf"), {"at_least": 0}, "x must be a number of at least 0, got inf"),
        (0, {"above": 0}, "x must be a number above 0, got 0"),
        (1.0, {"at_least": 0, "below": 1}, "x must be a number of at least 0 and below 1, got 1.0"),
    ],
)
def test_what_is_no_such_number_is_refused_with_the_bounds(value, bounds, words):
    with pytest.raises(InputError) as e:
        real("x", value, **bounds)
    assert str(e.value) == words


def test_a_name_is_one_of_the_valid_ones():
    assert one_of("head", "linear", ("linear", "cosine")) == "linear"
    for wrong in ("linaer", 3, None):
        with pytest.raises(InputError, match=r"unknown head .*: .*Valid: linear, cosine"):
            one_of("head", wrong, ("linear", "cosine"))


def test_true_is_not_one():
    assert true_or_false("scaled", True) is True
    with pytest.raises(InputError, match="scaled must be True or False, got 1"):
        true_or_false("scaled", 1)
