"""The losses as a library: transforms of torch.func, second derivatives, and inputs that no loss can be computed of."""

import pytest
import torch
from torch.func import grad, vmap

from longtail import ELM, ClassCounts
from longtail.errors import InputError
from longtail.losses import Features, HardPull, Pull, RelativePull
from longtail.losses.memory import ClassMemory
from loss_cases import CASES, COUNTS, Case, K, batch

first = pytest.mark.parametrize("case", [c for c in CASES if c.first], ids=repr)
pulls = pytest.mark.parametrize("kind", [Pull, HardPull, RelativePull])


@first
def test_func_grad_is_the_gradient_and_vmap_a_loop(case: Case) -> None:
    labels = batch(case, 9)[1]
    xs = torch.stack([batch(case, 9, seed)[0] for seed in range(3)])
    torch.testing.assert_close(
        vmap(lambda x: case.run(x, labels))(xs), torch.stack([case.run(x, labels) for x in xs]), rtol=1e-9, atol=1e-12
    )
    found = vmap(grad(lambda x: case.run(x, labels).sum()))(xs)
    for x, of_transform in zip(xs, found):
        x = x.clone().requires_grad_()
        torch.testing.assert_close(
            torch.autograd.grad(case.run(x, labels).sum(), x)[0], of_transform, rtol=1e-9, atol=1e-10
        )


@first
def test_a_second_backward_pass(case: Case) -> None:
    x, labels = batch(case, 8, seed=3)
    assert torch.autograd.gradgradcheck(lambda x: case.run(x, labels), (x.requires_grad_(),), atol=1e-5)


@pulls
def test_a_gradient_is_the_same_whether_it_is_to_be_differentiated_or_not(kind) -> None:
    x = torch.randn(12, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = torch.arange(12) % 3
    for keyed in (False, True):

        def gradient(create_graph, keyed=keyed):
            keys = Features(2 * x, labels.flip(0)) if keyed else None
            values = kind(COUNTS, alpha=0.3)(x, labels, keys=keys)
            return torch.autograd.grad(values.sum(), x, create_graph=create_graph)[0]

        once, again = gradient(False), gradient(True)
        torch.testing.assert_close(once, again)


@pulls
def test_second_derivatives_through_keys_and_a_batch_of_many_groups(kind) -> None:
    g = torch.Generator().manual_seed(0)
    term = kind(COUNTS, alpha=0.3)
    x, z = (0.5 * torch.randn(6, K, generator=g, dtype=torch.float64) for _ in range(2))
    labels, key_labels = torch.tensor([0, 0, 1, 1, 2, 3]), torch.tensor([0, 1, 1, 2, 2, 0])

    def values(x, z):
        return term(x, labels, keys=Features(z, key_labels))

    assert torch.autograd.gradgradcheck(values, (x.requires_grad_(), z.requires_grad_()), atol=1e-5)
    # Large enough that rows are grouped by class: the gradient of the gradient against that of differences
    many, of_many = torch.randn(400, 16, generator=g, dtype=torch.float64), torch.arange(400) % 3
    along = torch.randn(400, 16, generator=g, dtype=torch.float64)

    def slope(x, create_graph=False):
        x = x.detach().requires_grad_() if not x.requires_grad else x
        return (torch.autograd.grad(term(x, of_many).sum(), x, create_graph=create_graph)[0] * along).sum()

    many = (0.1 * many).requires_grad_()
    second = torch.autograd.grad(slope(many, create_graph=True), many)[0]
    step = 1e-5 * along
    numeric = (slope(many.detach() + step) - slope(many.detach() - step)) / 2e-5
    if kind is not HardPull:  # whose farthest positive may change within a step
        torch.testing.assert_close((second * along).sum(), numeric, rtol=1e-4, atol=1e-6)


def test_elm_with_a_memory_takes_a_penalty_on_its_gradient() -> None:
    torch.manual_seed(0)
    criterion = ELM(COUNTS, memory=ClassMemory(COUNTS, capacity=4))
    labels = torch.tensor([0, 0, 1, 2])
    for step in range(3):
        logits, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, K, requires_grad=True)
        loss = criterion((logits, x), labels, ids=torch.arange(4) + 4 * step)
        gradients = torch.autograd.grad(loss, (logits, x), create_graph=True)
        (loss + sum(g.square().sum() for g in gradients)).backward()
        assert x.grad.isfinite().all()
        assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("case", [c for c in CASES if c.first and not c.logits], ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_whose_squares_overflow_are_refused_and_the_largest_allowed_are_finite(case: Case, dtype) -> None:
    x, labels = batch(case, 8)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    most = (torch.finfo(wide).max / K) ** 0.5 / 100
    x = x.sign().to(dtype)
    inside = (0.98 * most * x).requires_grad_()
    values = case.run(inside, labels)
    values.sum().backward()
    assert values.isfinite().all()
    assert inside.grad.isfinite().all()
    if case.build().any_size:
        assert case.run(1e3 * most * x, labels).isfinite().all()
    else:
        with pytest.raises(InputError, match=r"embeddings must be within ±.*has training diverged\?"):
            case.run(1.1 * most * x, labels)


@pulls
def test_keys_whose_squares_overflow_are_refused(kind) -> None:
    keys = Features(torch.full((1, K), 1e19), torch.tensor([0]))
    with pytest.raises(InputError, match="the keys must be within"):
        kind(COUNTS)(torch.zeros(1, K), torch.tensor([0]), keys=keys)


@first
def test_float16_near_its_largest_value_has_finite_gradients(case: Case) -> None:
    x, labels = batch(case, 8)
    x = (65000 * x.sign()).half().requires_grad_()
    values = case.run(x, labels)
    values.sum().backward()
    assert values.isfinite().all()
    assert x.grad.dtype == torch.float16
    assert x.grad.isfinite().all()


@first
def test_tensors_without_values_are_one_sentence(case: Case) -> None:
    x, labels = batch(case, 4)
    for there, of in ((x.to("meta"), labels), (x, labels.to("meta"))):
        with pytest.raises(InputError, match="meta tensors, which have no values"):
            case.run(there, of)


def test_normalised_pull_is_the_pull_of_unit_vectors_and_ignores_their_size() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(8, 5, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 0, 1])
    counts = ClassCounts([9, 5, 2])
    unit = x / x.norm(dim=1, keepdim=True)
    expected = Pull(counts, alpha=0.5, scale=3.0)(unit, labels)
    by_hand = ((unit[3] - unit[[4, 7]]).square().sum(1) * 3 - 0.5).exp().sum().log1p()
    torch.testing.assert_close(expected[3], by_hand)
    pull = Pull(counts, alpha=0.5, normalise=True, scale=3.0)
    for size in (1e-20, 1.0, 1e30):
        torch.testing.assert_close(pull(size * x, labels), expected)
        keys = Features(size * x.flip(0), labels.flip(0))
        torch.testing.assert_close(
            pull(x, labels, keys=keys),
            Pull(counts, alpha=0.5, scale=3.0)(unit, labels, keys=Features(unit.flip(0), labels.flip(0))),
        )
    x.requires_grad_()
    pull(x, labels).sum().backward()
    torch.testing.assert_close((x.grad * x).sum(1), torch.zeros(8, dtype=torch.float64))  # no part along the radius
