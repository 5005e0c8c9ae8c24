"""Arrays as nobody meant them, into public functions: a finite answer or one line, never another error.

``FUZZ=2000`` looks further; what it found stays here as an example.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longtail import ELM, ClassCounts
from longtail.errors import InputError
from longtail.estimator import LongTailClassifier
from longtail.evaluate import accuracy, diagnostics, theory
from longtail.posthoc import knn, logit_adjust, lws_scales, ncm, tau_norm, tau_normalise

quick = settings(
    max_examples=int(os.environ.get("FUZZ", "25")), deadline=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

NUMBERS = st.sampled_from(
    [0, 1, 2, -1, 3, 0.5, -2.5, 1e-320, 1e19, 1e38, 1e300, float("nan"), float("inf"), 10**18, 10**30]
)
DTYPES = st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool", "complex64", "object", "str"])
SHAPES = st.sampled_from([(), (0,), (1,), (4,), (0, 3), (4, 0), (4, 1), (1, 3), (4, 3), (3, 4), (2, 2, 3)])


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Mostly an array of this shape, in some type; else one of another shape, a list, a tensor, or no array at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(
            st.sampled_from([None, "abc", b"x", {}, {1: 2}, object(), [[1, 2], [3]], [], 3, [None], ["a", "b"]])
        )
    if kind < 3:
        shape = draw(SHAPES)
    values = [
        draw(NUMBERS) if draw(st.integers(0, 3)) == 0 else draw(st.integers(0, 2))
        for _ in range(np.prod(shape, dtype=int))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows in casts are what is wanted here
        try:
            made = np.array(values, dtype=object).reshape(shape).astype(draw(DTYPES))
        except (OverflowError, ValueError):  # NaN or 10^30 as a whole number
            made = np.array(values, dtype=float).reshape(shape)
    if kind == 3:
        return made.tolist()
    return torch.from_numpy(made) if kind < 7 and made.dtype.kind not in "OU" else made


LOGITS, LABELS, COUNTS = (4, 3), (4,), (3,)
elm = ELM(ClassCounts([5, 3, 1]))
CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "ClassCounts": (lambda n: ClassCounts(n).prior, (COUNTS,)),
    "from_labels": (lambda y: ClassCounts.from_labels(y).prior, (LABELS,)),
    "ELM": (lambda s, x, y: elm((s, x), y), (LOGITS, (4, 2), LABELS)),
    "accuracy.summary": (lambda s, y, n: accuracy.summary(s, y, n).balanced, (LOGITS, LABELS, COUNTS)),
    "accuracy.of_labels": (lambda p, y, n: accuracy.of_labels(p, y, n).balanced, (LABELS, LABELS, COUNTS)),
    "accuracy.calibration_error": (accuracy.calibration_error, (LABELS, LABELS)),
    "diagnostics.margins": (diagnostics.margins, (LOGITS, LABELS)),
    "diagnostics.cdf": (lambda v: diagnostics.cdf(v)[1], (LABELS,)),
    "diagnostics.max_intra_distance": (diagnostics.max_intra_distance, (LOGITS, LABELS)),
    "diagnostics.max_norm": (diagnostics.max_norm, (LOGITS,)),
    "diagnostics.has_positive": (diagnostics.has_positive, (LABELS,)),
    "diagnostics.expected_positives": (lambda n: diagnostics.expected_positives(n, 8)[ClassCounts(n).n > 0], (COUNTS,)),
    "diagnostics.class_variances": (lambda x, y: diagnostics.class_variances(x, y, 3)[present(y)], (LOGITS, LABELS)),
    "theory.proposition1": (lambda x, y, a: theory.proposition1(x, y, a).pull, (LOGITS, LABELS, COUNTS)),
    "logit_adjust": (logit_adjust, (LOGITS, COUNTS)),
    "tau_normalise": (tau_normalise, (LOGITS,)),
    "tau_norm": (tau_norm, ((4, 2), (3, 2))),
    "lws_scales": (lambda s, y: lws_scales(s, y, iterations=2), (LOGITS, LABELS)),
    "ncm": (lambda z, x, y: ncm(z, x, y, 3), (LOGITS, LOGITS, LABELS)),
    "knn": (lambda z, x, y: knn(z, x, y, 3, k=2), (LOGITS, LOGITS, LABELS)),
}  # fmt: skip


def present(labels: Any) -> torch.Tensor:
    """Which of three classes have a sample: an empty one has no variance."""
    return ClassCounts.from_labels(labels, num_classes=3).n > 0


def finite(value: Any) -> bool:
    return value is None or bool(np.isfinite(np.asarray(torch.as_tensor(value).double())).all())


@pytest.mark.parametrize("name", CALLS)
def test_complex_numbers_are_refused(name: str) -> None:
    call, shapes = CALLS[name]
    with pytest.raises(InputError, match="complex64"):
        call(*(torch.ones(shape, dtype=torch.complex64) for shape in shapes))


@pytest.mark.parametrize("name", CALLS)
@quick
@given(data=st.data())
def test_functions_answer_or_refuse(name: str, data: st.DataObject) -> None:
    call, shapes = CALLS[name]
    given = [data.draw(arrays(shape)) for shape in shapes]
    found, said = None, ""
    try:
        found = call(*given)
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    assert finite(found), (given, found)


@quick
@given(X=arrays((12, 2)), y=arrays((12,)), new=arrays((3, 2)))
@example(X=np.ones((12, 2)), y=np.arange(12) % 2, new=np.full((3, 2), 1e200))
def test_the_estimator_answers_or_refuses(X: Any, y: Any, new: Any) -> None:
    """Here the words may be scikit-learn's own: ValueError and TypeError are what its users expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = LongTailClassifier(epochs=1, random_state=0).fit(X, y).predict_proba(new)
        except (ValueError, TypeError):
            return
    assert finite(found)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("from_labels", [np.array(0, dtype=object)]),
        ("from_labels", [torch.tensor([10**18])]),
        ("ClassCounts", [np.zeros((2, 2, 3), dtype=object)]),
        ("ELM", [torch.zeros(4, 3), "abc", torch.zeros(4, 3)]),
        ("ELM", [torch.zeros(4, 3), torch.zeros(2, 2), torch.eye(4, 3)]),
        ("diagnostics.max_norm", [[[0.0, 1e300]]]),
        ("ncm", [[[0.0]], [[1e300]], [0]]),
    ],
)
def test_what_was_found_is_refused(name: str, given: list[Any]) -> None:
    with pytest.raises(InputError) as error:
        CALLS[name][0](*given)
    assert "\n" not in str(error.value)
