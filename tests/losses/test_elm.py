"""ELM and the objective under it: what it is made of, what λ = 0 means, and that it lives in anybody's loop."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longtail import ELM, ClassCounts, Objective
from longtail.errors import InputError
from longtail.losses import HardPull, MarginCrossEntropy, Pull, SupCon
from longtail.losses.memory import ClassMemory
from longtail.margins import Margin, Power

COUNTS = ClassCounts([60, 25, 10, 4, 1, 0])


def batch(b=20, k=6, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, 6, generator=g, dtype=dtype)
    return logits, 0.5 * torch.randn(b, k, generator=g, dtype=dtype), torch.randint(0, 5, (b,), generator=g)


def test_is_the_sum_of_its_parts():
    logits, embeddings, labels = batch(dtype=torch.float64)
    alpha = Power(1.0, of="prior")
    loss, parts = ELM(COUNTS, alpha=alpha, lam=0.3, tau=1.5)((logits, embeddings), labels, return_parts=True)
    prior = COUNTS.safe_prior
    logit = F.cross_entropy(logits + 1.5 * prior.log(), labels)
    pull = Pull(COUNTS, alpha=alpha)((logits, embeddings), labels).mean()
    torch.testing.assert_close(parts["logit"], logit, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts["pull"], pull, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, logit + 0.3 * pull, rtol=1e-12, atol=0)
    assert list(parts) == ["logit", "pull"]
    assert not any(p.requires_grad for p in parts.values())


def test_defaults_are_the_papers():
    criterion = ELM(COUNTS)
    assert criterion.coefficients == [1.0, 0.01]
    assert criterion.terms[0].margin == Margin.log_ratio(1.0)
    assert criterion.terms[1].alpha == Power(0.5, of="count")
    assert criterion.memory is None


def test_lam_zero_is_the_plain_loss_and_needs_no_embeddings():
    logits, embeddings, labels = batch()
    plain = Objective((1.0, MarginCrossEntropy(COUNTS, margin=Margin.log_ratio())))((logits, None), labels)
    criterion = ELM(COUNTS, lam=0, memory=4)
    assert torch.equal(criterion((logits, None), labels), plain)
    assert torch.equal(criterion((logits, embeddings * float("nan")), labels), plain)
    assert criterion.memory.nbytes == 0  # nothing was remembered either


def test_gradients_reach_logits_and_embeddings():
    logits, embeddings, labels = batch()
    logits.requires_grad_()
    embeddings.requires_grad_()
    ELM(COUNTS)((logits, embeddings), labels).backward()
    assert logits.grad.abs().sum() > 0
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"lam": -0.1}, "lam must be a number of at least 0, got -0.1"),
        ({"lam": "0.1"}, "lam"),
        ({"lam": float("nan")}, "lam"),
        ({"tau": float("inf")}, "tau must be a finite number"),
        ({"tau": None}, "tau"),
        ({"alpha": "cube(n)"}, "cube"),
        ({"memory": 0}, "capacity must be a whole number of at least 1, got 0"),
        ({"memory": True}, "memory must be"),
        ({"memory": "16"}, "memory must be"),
        ({"memory": ClassMemory([1, 2])}, "memory has 2 classes, but the terms have 6"),
    ],
)
def test_knobs_are_checked(knobs, match):
    with pytest.raises(InputError, match=match):
        ELM(COUNTS, **knobs)


def test_missing_embeddings_and_ids_are_named():
    logits, embeddings, labels = batch()
    with pytest.raises(InputError, match="Pull needs embeddings"):
        ELM(COUNTS)((logits, None), labels)
    with pytest.raises(InputError, match="pass ids="):
        ELM(COUNTS, memory=4)((logits, embeddings), labels)
    with pytest.raises(InputError, match="label 6 "):
        ELM(COUNTS, memory=4)((logits, embeddings), labels.new_full((20,), 6), ids=torch.arange(20))
    with pytest.raises(InputError, match="serves terms that take keys"):
        Objective((1.0, MarginCrossEntropy(COUNTS)), memory=ClassMemory(COUNTS))


@pytest.mark.parametrize("memory", [None, 3])
def test_copies_pickles_state_compile_and_autocast(memory):
    logits, embeddings, labels = batch()
    ids = torch.arange(20)
    criterion = ELM(COUNTS, memory=memory)
    criterion((logits, embeddings), labels, ids=ids)  # so that a memory holds something
    stream = io.BytesIO()
    torch.save(criterion.state_dict(), stream)
    stream.seek(0)
    loaded = ELM(COUNTS, memory=memory)
    loaded.load_state_dict(torch.load(stream))
    compiled = torch.compile(copy.deepcopy(criterion), backend="eager")
    others = [pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion), loaded, compiled]
    logits2, embeddings2, labels2 = batch(seed=1)
    expected = criterion((logits2, embeddings2), labels2, ids=ids + 20)
    for other in others:
        assert torch.equal(other((logits2, embeddings2), labels2, ids=ids + 20), expected)
    for dtype in (torch.bfloat16, torch.float16):
        low = [t.to(dtype).requires_grad_() for t in (logits2, embeddings2)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(tuple(low), labels2, ids=ids + 40)
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(torch.isfinite(t.grad).all() for t in low)


def test_compiled_as_a_whole_step():
    logits, embeddings, labels = batch()
    criterion = ELM(COUNTS)
    weight = torch.randn(6, 6, requires_grad=True)

    def step(w):
        e = embeddings @ w
        return criterion((logits, e), labels)

    expected = torch.autograd.grad(step(weight), weight)[0]
    found = torch.autograd.grad(torch.compile(step, backend="aot_eager")(weight), weight)[0]
    torch.testing.assert_close(found, expected)


def test_alive_is_none_without_a_pull_and_knows_the_memory():
    _, _, labels = batch()
    assert Objective((1.0, MarginCrossEntropy(COUNTS))).alive(labels) is None
    assert ELM(COUNTS, lam=0).alive(labels) is None
    labels, ids = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 3, 4])
    criterion = ELM(COUNTS, memory=2)
    assert criterion.alive(labels, ids).tolist() == [True, True, False, False]
    criterion((torch.zeros(4, 6), torch.zeros(4, 3)), labels, ids=ids)
    assert criterion.alive(labels, ids).tolist() == [True, True, False, False]  # the memory holds the same samples
    assert criterion.alive(labels, ids + 10).tolist() == [True] * 4
    criterion.eval()
    assert criterion.alive(labels, ids + 10).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", [Pull, HardPull, SupCon])
def test_an_objective_gives_the_memory_to_every_term_that_takes_keys(kind):
    g = torch.Generator().manual_seed(0)
    first, second = torch.randn(8, 3, generator=g), torch.randn(8, 3, generator=g)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    objective = Objective((1.0, kind(COUNTS)), memory=ClassMemory(COUNTS))
    objective((None, first), labels, ids=torch.arange(8))
    found = objective((None, second), labels, ids=torch.arange(8, 16))
    term = kind(COUNTS)
    keys = objective.memory.recall(labels, torch.arange(16, 24))
    fresh = {int(i): second[j] for j, i in enumerate(range(8, 16))}
    stored = torch.stack([fresh.get(int(i), e) for i, e in zip(keys.ids, keys.embeddings)])
    expected = term((None, second), labels, keys=keys._replace(embeddings=stored), ids=torch.arange(8, 16)).mean()
    torch.testing.assert_close(found, expected)


def test_embeddings_alone_are_outputs_too():
    objective = Objective((1.0, Pull(COUNTS)), memory=ClassMemory(COUNTS))
    x, labels, ids = torch.eye(3), torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([5, 6, 7])
    objective(x, labels, ids=ids)
    assert objective.memory.held().tolist() == [2, 1, 0, 0, 0, 0]
    assert objective.alive(labels, ids + 3).tolist() == [True, True, True]


def test_key_embeddings_are_what_is_remembered():
    logits, embeddings, labels = batch()
    criterion = ELM(COUNTS, memory=100)
    criterion((logits, embeddings), labels, ids=torch.arange(20), key_embeddings=embeddings + 1)
    keys = criterion.memory.recall(labels, torch.arange(20, 40))
    assert torch.equal(keys.embeddings, (embeddings + 1)[keys.ids])


def test_a_bare_tensor_is_logits_and_never_both():
    counts, labels = ClassCounts([4, 2, 2]), torch.tensor([0, 0, 1, 2])
    logits = torch.randn(4, 3)
    with pytest.raises(InputError, match="Pull needs embeddings"):
        ELM(counts)(logits, labels)
    assert torch.equal(ELM(counts, lam=0)(logits, labels), ELM(counts, lam=0)((logits, None), labels))
    pull = Objective((1.0, Pull(counts)))
    assert torch.equal(pull(logits, labels), pull((None, logits), labels))


def test_numbers_of_any_kind_are_weights_and_capacities():
    assert ELM(COUNTS, lam=np.float32(0.5), tau=np.float64(1.0)).coefficients == [1.0, 0.5]
    assert Objective((np.int64(2), Pull(COUNTS))).coefficients == [2.0]
    assert ELM(COUNTS, memory=np.int64(3)).memory.capacity == 3
    with pytest.raises(InputError, match=r"memory must be a ClassMemory such as .* got 16"):
        Objective((1.0, Pull(COUNTS)), memory=16)


@pytest.mark.parametrize("memory", [None, 4])
def test_labels_and_ids_that_are_no_tensors_of_whole_numbers_are_named(memory):
    logits, embeddings, labels = batch()
    ids = torch.arange(20)
    criterion = ELM(COUNTS, memory=memory)
    criterion((logits, embeddings), labels, ids=ids)  # so that a memory has something to recall
    for wrong, match in (
        (ids.tolist(), r"ids must be a tensor of one a sample, shape \(20,\), got list"),
        (ids / 20, "ids must be whole numbers, got dtype torch.float32"),  # a memory would store them all as 0
        (ids > 3, "ids must be whole numbers, got dtype torch.bool"),
    ):
        with pytest.raises(InputError, match=match):
            criterion((logits, embeddings), labels, ids=wrong)
        with pytest.raises(InputError, match=match):
            criterion.alive(labels, wrong)
    with pytest.raises(InputError, match="labels must be a tensor of class indices, got list"):
        criterion((logits, embeddings), labels.tolist(), ids=ids)
    with pytest.raises(InputError, match="labels must be a tensor of class indices, got list"):
        criterion.alive(labels.tolist(), ids)


def test_embeddings_of_another_size_than_the_memory_s_are_named():
    logits, embeddings, labels = batch()
    criterion = ELM(COUNTS, memory=4)
    criterion((logits, embeddings), labels, ids=torch.arange(20))
    with pytest.raises(InputError, match="the memory holds embeddings of size 6, got some of size 5"):
        criterion((logits, embeddings[:, :5]), labels, ids=torch.arange(20, 40))
