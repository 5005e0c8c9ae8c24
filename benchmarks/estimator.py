"""What a fit of `LongTailClassifier()` costs, beside a balanced LogisticRegression, and what it gives for that.

    python benchmarks/estimator.py [--seeds 3] [--repeats 3] [FEATURES.npz ...]

Three shapes, and files of features (as `longtail embed` writes them) besides. Of every seed both models are fitted in
turn, again and again: seconds are those of the processor, in one thread, so a busy machine adds little; the ratio is
the median over pairs of fits that follow each other. Every model has its defaults. Balanced test accuracy in per cent:
mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular import long_tailed

from longtail.data import load
from longtail.estimator import LongTailClassifier

Parts = tuple[Any, Any, Any, Any]


def made(samples: int, features: int) -> Callable[[int], Parts]:
    """Twenty classes, the rarest a twenty-fifth of the most frequent; as many test samples, balanced."""

    def make(seed: int) -> Parts:
        X, y = make_classification(
            20 * samples, features, n_informative=20, n_redundant=20, n_classes=20, n_clusters_per_class=1,
            random_state=seed,
        )  # fmt: skip
        train, test = long_tailed(y, seed)
        rng = np.random.default_rng(seed)
        train, test = rng.permutation(train)[:samples], rng.permutation(test)[:samples]
        return X[train], y[train], X[test], y[test]

    return make


def digits(seed: int) -> Parts:
    X, y = load_digits(return_X_y=True)
    train, test = long_tailed(y, seed)
    return X[train], y[train], X[test], y[test]


def stored(path: str) -> Callable[[int], Parts]:
    data = load(path)
    parts = data.train.inputs.numpy(), data.train.labels.numpy(), data.test.inputs.numpy(), data.test.labels.numpy()
    return lambda seed: parts


MODELS: dict[str, Callable[[int], Any]] = {
    "ours": lambda seed: LongTailClassifier(random_state=seed),
    "theirs": lambda seed: make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=2000)
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FEATURES.npz")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    sets = {
        "digits": digits,
        "make_classification": made(800, 1280),
        "make_classification, more samples": made(10000, 50),
    }
    sets |= {path.split("/")[-1]: stored(path) for path in args.files}
    heads = "LongTailClassifier (s) | LogisticRegression (s) | ratio | LongTailClassifier (%) | LogisticRegression (%)"
    print(f"| data | shape | {heads} |\n|---|---|---|---|---|---|---|", flush=True)
    for name, parts in sets.items():
        seconds: dict[str, list[float]] = {model: [] for model in MODELS}
        scores: dict[str, list[float]] = {model: [] for model in MODELS}
        for seed in range(args.seeds):
            X, y, X_test, y_test = parts(seed)
            for repeat in range(args.repeats):
                for model, make in MODELS.items():
                    one, began = make(seed), time.process_time()
                    one.fit(X, y)
                    seconds[model].append(time.process_time() - began)
                    if repeat == 0:
                        scores[model].append(100 * balanced_accuracy_score(y_test, one.predict(X_test)))
        ratio = statistics.median(a / b for a, b in zip(seconds["ours"], seconds["theirs"]))
        times = " | ".join(f"{statistics.median(found):.2f}" for found in seconds.values())
        gained = " | ".join(
            f"{statistics.mean(found):.1f}" + (f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else "")
            for found in scores.values()
        )
        print(f"| {name} | {len(X):,} × {X.shape[1]:,} | {times} | {ratio:.1f} | {gained} |", flush=True)


if __name__ == "__main__":
    main()
