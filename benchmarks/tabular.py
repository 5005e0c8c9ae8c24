"""`LongTailClassifier()` as it comes beside what people use on tables, on data that everybody has.

    pip install 'longtail[bench]'
    python benchmarks/tabular.py [--seeds 5] [--sets wine,digits]

Scikit-learn's bundled sets, make_classification, and steps: eight classes told apart by thresholds in 3 of 30 columns,
which is what trees are made for. All are made long-tailed: two fifths of every class are test data; of the
rest, classes keep a share that falls geometrically to 1/25 (at least two samples), in an order that the seed draws.
Every model has its defaults. Balanced test accuracy in per cent: mean over seeds, half-width of its 95 % interval.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from longtail.estimator import LongTailClassifier

RATIO, TEST = 25, 0.4


def made(clusters: int) -> Callable[[int], tuple[Any, Any]]:
    def make(seed: int) -> tuple[Any, Any]:
        return make_classification(
            6000, 20, n_informative=10, n_redundant=5, n_classes=10, n_clusters_per_class=clusters, random_state=seed
        )

    return make


def steps(seed: int) -> tuple[Any, Any]:
    X = np.random.default_rng(seed).random((6000, 30))
    return X, (X[:, :3] > (0.4, 0.5, 0.6)) @ np.array([1, 2, 4])


SETS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "wine": lambda seed: load_wine(return_X_y=True),
    "breast_cancer": lambda seed: load_breast_cancer(return_X_y=True),
    "digits": lambda seed: load_digits(return_X_y=True),
    "make_classification, 1 cluster a class": made(1),
    "make_classification, 3 clusters a class": made(3),
    "steps in 3 of 30 columns": steps,
}


def models() -> dict[str, Callable[[int], Any]]:
    found: dict[str, Callable[[int], Any]] = {
        "LongTailClassifier": lambda seed: LongTailClassifier(random_state=seed),
        "LogisticRegression (balanced)": lambda seed: make_pipeline(
            StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=2000)
        ),
        "HistGradientBoosting (balanced)": lambda seed: HistGradientBoostingClassifier(
            class_weight="balanced", random_state=seed
        ),
    }
    try:
        from imblearn.ensemble import BalancedRandomForestClassifier
    except ImportError:
        print("imbalanced-learn is not installed: no BalancedRandomForest (pip install 'longtail[bench]')\n")
    else:
        found["BalancedRandomForest"] = lambda seed: BalancedRandomForestClassifier(random_state=seed)
    return found


def long_tailed(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of training and test samples."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(y))
    train, test = [], []
    for rank, c in enumerate(classes):
        own = rng.permutation(np.flatnonzero(y == c))
        cut = int(TEST * len(own))
        keep = (len(own) - cut) * RATIO ** (-rank / (len(classes) - 1))
        test.append(own[:cut])
        train.append(own[cut : cut + max(int(keep), 2)])
    return np.concatenate(train), np.concatenate(test)


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}"
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", help="the first words of some sets, with commas between")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    chosen = [name for name in SETS if args.sets is None or any(name.startswith(s) for s in args.sets.split(","))]
    makers = models()
    print("| data | training samples | " + " | ".join(makers) + " |\n|---|---|" + "---|" * len(makers))
    for name in chosen:
        scores: dict[str, list[float]] = {model: [] for model in makers}
        for seed in range(args.seeds):
            X, y = SETS[name](seed)
            train, test = long_tailed(y, seed)
            for model, make in makers.items():
                predicted = make(seed).fit(X[train], y[train]).predict(X[test])
                scores[model].append(100 * balanced_accuracy_score(y[test], predicted))
        cells = " | ".join(interval(found) for found in scores.values())
        print(f"| {name} | {len(train)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
