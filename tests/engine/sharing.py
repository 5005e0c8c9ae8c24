"""One or more processes train the same few steps: `[torchrun …] sharing.py OUT.safetensors`, for test_process."""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from longtail import methods
from longtail.counts import ClassCounts
from longtail.data.dataset import Split
from longtail.engine import process, recipe
from longtail.engine.train import fit
from longtail.losses import Outputs
from longtail.models import LinearHead

COUNTS = ClassCounts([200, 100, 50, 25, 9])
CASES = {
    "ce": {},
    "logadj": {},
    "elm": {"lam": 0.1},
    "elm-memory": {"lam": 0.1, "memory": 3},
    "elm-memory-ema": {"lam": 0.1, "memory": 3, "memory_ema": 0.5},
    "elm-cutmix": {"lam": 0.1, "memory": 3, "memory_ema": 0.5},
}


class Net(nn.Module):
    """No batch norm: with it, each rank would use statistics of its own rows."""

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        super().__init__()
        self.dtype = dtype
        self.body = nn.Linear(width, 16)
        self.head = LinearHead(16, 5)
        self.to(dtype)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1).to(self.dtype)).tanh()

    def forward(self, x: Tensor) -> Outputs:
        z = self.embed(x)
        return Outputs(self.head(z), z)


def main(out: str) -> None:
    torch.set_num_threads(1)
    labels = torch.repeat_interleave(torch.arange(5), COUNTS.n)
    inputs = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(1)) + labels[:, None]
    features = Split(inputs, labels, torch.arange(len(labels)))
    noise = torch.randint(0, 200, (len(labels), 3, 4, 4), generator=torch.Generator().manual_seed(2))
    images = Split((noise + 10 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels, torch.arange(len(labels)))
    how = recipe.get("features").replace(batch_size=128, epochs=1, lr=0.05, warmup_epochs=0.0)
    found: dict[str, Tensor] = {}
    with process.ranks(torch.device("cpu")) as ranks:
        for case, knobs in CASES.items():
            for dtype in (torch.float64, torch.float32):
                torch.manual_seed(0)
                split, augment = (images, "crop+cutmix:1") if case.endswith("cutmix") else (features, "none")
                model = Net(dtype, split.inputs[0].numel())
                plan = methods.build(case.split("-")[0], COUNTS, **knobs)
                losses: list[float] = []

                class Watch:
                    def step(self, now: object, losses: list[float] = losses) -> None:
                        losses.append(now.sums.last)

                    def epoch(self, row: object) -> None:
                        pass

                fit(model, plan, split, how.replace(augment=augment), ranks=ranks, watchers=[Watch()])
                name = f"{case}/{str(dtype).removeprefix('torch.')}"
                found[f"{name}/losses"] = torch.tensor(losses, dtype=torch.float64)
                for p, value in model.named_parameters():
                    found[f"{name}/grad {p}"] = value.grad.clone()
                    found[f"{name}/weight {p}"] = value.detach().clone()
        if ranks.first:
            save_file(found, out)
            print(f"world {ranks.world}")


if __name__ == "__main__":
    main(sys.argv[1])
