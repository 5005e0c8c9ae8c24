"""Objectives on the soft labels of mixed samples: terms that need one class leave those samples out."""

from __future__ import annotations

import pytest
import torch

from longtail import ELM, ClassCounts, Objective
from longtail.losses import MarginCrossEntropy, Pull, SigmoidFocal
from longtail.losses.memory import ClassMemory
from longtail.margins import Margin

COUNTS = ClassCounts([40, 10, 4])


def batch(seed: int = 0, n: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    embeddings = torch.randn(n, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (n,), generator=generator)
    soft = torch.nn.functional.one_hot(labels, 3).double()
    mixed = torch.arange(n) % 3 == 0
    share = torch.rand(n, 1, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    soft[mixed] = (share * soft + (1 - share) * soft.roll(1, 1))[mixed]
    return logits, embeddings, labels, soft, mixed


def test_the_mean_of_the_logit_term_is_over_all_and_the_pulls_over_the_unmixed() -> None:
    logits, embeddings, labels, soft, mixed = batch()
    loss, parts = ELM(COUNTS, lam=0.3)((logits, embeddings), soft, return_parts=True)
    shifted = logits + COUNTS.prior.log()
    logit = -(soft * shifted.log_softmax(1)).sum(1).mean()
    x, y = embeddings[~mixed], labels[~mixed]
    values = []
    for i in range(len(y)):
        terms = [torch.exp(((x[i] - x[j]) ** 2).sum() - int(COUNTS.n[y[i]]) ** 0.5)
                 for j in range(len(y)) if j != i and y[j] == y[i]]  # fmt: skip
        values.append(torch.log1p(sum(terms, torch.zeros((), dtype=torch.float64))))
    pull = torch.stack(values).mean()
    assert float(parts["logit"]) == pytest.approx(float(logit), rel=1e-10)
    assert float(parts["pull"]) == pytest.approx(float(pull), rel=1e-10)
    loss.backward()
    assert not embeddings.grad[mixed].any()
    assert embeddings.grad[~mixed].any()


def test_soft_labels_of_one_class_each_are_hard_labels() -> None:
    logits, embeddings, labels, _, _ = batch()
    hard = ELM(COUNTS)((logits, embeddings), labels)
    soft = ELM(COUNTS)((logits, embeddings), torch.nn.functional.one_hot(labels, 3).double())
    assert torch.allclose(hard, soft, rtol=1e-12)


def test_a_batch_that_is_all_mixed_has_no_pull_and_still_trains() -> None:
    logits, embeddings, _, _, _ = batch()
    loss, parts = ELM(COUNTS)((logits, embeddings), torch.full((12, 3), 1 / 3, dtype=torch.float64), return_parts=True)
    assert float(parts["pull"]) == 0
    loss.backward()
    assert bool(torch.isfinite(logits.grad).all())
    assert not embeddings.grad.any()


def test_a_memory_remembers_the_unmixed_alone() -> None:
    _, _, labels, soft, mixed = batch()
    outputs = tuple(t.detach() for t in batch()[:2])
    ids = torch.arange(12)
    both = [
        Objective((1.0, MarginCrossEntropy(COUNTS, margin=Margin.log_ratio())), (0.5, Pull(COUNTS)),
                  memory=ClassMemory(COUNTS, capacity=4))
        for _ in range(2)
    ]  # fmt: skip
    both[0](outputs, soft, ids, key_embeddings=outputs[1] + 1)
    clean = tuple(t[~mixed] for t in outputs)
    both[1](clean, labels[~mixed], ids[~mixed], key_embeddings=clean[1] + 1)
    ours, theirs = (dict(objective.memory.named_buffers()) for objective in both)
    assert ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    alive = both[0].alive(soft, ids)
    assert not alive[mixed].any()
    assert torch.equal(alive[~mixed], both[1].alive(labels[~mixed], ids[~mixed]))
    both[0](outputs, torch.full((12, 3), 1 / 3, dtype=torch.float64), ids)  # nothing to recall or remember


def test_a_term_without_soft_labels_sees_the_unmixed() -> None:
    logits, _, labels, soft, mixed = batch()
    objective = Objective((1.0, SigmoidFocal(COUNTS)))
    expected = objective(logits[~mixed], labels[~mixed])
    assert torch.allclose(objective(logits, soft), expected, rtol=1e-12)


def test_weights_of_samples_count_for_mixed_ones_too() -> None:
    logits, embeddings, labels, soft, mixed = batch()
    ids, objective = torch.arange(12), ELM(COUNTS, lam=0.3)
    objective.sample_weight = torch.linspace(0.5, 2.0, 12)
    _, parts = objective((logits, embeddings), soft, ids, return_parts=True)
    weight = objective.sample_weight.double()
    logit = -(soft * (logits + COUNTS.prior.log()).log_softmax(1)).sum(1)
    assert float(parts["logit"]) == pytest.approx((weight * logit.detach()).mean().item(), rel=1e-10)
    pull = Pull(COUNTS)(embeddings[~mixed], labels[~mixed]).detach()
    assert float(parts["pull"]) == pytest.approx((weight[~mixed] * pull).mean().item(), rel=1e-10)
