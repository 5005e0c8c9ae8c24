"""How fast training is, as ratios taken in one run on one thread.

    python benchmarks/train.py [--root data] [--rounds 15]

1. a training step of CIFAR ResNet-32 at batch 128, as `longtail train` does it on this machine, against the usual
   reference loop: fp32, contiguous, a DataLoader over PIL images;
2. the input pipeline's share of that step;
3. a step of ELM against one of CE, with the batch's positives, and with a full memory of 16 embeddings a class;
   a step of CE with `--compile` against one without: no target, it depends on the processor;
4. `compare --jobs 2` with one thread each against the same two runs in sequence with two threads;
5. `longtail --help`.

The sides of a ratio are timed in turn, round after round, and the ratio of their medians is printed. Steps are
timed in processor time, so that other work on the machine does little harm; 4 and 5 are wall time, and mean something
on an idle machine only. With --root the real CIFAR-100 is used, otherwise random pixels, which cost the same. The
target of 1 needs a processor that computes in bf16: without, both sides do the same arithmetic, and the script says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from longtail import ClassCounts, methods, models
from longtail.data import Loader, Split, load
from longtail.engine import recipe
from longtail.engine.stage import has_bf16
from longtail.engine.train import Trainer

MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


def training_split(root: str | None) -> Split:
    if root is not None:
        return load("cifar100-lt", root=root).train
    n = (500 * 100.0 ** (-torch.arange(100) / 99)).long()
    labels = torch.repeat_interleave(torch.arange(100), n)
    pixels = torch.randint(0, 256, (len(labels), 3, 32, 32), dtype=torch.uint8)
    return Split(pixels, labels, torch.arange(len(labels)), MEAN, STD)


class Pictures(Dataset[tuple[Tensor, int]]):
    """What everybody writes: one PIL image at a time, padded, cropped, flipped, normalised."""

    def __init__(self, split: Split) -> None:
        assert isinstance(split.inputs, Tensor)
        self.images, self.labels = split.inputs.permute(0, 2, 3, 1).numpy(), split.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[i]), 4)
        x, y = torch.randint(0, 9, (2,)).tolist()
        image = image.crop((x, y, x + 32, y + 32))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return pixels.sub(torch.tensor(MEAN)[:, None, None]).div(torch.tensor(STD)[:, None, None]), self.labels[i]


def reference(split: Split) -> Callable[[], None]:
    """The usual loop's next step."""
    model = models.build("resnet32", 100, (3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from DataLoader(Pictures(split), 128, shuffle=True, drop_last=True)

    batches = forever()

    def step() -> None:
        inputs, labels = next(batches)
        loss = nn.functional.cross_entropy(model(inputs).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ours(split: Split, method: str, compile: bool = False, **knobs: int) -> Callable[[], None]:
    """The next step of our loop; a memory is full before the first."""
    counts = ClassCounts.from_labels(split.labels, 100)
    plan = methods.build(method, counts, data="cifar100-lt", **knobs)
    if (memory := plan.stages[0].objective.memory) is not None:
        memory.push(torch.randn(len(split), 64), split.labels, torch.arange(len(split)))
    model = models.build("resnet32", 100, (3, 32, 32), head=plan.head)
    how = recipe.get("cifar-cpu")
    trainer = Trainer(model, plan, split, how, compile=compile)
    trainer.enter(0)

    def forever() -> Iterator[tuple[int, int, object]]:
        epoch = 0
        while True:
            for i, batch in enumerate(trainer.loader.epoch(epoch)):
                yield epoch, i, batch
            epoch += 1

    batches = forever()

    def step() -> None:
        epoch, i, batch = next(batches)
        trainer.step(batch, 0.01, (0, epoch, i))  # type: ignore[arg-type]

    return step


def pipeline(split: Split) -> Callable[[], None]:
    """The next batch of our loader, as our loop asks for it."""
    loader = Loader(split, 128, seed=0, channels_last=True)

    def forever() -> Iterator[object]:
        epoch = 0
        while True:
            yield from loader.epoch(epoch)
            epoch += 1

    batches = forever()
    return lambda: next(batches) and None  # type: ignore[func-returns-value]


def timed(step: Callable[[], None], clock: Callable[[], float], repeat: int = 1) -> float:
    start = clock()
    for _ in range(repeat):
        step()
    return (clock() - start) / repeat


def interleaved(sides: dict[str, tuple[Callable[[], None], int]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each side's step, round after round, after one round of warming up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for n in range(rounds + 1):
        # The other way round every other time: whoever comes second finds a warmer or a slower machine
        for name in list(sides)[:: 1 if n % 2 else -1]:
            step, repeat = sides[name]
            seconds = timed(step, time.process_time, repeat)
            if n:
                times[name].append(seconds)
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    return statistics.median(times[a]) / statistics.median(times[b])


def show(what: str, value: float, target: str, good: bool) -> None:
    print(f"{what:60s} {value:8.3f}   target {target:8s} {'ok' if good else 'MISSED'}", flush=True)


def command(*arguments: str, threads: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-m", "longtail", *arguments], check=True, capture_output=True, env=environment)


def two_runs(folder: Path, root: str | None, jobs: int) -> None:
    """Two runs of a small network: both at once with a thread each, or one after the other with two."""
    data = ["--data", "cifar10-lt", "--root", root, "--option", "ratio=100"] if root else ["--data", "digits-lt"]
    how = ["--epochs", "1", "--model", "resnet20"] if root else ["--epochs", "2000"]
    what = ["--methods", "ce", "--seeds", "2", "--jobs", str(jobs), "--out", str(folder)]
    command("compare", *data, *how, *what, threads=2 // jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of the real CIFAR data")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--skip-runs", action="store_true", help="leave out 4, which takes minutes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    split = training_split(arguments.root)
    native = has_bf16(torch.device("cpu"))
    print(f"torch {torch.__version__}, {'bf16' if native else 'fp32: this processor has no bf16 instructions'}")
    times = interleaved(
        {
            "reference": (reference(split), 1),
            "ce": (ours(split, "ce"), 1),
            "elm": (ours(split, "elm"), 1),
            "elm memory": (ours(split, "elm", memory=16), 1),
            "compiled": (ours(split, "ce", compile=True), 1),
            "input": (pipeline(split), 5),
        },
        arguments.rounds,
    )
    for name, values in times.items():
        print(f"  {name:10s} {1000 * statistics.median(values):8.1f} ms of processor time")
    speedup, share, elm = ratio(times, "reference", "ce"), ratio(times, "input", "ce"), ratio(times, "elm", "ce")
    show("1. reference step / our step", speedup, ">= 2.0", speedup >= 2)
    show("2. input pipeline / our step", share, "<= 0.03", share <= 0.03)
    show("3. ELM step / CE step", elm, "<= 1.02", elm <= 1.02)
    memory = ratio(times, "elm memory", "ce")
    show("   ELM step with a memory of 16 / CE step", memory, "<= 1.03", memory <= 1.03)
    show("   CE step with --compile / CE step", ratio(times, "compiled", "ce"), "none", True)
    if not arguments.skip_runs:
        with tempfile.TemporaryDirectory() as folder:
            together, in_sequence = (
                timed(lambda n=n: two_runs(Path(folder, str(n)), arguments.root, n), time.perf_counter) for n in (2, 1)
            )
        print(f"  together {together:.1f} s, in sequence {in_sequence:.1f} s, the report included")
        both = together / in_sequence
        show("4. compare --jobs 2 / the same two in sequence (wall)", both, "<= 0.85", both <= 0.85)
    seconds = min(timed(lambda: command("--help", threads=1), time.perf_counter) for _ in range(5))
    show("5. longtail --help, seconds (wall, best of 5)", seconds, "<= 0.5", seconds <= 0.5)


if __name__ == "__main__":
    main()
