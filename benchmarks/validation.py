"""Finished runs on CIFAR-LT on more validation images than they were trained beside: what chooses between recipes.

    python benchmarks/validation.py RUN... --root data [--most 200]

Twenty images a class leave a standard error of a point. The images that the profile discards are many more, up to
``--most`` of a class, and cost the training set nothing; test images are not looked at. Each row is a run's balanced
accuracy on them in per cent, by group too, and its difference to the first run's with a 95 % interval over the images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from longtail import inference
from longtail.data import load
from longtail.engine.forward import outputs
from longtail.evaluate import accuracy
from longtail.runs.read import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--root", default="data")
    parser.add_argument("--most", type=int, default=200)
    args = parser.parse_args()
    first = None
    print("| Run | Balanced accuracy | Head | Torso | Tail | Above the first |")
    print("|---|---|---|---|---|---|")
    for path in args.runs:
        run = read(path)
        data = load(run.data, root=args.root, **{**run.options, "val_per_class": args.most})
        assert data.val is not None
        assert data.counts.n.tolist() == run.counts.n.tolist()
        logits, _ = outputs(inference.restore(path).model, data.val, torch.device("cpu"))
        found = accuracy.summary(logits, data.val.labels, data.counts)
        groups = [f"{100 * value:.2f}" if value is not None else "–" for value, _ in found.groups.values()]
        above = "–"
        if first is not None:
            gap = accuracy.compare(found.correct, first.correct, data.val.labels, data.counts).difference["balanced"]
            assert gap is not None
            above = f"{100 * gap.value:+.2f} [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
        first = first or found
        print(f"| {path.name} | {100 * found.balanced:.2f} | {' | '.join(groups)} | {above} |", flush=True)
    print(f"\n{len(data.val)} images, at most {args.most} of a class.")


if __name__ == "__main__":
    main()
