"""What every term says to a caller's mistake: one sentence with the value, and what would be right."""

from __future__ import annotations

import pytest
import torch

from longtail.errors import InputError
from longtail.losses import Features
from loss_cases import CASES, C, Case, K, batch

first = pytest.mark.parametrize("case", [c for c in CASES if c.first], ids=repr)


@first
def test_mistakes_are_named(case: Case) -> None:
    x, labels = batch(case, 4)
    kind = type(case.build()).__name__
    what, width = ("logits", C) if case.logits else ("embeddings", K)

    def fails(match: str, x: torch.Tensor = x, labels: torch.Tensor = labels) -> None:
        with pytest.raises(InputError, match=match) as caught:
            case.run(x, labels, ids=torch.arange(4))
        assert "\n" not in str(caught.value)

    fails(r"label 4 in labels is outside \[0, 4\)", labels=torch.tensor([0, 4, 1, 2]))
    fails(r"label -1 in labels is outside \[0, 4\)", labels=torch.tensor([0, -1, 1, 2]))
    fails("whole numbers .*float32", labels=torch.tensor([0.0, 1.0, 1.0, 2.0]))
    fails("whole numbers .*bool", labels=torch.tensor([True, False, True, True]))
    fails(r"4 rows, but there are 3 labels", labels=labels[:3])
    fails(rf"{what} must be floats of shape .*\(4,\)", x=x[:, 0])
    fails(rf"{what} must be floats .*int64", x=x.long())
    fails(rf"{what} must be floats .*sparse torch.float32", x=x.float().to_sparse())
    fails(r"labels must .*\(\)", x=x[:1], labels=torch.tensor(1))
    fails(r"labels must have shape \(B,\), got \(4, 1\)", labels=labels[:, None])
    if case.logits:
        fails("logits have 3 columns, but the counts have 4 classes", x=x[:, :3])
    other = (None, torch.zeros(4, width)) if case.logits else (torch.zeros(4, C), None)
    with pytest.raises(InputError, match=f"{kind} needs {what}, but the outputs have none"):
        case.build()(other, labels, ids=torch.arange(4))
    with pytest.raises(InputError, match=r"takes \(logits, embeddings\), got list"):
        case.build()([x, x], labels)
    with pytest.raises(InputError, match="labels must be a tensor of class indices, got list"):
        case.run(x, [0, 1, 2, 3], ids=torch.arange(4))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ids must be a tensor of one a sample, shape \(4,\), got \(3,\)"):
        case.run(x, labels, ids=torch.arange(3))
    with pytest.raises(InputError, match=r"ids must be a tensor of one a sample, shape \(4,\), got list"):
        case.run(x, labels, ids=[0, 1, 2, 3])
    for counts, message in (
        ([3, -1], "negative, got -1 for class 1"),
        ([0, 0], "all zero"),
        ([1.5, 2], "whole numbers, got 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            type(case.build())(counts)


@pytest.mark.parametrize("case", [c for c in CASES if c.keyed and c.first], ids=repr)
def test_wrong_keys_are_named(case: Case) -> None:
    x, labels = batch(case, 4)
    y = torch.tensor([0, 1])
    wrong = [
        (Features(torch.zeros(2, K + 1), y), r"keys must be floats of shape \(M, 3\), got .*\(2, 4\)"),
        (Features(torch.zeros(2, K).long(), y), r"keys must be floats .*int64"),
        (Features(torch.zeros(3, K), y), r"keys have 3 embeddings, but labels of shape \(2,\)"),
        (Features(torch.zeros(2, K), y, torch.arange(3)), r"the keys' ids must be .* shape \(2,\), got \(3,\)"),
        (Features(torch.zeros(2, K), y + 3), r"label 4 in the keys' labels is outside"),
        ((torch.zeros(2, K), y), "keys must be Features"),
        (Features([[0.0] * K] * 2, y), r"keys must be floats of shape \(M, 3\), got list"),
        (Features(torch.zeros(2, K), [0, 1]), "the keys' labels must be a tensor of class indices, got list"),
        (Features(torch.zeros(2, K), y, [0, 1]), r"the keys' ids must be a tensor of one a sample, .* got list"),
        (Features(torch.zeros(2, K), y, y / 2), "the keys' ids must be whole numbers, got dtype torch.float32"),
    ]
    for keys, message in wrong:
        with pytest.raises(InputError, match=message):
            case.run(x, labels, keys=keys)
