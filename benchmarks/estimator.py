"""`LongTailClassifier()` as it comes against a tuned balanced logistic regression, on real CIFAR100-LT features.

    python benchmarks/estimator.py FEATURES.npz [--seeds 5]

FEATURES.npz holds f_train, y_train, f_val, y_val, f_test, y_test. The baseline's C is chosen by balanced accuracy on
f_val; the estimator's defaults were. The test part is looked at once, by what was chosen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from longtail import ClassCounts
from longtail.estimator import LongTailClassifier

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def scores(predicted: np.ndarray, y: np.ndarray, counts: ClassCounts) -> dict[str, float]:
    """Balanced accuracy in per cent over the classes that occur in y: all of them, and by group."""
    hit = {c: 100 * float((predicted[y == c] == c).mean()) for c in np.unique(y)}
    groups = {name: [hit[c] for c in index.tolist() if c in hit] for name, index in counts.groups().items()}
    means = {name: round(statistics.mean(values), 2) for name, values in groups.items() if values}
    return {"balanced": round(statistics.mean(hit.values()), 2), **means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with np.load(args.features, allow_pickle=False) as file:
        data = {k: file[k].astype(np.float32 if k[0] == "f" else np.int64) for k in file.files}
    X, y, counts = data["f_train"], data["y_train"], ClassCounts.from_labels(data["y_train"])

    warnings.simplefilter("ignore", ConvergenceWarning)
    started = time.perf_counter()
    baselines = {C: LogisticRegression(class_weight="balanced", C=C, max_iter=500).fit(X, y) for C in GRID}
    val = {C: scores(m.predict(data["f_val"]), data["y_val"], counts)["balanced"] for C, m in baselines.items()}
    best = max(val, key=lambda C: val[C])
    baseline = scores(baselines[best].predict(data["f_test"]), data["y_test"], counts)
    print(json.dumps({"baseline": baseline, "C": best, "val": val[best], "s": round(time.perf_counter() - started, 1)}))

    ours = []
    for seed in range(args.seeds):
        started = time.perf_counter()
        model = LongTailClassifier(random_state=seed).fit(X, y)
        seconds = round(time.perf_counter() - started, 1)
        row = scores(model.predict(data["f_test"]), data["y_test"], counts)
        held = scores(model.predict(data["f_val"]), data["y_val"], counts)["balanced"]
        ours.append(row)
        print(json.dumps({"seed": seed, **row, "val": held, "s": seconds}), flush=True)
    mean = {k: round(statistics.mean(r[k] for r in ours), 2) for k in ours[0]}
    gain = {k: round(mean[k] - baseline[k], 2) for k in ("balanced", "tail")}
    print(json.dumps({"mean": mean, "std": round(statistics.stdev(r["balanced"] for r in ours), 2), "gain": gain}))


if __name__ == "__main__":
    main()
