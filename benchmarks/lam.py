"""ELM beside LogAdj over λ, fixed and bounded: is there data on which the default ruins training?

    python benchmarks/lam.py digits
    python benchmarks/lam.py features --file features.npz
    python benchmarks/lam.py images --root data        CIFAR-10 at 16×16, largest class 200, ratio 20

Each row is a weight of the pull: fixed, or an upper limit with `Objective(bound=0.5)` (`elm`'s `lam=auto` is 0.01 with
that bound). A small network from scratch (convolutions with batch norm for images, an MLP otherwise) and plain SGD with
a cosine schedule; balanced test accuracy in per cent, mean and standard deviation over seeds, its difference to LogAdj
seed by seed, and the share of the loss that is the pull at the end. A training that diverges counts as guessing.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from longtail import Objective
from longtail.data import load
from longtail.errors import InputError
from longtail.evaluate import accuracy
from longtail.losses import MarginCrossEntropy, Outputs, Pull
from longtail.margins import Margin


class Convolutions(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, 24), (24, 48), (48, 64)):
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        self.embed = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(64 * 4, classes)

    def forward(self, x: Tensor) -> Outputs:
        z = self.embed(x)
        return Outputs(self.head(z), z)


class Perceptron(Convolutions):
    def __init__(self, inputs: int, classes: int) -> None:
        nn.Module.__init__(self)
        self.embed = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)


def prepared(inputs: Tensor) -> Tensor:
    if inputs.ndim == 2:
        return inputs.float()
    return nn.functional.avg_pool2d(inputs.float() / 255 - 0.5, 2) * 4


def train(data: object, weight: float, bound: float | None, seed: int, steps: int, lr: float) -> tuple[float, float]:
    counts = data.counts  # type: ignore[attr-defined]
    x, y = prepared(data.train.inputs), data.train.labels  # type: ignore[attr-defined]
    if x.ndim == 2:
        mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
        x = (x - mean) / std
    torch.manual_seed(seed)
    net = Convolutions(counts.num_classes) if x.ndim == 4 else Perceptron(x.shape[1], counts.num_classes)
    logit = MarginCrossEntropy(counts, margin=Margin.log_ratio())
    objective = Objective((1.0, logit), (weight, Pull(counts)), bound=bound)
    solver = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(solver, lr, total_steps=steps, pct_start=0.1, cycle_momentum=False)
    order = torch.Generator().manual_seed(seed)
    shares = []
    for _ in range(steps):
        rows = torch.randint(0, len(y), (64,), generator=order)
        try:
            loss, parts = objective(net(x[rows]), y[rows], return_parts=True)
        except InputError:  # embeddings too large to square
            return 100 / counts.num_classes, 1.0
        solver.zero_grad()
        loss.backward()
        solver.step()
        schedule.step()
        shares.append(1 - float(parts["logit"] / loss.detach()))
    net.eval()
    test = prepared(data.test.inputs)  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = net(test if test.ndim == 4 else (test - mean) / std).logits
    balanced = accuracy.summary(logits, data.test.labels, counts).balanced  # type: ignore[attr-defined]
    return 100 * balanced, sum(shares[-50:]) / len(shares[-50:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("digits", "features", "images"))
    parser.add_argument("--root", default="data")
    parser.add_argument("--file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=0.1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.which == "images":
        data = load("cifar10-lt", root=given.root, n_max=200, ratio=20)
    else:
        data = load(given.file if given.which == "features" else "digits-lt")
    plain: list[float] = []
    for weight, bound in ((0.0, None), (0.01, None), (0.01, 0.5), (0.1, None), (0.1, 0.5), (1.0, None), (1.0, 0.5)):
        runs = [train(data, weight, bound, seed, given.steps, given.lr) for seed in range(given.seeds)]
        plain = plain or [balanced for balanced, _ in runs]
        apart = ", ".join(f"{balanced - other:+.1f}" for (balanced, _), other in zip(runs, plain)) if weight else ""
        spread = accuracy.over_seeds([balanced for balanced, _ in runs])
        share = sum(share for _, share in runs) / len(runs)
        name = "logadj" if not weight else f"elm, λ {'=' if bound is None else '≤'} {weight:g}"
        std = "" if spread.std is None else f" ± {spread.std:.2f}"
        print(f"{name:18} {spread.mean:6.2f}{std}   {apart}   pull {100 * share:.0f} % of the loss", flush=True)


if __name__ == "__main__":
    main()
