import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import InputError
from longtail.numeric import class_labels, class_means, logit_margins, matrix, row_blocks, tensor, unit_rows


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_class_means_are_those_of_a_loop_and_differentiable(labels):
    y = torch.tensor(labels)
    x = torch.randn(len(labels), 3, dtype=torch.float64, requires_grad=True)
    means, n = class_means(x, y, 6)
    for c in range(6):
        members = x[y == c]
        assert int(n[c]) == len(members)
        torch.testing.assert_close(means[c], members.mean(0) if len(members) else torch.zeros(3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: class_means(x, y, 6)[0], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e6, 3e37])
def test_unit_rows_of_any_size(dtype, size):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    expected = x.double() / x.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(
        unit_rows(x * size).double(), expected, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-15
    )


def test_a_row_of_zeros_stays_without_a_gradient():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    unit_rows(x)[:, 0].sum().backward()
    assert x.grad[0].tolist() == [0, 0]
    torch.testing.assert_close(x.grad[1], torch.tensor([0.128, -0.096]))
    assert unit_rows(torch.zeros(2, 0)).shape == (2, 0)
    x = torch.tensor([[1e-45, 0.0], [2e-38, 0.0]], requires_grad=True)  # the first is too small for a direction
    unit_rows(x).sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[0].tolist() == [0, 0]


def test_unit_rows_differentiate_twice():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_rows, x)
    assert torch.autograd.gradgradcheck(unit_rows, x)


def test_logit_margins_are_those_of_a_loop():
    f, y = torch.randn(20, 4), torch.randint(0, 4, (20,))
    for row, label, margin in zip(f, y, logit_margins(f, y)):
        others = [float(v) for i, v in enumerate(row) if i != label]
        assert float(margin) == pytest.approx(float(row[label]) - max(others), abs=1e-6)


def test_blocks_cover_all_rows_once():
    assert [(s.start, s.stop) for s in row_blocks(5, 2, elements=4)] == [(0, 2), (2, 4), (4, 5)]
    assert [(s.start, s.stop) for s in row_blocks(2, 9, elements=4)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tensor("abc", "logits"), "logits must be an array of numbers, got str"),
        (lambda: matrix([1.0], "logits"), "logits must have two dimensions"),
        (lambda: matrix([[1.0], [float("nan")]], "logits"), "logits must be finite, but row 1 holds nan"),
        (lambda: class_labels([0, 1.5]), "labels must be whole numbers (class indices), but row 1 holds 1.5"),
        (lambda: class_labels([0, 3], num_classes=3), "labels must be in [0, 3), but row 1 holds 3"),
    ],
)
def test_what_cannot_be_used_is_named(call, words):
    with pytest.raises(InputError) as e:
        call()
    assert str(e.value).startswith(words)
