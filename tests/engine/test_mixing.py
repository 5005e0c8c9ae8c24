"""Training on mixed images: a stop between steps changes nothing, and mixed samples are no anchors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail import ClassCounts, methods
from longtail.data import Split
from longtail.engine import recipe
from longtail.engine.process import Interrupted
from longtail.engine.train import Saving, fit
from longtail.losses import Outputs
from longtail.models import LinearHead
from longtail.runs.checkpoint import decode

LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor([30, 12, 6]))
PIXELS = torch.randint(0, 256, (48, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
TRAIN = Split(PIXELS, LABELS, torch.arange(48))
COUNTS = ClassCounts.from_labels(LABELS, 5)  # the last two classes have no sample
HOW = recipe.get("images").with_epochs(3).replace(batch_size=12, lr=0.05)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(192, 16), LinearHead(16, 5)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1)).tanh()

    def forward(self, x: Tensor) -> Outputs:
        z = self.embed(x)
        return Outputs(self.head(z), z)


def train(augment: str = "crop+cutmix:0.7", **options: Any) -> tuple[nn.Module, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = Net()
    plan = methods.build("elm", COUNTS, memory=4)
    return model, fit(model, plan, TRAIN, HOW.replace(augment=augment), seed=1, **options)


class Steps:
    def __init__(self) -> None:
        self.n = 0

    def step(self, now: object) -> None:
        self.n += 1

    def epoch(self, row: object) -> None:
        pass


@pytest.mark.parametrize("at", [2, 5, 9])
def test_a_stop_between_steps_changes_nothing(at: int) -> None:
    whole, _ = train()
    saved: list[bytes] = []
    spy = Steps()
    with pytest.raises(Interrupted):
        train(watchers=[spy], saving=Saving(lambda _, data: saved.append(data), stop=lambda: 15 * (spy.n >= at)))
    again, _ = train(state=decode(saved[-1]))
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_mixed_samples_are_no_anchors() -> None:
    """Without them an epoch has fewer anchors, and its share of anchors with a positive counts the others alone."""
    sums: list[Any] = []

    class Last(Steps):
        def step(self, now: Any) -> None:
            sums.append({name: tuple(pair) for name, pair in now.sums.alive.items()})

    train("crop+cutmix:0.7", watchers=[Last()])
    anchors = [sum(pair[1] for pair in seen.values()) for seen in sums]
    assert anchors[3] < 48  # the first of three epochs, four steps each
    assert anchors[-1] == 48  # the last has no mixing any more
