"""Time and memory of the losses, against what they replace.

    python benchmarks/losses.py [--repeats 30] [--json FILE]

One thread, forward and backward, median over repeats in which all contenders take turns, so that a ratio compares runs
under the same conditions; processor time, so that other work on the machine counts as little as possible. Each repeat
draws new labels from a long-tailed distribution like the data set's. The contenders: `F.cross_entropy`,
pytorch-metric-learning's `SupConLoss`, and the pull written plainly (all distances of the batch, masked). Exits with 1
if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail import ELM, ClassCounts, Objective
from longtail.losses import MarginCrossEntropy, Pull
from longtail.losses.memory import ClassMemory
from longtail.margins import Margin

Contender = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (logits, embeddings, labels, ids) -> scalar


def profile(classes: int, most: int, least: int, bend: float | None = None) -> ClassCounts:
    """Exponential decay from ``most`` to ``least``, or with ``bend`` the heavier bulk of small classes that ImageNet-LT
    and iNaturalist have (chosen so that the totals are about theirs: 116 thousand and 437 thousand)."""
    places = [i / (classes - 1) for i in range(classes)]
    if bend is None:
        return ClassCounts([int(most * (least / most) ** u) for u in places])
    return ClassCounts([least + int((most - least) * math.exp(-bend * math.sqrt(u))) for u in places])


SHAPES = {
    "CIFAR100-LT": (128, 64, profile(100, 500, 5)),
    "CIFAR10-LT": (128, 64, profile(10, 5000, 50)),
    "like ImageNet-LT": (512, 2048, profile(1000, 1280, 5, 4.65)),
    "like iNaturalist": (1024, 2048, profile(8142, 1000, 2, 6.2)),
}
LARGEST = "like iNaturalist"
KEYS = {"CIFAR100-LT": 16, LARGEST: 8}  # a class, where a memory takes part too
# (shape, contender, against, at most)
TARGETS = [
    ("CIFAR100-LT", "Pull", "SupCon (PML)", 0.5),
    ("CIFAR10-LT", "Pull", "SupCon (PML)", 0.5),
    ("like ImageNet-LT", "Pull", "SupCon (PML)", 0.15),
    (LARGEST, "Pull", "SupCon (PML)", 0.05),
    (LARGEST, "adjusted cross-entropy", "cross_entropy", 1.15),
    (LARGEST, "ELM", "cross_entropy", 1.4),
    (LARGEST, "Pull + memory 8", "SupCon (PML)", 0.25),
]
MEMORY_TARGET = 4.0


def dense_pull(counts: ClassCounts) -> Contender:
    alpha = counts.n.float().sqrt()

    def loss(logits: Tensor, x: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        squares = x.square().sum(1)
        t = squares[:, None] + squares[None, :] - 2 * x @ x.T - alpha[labels][:, None]
        same = labels[:, None] == labels[None, :]
        same.fill_diagonal_(False)
        t = t.masked_fill(~same, -1e30)
        return torch.logsumexp(torch.cat([torch.zeros(len(x), 1), t], 1), 1).mean()

    return loss


def contenders(counts: ClassCounts, size: int, keys: int | None = None) -> dict[str, Contender]:
    from pytorch_metric_learning.losses import SupConLoss

    supcon = SupConLoss()
    pull = Pull(counts)
    adjusted = Objective((1.0, MarginCrossEntropy(counts, margin=Margin.log_ratio())))
    elm = ELM(counts)
    found: dict[str, Contender] = {
        "cross_entropy": lambda logits, x, labels, ids: F.cross_entropy(logits, labels),
        "adjusted cross-entropy": lambda logits, x, labels, ids: adjusted((logits, None), labels),
        "SupCon (PML)": lambda logits, x, labels, ids: supcon(x, labels),
        "dense masked pull": dense_pull(counts),
        "Pull": lambda logits, x, labels, ids: pull((None, x), labels).mean(),
        "ELM": lambda logits, x, labels, ids: elm((logits, x), labels),
    }
    if keys:  # recalled, compared with and pushed to
        remembering = Objective((1.0, Pull(counts)), memory=filled_memory(counts, size, keys))
        found[f"Pull + memory {keys}"] = lambda logits, x, labels, ids: remembering((None, x), labels, ids=ids)
    return found


def filled_memory(counts: ClassCounts, size: int, capacity: int) -> ClassMemory:
    memory = ClassMemory(counts, size, capacity=capacity)
    first = counts.n.cumsum(0) - counts.n
    for place in range(capacity):
        labels = (counts.n > place).nonzero().flatten()
        for some in labels.split(1024):
            memory.push(torch.randn(len(some), size) / math.sqrt(size), some, first[some] + place)
    assert torch.equal(memory.held(), counts.n.clamp(max=capacity))
    return memory


def batch(rows: int, size: int, counts: ClassCounts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    labels = torch.multinomial(counts.prior, rows, replacement=True)
    first = counts.n.cumsum(0) - counts.n
    ids = first[labels] + (torch.rand(rows) * counts.n[labels]).long()
    return torch.randn(rows, counts.num_classes), torch.randn(rows, size) / math.sqrt(size), labels, ids


def times(name: str, repeats: int) -> dict[str, float]:
    """Median milliseconds of each contender."""
    rows, size, counts = SHAPES[name]
    found = contenders(counts, size, KEYS.get(name))
    taken: dict[str, list[float]] = {key: [] for key in found}
    for repeat in range(repeats + 3):
        logits, x, labels, ids = batch(rows, size, counts)
        for key, loss in found.items():
            leaves = logits.requires_grad_(), x.requires_grad_()
            start = time.process_time()
            loss(*leaves, labels, ids).backward()
            if repeat >= 3:  # the first ones warm up
                taken[key].append(1000 * (time.process_time() - start))
            logits.grad = x.grad = None
    return {key: statistics.median(values) for key, values in taken.items()}


def peak(contender: str) -> float:
    """In a process of its own: how far the resident memory rises in a step, in multiples of the logits."""
    rows, size, counts = SHAPES[LARGEST]
    loss = contenders(counts, size)[contender]
    tiny = [t.requires_grad_() if t.is_floating_point() else t for t in batch(8, 4, counts)]
    loss(*tiny).backward()  # loads what is loaded once
    logits, x, labels, ids = batch(rows, size, counts)
    logits.requires_grad_()
    x.requires_grad_()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is from now on (Linux)
    before = highest_memory()
    loss(logits, x, labels, ids).backward()
    return (highest_memory() - before) / logits.nbytes


def highest_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.peak:
        print(peak(options.peak))
        return 0
    results: dict[str, dict[str, float]] = {}
    for name, (rows, size, counts) in SHAPES.items():
        results[name] = times(name, options.repeats)
        print(f"\nB {rows}, K {size}, C {counts.num_classes} ({name}), ms:")
        for key, value in results[name].items():
            print(f"  {key:24}{value:9.3f}")
    print("\nPeak memory of a step at the largest shape, in multiples of the logits:")
    peaks = {}
    for key in ("cross_entropy", "ELM"):
        ran = subprocess.run([sys.executable, __file__, "--peak", key], capture_output=True, text=True, check=True)
        peaks[key] = float(ran.stdout)
        print(f"  {key:24}{peaks[key]:9.2f}")
    checks = [
        {"what": f"{what} / {against}, {shape}", "value": results[shape][what] / results[shape][against], "most": most}
        for shape, what, against, most in TARGETS
    ]
    checks.append({"what": "ELM's peak memory / logits", "value": peaks["ELM"], "most": MEMORY_TARGET})
    print("\nTargets:")
    for check in checks:
        verdict = "pass" if check["value"] <= check["most"] else "MISSED"
        print(f"  {check['what']:58}{check['value']:7.3f}  <= {check['most']:<5} {verdict}")
    if options.json:
        figures = {"python": platform.python_version(), "torch": torch.__version__, "repeats": options.repeats}
        options.json.write_text(json.dumps({**figures, "ms": results, "peak": peaks, "targets": checks}, indent=1))
    return 0 if all(check["value"] <= check["most"] for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
