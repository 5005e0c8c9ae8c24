"""What every term promises, tested on every term: see `loss_cases.py` for the list."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import InputError
from longtail.losses import Features, HardPull, MarginCrossEntropy, Objective, Pull, Term
from loss_cases import CASES, COUNTS, C, Case, K, batch

# Compilers are slow: one term goes to machine code, one through the ahead-of-time graph, the rest are traced.
BACKENDS = {"ce-log-ratio": "inductor", "supcon": "aot_eager"}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every = pytest.mark.parametrize("case", CASES, ids=repr)
keyed = pytest.mark.parametrize("case", [c for c in CASES if c.keyed], ids=repr)
first = pytest.mark.parametrize("case", [c for c in CASES if c.first], ids=repr)


def gradient(case: Case, x: torch.Tensor, labels: torch.Tensor, **given: object) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    values = case.run(x, labels, **given)
    assert values.requires_grad
    values.sum().backward()
    assert x.grad is not None
    return values.detach(), x.grad


# --- exact ---


@every
@settings(max_examples=15, deadline=None, derandomize=True)
@given(size=st.integers(1, 10), seed=st.integers(0, 999), scale=st.sampled_from([0.01, 1.0, 3.0]))
def test_equals_the_naive_loop(case: Case, size: int, seed: int, scale: float) -> None:
    x, labels = batch(case, size, seed, scale)
    torch.testing.assert_close(case.run(x, labels), case.expect(x, labels), rtol=1e-9, atol=1e-13)
    x = x.float()
    torch.testing.assert_close(case.run(x, labels).double(), case.expect(x, labels), rtol=1e-5, atol=1e-6)


@every
def test_gradcheck(case: Case) -> None:
    x, labels = batch(case, 8, seed=3)
    assert torch.autograd.gradcheck(lambda x: case.run(x, labels), (x.requires_grad_(),), atol=1e-6)


@every
def test_permuting_the_batch_permutes_the_values(case: Case) -> None:
    x, labels = batch(case, 12)
    order, ids = torch.randperm(12, generator=torch.Generator().manual_seed(1)), torch.arange(12) // 2
    given, permuted = ({"ids": ids}, {"ids": ids[order]}) if case.ids else ({}, {})
    before, after = case.run(x, labels, **given), case.run(x[order], labels[order], **permuted)
    torch.testing.assert_close(after, before[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.shift], ids=repr)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(shift=st.floats(-100, 100), seed=st.integers(0, 99))
def test_a_constant_shift_changes_nothing(case: Case, shift: float, seed: int) -> None:
    x, labels = batch(case, 7, seed)
    # logits: one constant a sample; embeddings: one vector for all
    by = torch.linspace(0.5, 1.0, len(x))[:, None] * shift if case.logits else torch.linspace(0.5, 1.0, K) * shift
    torch.testing.assert_close(case.run(x + by, labels), case.run(x, labels), rtol=1e-7, atol=1e-9)


# --- never NaN ---

LABELS = {
    "mixed": [0, 1, 1, 2, 0, 3, 3, 1],
    "one of each": [3, 2, 1, 0],
    "one class": [1, 1, 1, 1, 1, 1],
    "an empty class": [3, 3, 3],
    "one sample": [2],
    "two alike": [0, 0],
}
ROWS = {
    "normal": lambda x: x,
    "zero": lambda x: 0 * x,
    "identical": lambda x: 0 * x + x[:1],
    "two points": lambda x: torch.where(torch.arange(len(x))[:, None] % 2 == 0, x[:1], -x[:1]),
    "logits of 1e4 or norm 1e3": None,
    "opposite signs": lambda x: 1e3 * x.sign(),
    "tiny": lambda x: 1e-30 * x,
}


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_never_nan(case: Case, dtype: torch.dtype, rows: str) -> None:
    for labels in LABELS.values():
        x, _ = batch(case, len(labels))
        if rows == "logits of 1e4 or norm 1e3":
            x = 1e4 * x.sign() if case.logits else 1e3 * torch.nn.functional.normalize(x, dim=1)
        else:
            x = ROWS[rows](x)
        values, grad = gradient(case, x.to(dtype), torch.tensor(labels))
        assert values.isfinite().all()
        assert (values >= 0).all()
        assert grad.dtype == dtype
        assert grad.isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.still], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 1.0, 1e3])
def test_identical_embeddings_have_gradient_0(case: Case, dtype: torch.dtype, norm: float) -> None:
    x = (torch.tensor([[0.3, -0.9, 0.316]]) * norm).expand(8, K).to(dtype)
    _, grad = gradient(case, x, torch.tensor(LABELS["mixed"]))
    assert (grad == 0).all()


NO_POSITIVES = {"pull", "hard-pull", "supcon", "supcon-unit", "triplet", "triplet-unit", "infonce", "center"}
NO_NEGATIVES = {"hybrid", "supcon", "supcon-unit", "triplet", "triplet-unit", "range", "range-1"}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in NO_POSITIVES], ids=repr)
def test_without_positives_value_and_gradient_are_0(case: Case) -> None:
    x, _ = batch(case, 4)
    given = {"ids": torch.arange(4)} if case.ids else {}
    values, grad = gradient(case, x, torch.tensor([3, 2, 1, 0]), **given)
    assert (values == 0).all()
    assert (grad == 0).all()


@pytest.mark.parametrize("case", [c for c in CASES if c.name in NO_NEGATIVES], ids=repr)
def test_without_negatives_value_and_gradient_are_0(case: Case) -> None:
    values, grad = gradient(case, batch(case, 4)[0], torch.ones(4, dtype=torch.long))
    assert (values == 0).all()
    assert (grad == 0).all()


@every
def test_an_empty_batch_gives_no_values(case: Case) -> None:
    values, grad = gradient(case, torch.zeros(0, C if case.logits else K), torch.zeros(0, dtype=torch.long))
    assert values.shape == (0,)
    assert grad.shape[0] == 0


# --- dtypes and devices ---


@every
def test_float64_in_float64_out_else_float32(case: Case) -> None:
    x, labels = batch(case)
    for dtype in DTYPES:
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert case.run(x.to(dtype), labels).dtype == expected
    # a narrow input is computed as its float32 self
    narrow = x.to(torch.bfloat16)
    assert torch.equal(case.run(narrow, labels), case.run(narrow.float(), labels))


@every
def test_casting_the_module_does_no_harm(case: Case) -> None:
    x, labels = batch(case)
    before = case.run(x, labels)
    for cast in (Term.half, Term.double, Term.bfloat16, lambda t: t.to(torch.float16), lambda t: t.to("cpu")):
        assert torch.equal(case.run(x, labels, term=cast(case.build())), before)


@every
def test_autocast_changes_nothing(case: Case) -> None:
    x, labels = batch(case, dtype=torch.float32)
    values, grad = gradient(case, x, labels)
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = case.run(x, labels)
    assert torch.equal(under, values)
    under.sum().backward()
    assert torch.equal(x.grad, grad)


@every
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.uint16], ids=str)
def test_labels_of_any_integer_type(case: Case, dtype: torch.dtype) -> None:
    x, labels = batch(case)
    assert torch.equal(case.run(x, labels.to(dtype)), case.run(x, labels))


@every
def test_a_term_used_in_inference_mode_still_trains(case: Case) -> None:
    x, labels = batch(case, dtype=torch.float32)
    term = case.build()
    with torch.inference_mode():
        before = case.run(x, labels, term=term)
    x.requires_grad_()
    values = case.run(x, labels, term=term)
    values.sum().backward()
    assert torch.equal(values.detach(), before)


@every
def test_no_graph_where_nothing_needs_one(case: Case) -> None:
    x, labels = batch(case)
    assert not case.run(x, labels).requires_grad
    with torch.no_grad():
        assert not case.run(x.requires_grad_(), labels).requires_grad


@first
def test_a_vector_registered_again_takes_effect(case: Case) -> None:
    x, labels = batch(case)
    term = case.build()
    case.run(x, labels, term=term)
    for name in list(term.vectors):
        assert term.vector(name, x) is term.vector(name, x)  # a copy is kept
        term.register_vector(name, 0.25)
        assert term.vector(name, x).tolist() == [0.25] * C


# --- keys ---


@keyed
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_ids", [True, False])
def test_keys_replace_the_batch(case: Case, seed: int, with_ids: bool) -> None:
    if case.ids and not with_ids:
        pytest.skip("InfoNCE is nothing without ids")
    x, labels = batch(case, 6, seed)
    k, key_labels = batch(case, 11, seed + 100)
    ids = torch.arange(6) if with_ids else None
    # Keys 2, 3 and 4 are the anchors 0, 1 and 1 again, as a memory would have them.
    key_ids = torch.tensor([50, 51, 0, 1, 1, 55, 56, 57, 58, 59, 60]) if with_ids else None
    key_labels[2:5] = labels[torch.tensor([0, 1, 1])]
    keys = Features(k, key_labels, key_ids)
    given = {"ids": ids} if with_ids else {}
    found = case.run(x, labels, keys=keys, **given)
    torch.testing.assert_close(found, case.expect(x, labels, ids=ids, keys=keys), rtol=1e-9, atol=1e-13)


@keyed
def test_without_ids_no_key_is_the_anchor(case: Case) -> None:
    if case.ids:
        pytest.skip("InfoNCE is nothing without ids")
    x, labels = batch(case, 6)
    found = case.run(x, labels, keys=Features(x, labels))
    torch.testing.assert_close(found, case.expect(x, labels, keys=Features(x, labels)), rtol=1e-9, atol=1e-13)
    # ids on one side only say nothing either
    assert torch.equal(case.run(x, labels, keys=Features(x, labels, torch.arange(6))), found)
    assert torch.equal(case.run(x, labels, keys=Features(x, labels), ids=torch.arange(6)), found)


@keyed
def test_the_batch_as_keys_with_ids_is_the_batch(case: Case) -> None:
    if case.ids:
        pytest.skip("for InfoNCE the key of the same id is the positive")
    x, labels = batch(case, 9)
    ids = torch.arange(9).flip(0)
    expected = case.run(x, labels)
    torch.testing.assert_close(case.run(x, labels, ids=ids), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        case.run(x, labels, keys=Features(x, labels, ids), ids=ids), expected, rtol=1e-12, atol=1e-14
    )


@keyed
def test_two_views_of_a_sample_are_not_each_others_positive(case: Case) -> None:
    x, labels = batch(case, 8)
    ids, labels = torch.arange(8) // 2, labels[torch.arange(8) // 2]
    torch.testing.assert_close(case.run(x, labels, ids=ids), case.expect(x, labels, ids=ids), rtol=1e-9, atol=1e-13)


@keyed
def test_keys_take_gradients_and_may_be_empty(case: Case) -> None:
    x, labels = batch(case, 8)
    k, key_labels = batch(case, 7, seed=8)
    ids, key_ids = torch.arange(8) // 2, torch.arange(7)

    def of(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return case.run(x, labels, keys=Features(k, key_labels, key_ids), ids=ids)

    assert torch.autograd.gradcheck(of, (x.clone().requires_grad_(), k.requires_grad_()), atol=1e-6)
    nothing = Features(torch.zeros(0, K), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    values, grad = gradient(case, x, labels, keys=nothing, ids=ids)
    assert (values == 0).all()
    assert (grad == 0).all()


@pytest.mark.parametrize("case", [c for c in CASES if not c.keyed and c.first], ids=repr)
def test_terms_without_keys_say_so(case: Case) -> None:
    x, labels = batch(case)
    with pytest.raises(InputError, match="takes no keys"):
        case.run(x, labels, keys=Features(torch.zeros(2, K), torch.tensor([0, 1])))


# --- a module like any other ---


@every
def test_pickles_copies_and_saves(case: Case) -> None:
    x, labels = batch(case)
    term = case.build()
    before = case.run(x, labels, term=term)
    for twin in (pickle.loads(pickle.dumps(term)), copy.deepcopy(term)):
        assert torch.equal(case.run(x, labels, term=twin), before)
    file = io.BytesIO()
    torch.save(term.state_dict(), file)
    file.seek(0)
    fresh = case.build()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(case.run(x, labels, term=fresh), before)
    assert type(term).__name__ in repr(term)


@first
def test_compiles(case: Case) -> None:
    x, labels = batch(case, dtype=torch.float32)
    given = {"ids": torch.arange(len(labels)) // 2} if case.ids else {}
    plain = gradient(case, x, labels, **given)
    torch._dynamo.reset()
    # The pull's own kernel stays outside the graph; all others are one graph.
    whole = not isinstance(case.build(), (Pull, HardPull))
    term = torch.compile(case.build(), fullgraph=whole, backend=BACKENDS.get(case.name, "eager"))
    x.requires_grad_()
    values = case.run(x, labels, term=term, **given)
    values.sum().backward()
    torch.testing.assert_close(values.detach(), plain[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, plain[1], rtol=1e-4, atol=1e-5)


# --- all of them ---


def test_the_list_is_complete() -> None:
    import longtail.losses as losses

    kinds = [getattr(losses, name) for name in losses.__all__]
    terms = {k for k in kinds if isinstance(k, type) and issubclass(k, Term) and k is not Term}
    covered = {type(case.build()) for case in CASES}
    assert covered <= terms
    assert {t.__name__ for t in terms - covered} <= {"RelativePull"}


def test_an_objective_reduces_every_term() -> None:
    embeddings, labels = batch(CASES[-1], 8)
    logits, _ = batch(CASES[0], 8)
    ids = torch.arange(8) // 2
    terms = [case.build() for case in CASES if case.first]
    objective = Objective(*((0.5, term) for term in terms))
    loss, parts = objective((logits, embeddings), labels, ids=ids, return_parts=True)
    means = [term((logits, embeddings), labels, ids=ids).mean() for term in terms]
    torch.testing.assert_close(loss, 0.5 * torch.stack(means).sum(), rtol=1e-12, atol=0)
    assert len(parts) == len(terms)
    assert isinstance(terms[0], MarginCrossEntropy)
    assert terms[0].counts == COUNTS
