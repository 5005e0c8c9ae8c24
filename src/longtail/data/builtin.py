"""Built-in problems that need no download: scikit-learn's real digits, and the paper's two moons.

Importing `sklearn.datasets` takes longer than training on them, so its file is read and its formula written here.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np
import torch

from ..errors import InputError, real, whole
from .dataset import Split
from .limits import check_memory
from .profiles import Source, check_seed, shuffled_by_class

TEST_PER_CLASS = 40


def digits() -> Source:
    """Real 8×8 handwritten digits as 64 features in [0, 1]; 40 test images a class, always the same ones."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
    x, y = (table[:, :-1] / 16).float(), table[:, -1].long()
    order = shuffled_by_class(y, 10, seed=0)
    test = torch.cat([positions[-TEST_PER_CLASS:] for positions in order])
    rest = torch.cat([positions[:-TEST_PER_CLASS] for positions in order]).sort().values
    whole = Split(x, y, torch.arange(len(y)))
    note = f"{len(test)} test images: a few points between methods may be chance, and the report says how many"
    names = [str(d) for d in range(10)]
    return Source("digits-lt", names, whole.take(rest), test=whole.take(test), notes=(note,))


def moons(*, n: int = 1000, tail: float = 0.05, noise: float = 0.1, seed: int | None = None) -> Source:
    """Two moons in the plane, the second of which has a share ``tail`` of the ``n`` training points (Figure 1).

    Validation (500 points) and test (2,000) are balanced, and drawn from the same distribution.
    """
    seed = check_seed(seed)
    whole("n (points)", n, at_least=2)
    check_memory(f"moons of n = {n:,} points", 100 * n)
    real("tail", tail, above=0, below=1)
    real("noise", noise, at_least=0)
    rare = round(n * tail)
    if not 0 < rare < n:
        raise InputError(f"tail must be a share in (0, 1) that leaves both classes a point, got {tail!r} of {n}")
    sizes = {"train": (n - rare, rare), "val": (250, 250), "test": (1000, 1000)}
    parts = {}
    for number, (split, of) in enumerate(sizes.items()):
        rng = np.random.RandomState([seed, number])
        upper, lower = (np.linspace(0, np.pi, size) for size in of)
        curve = [(np.cos(upper), np.sin(upper)), (1 - np.cos(lower), 1 - np.sin(lower) - 0.5)]
        points = np.concatenate(curve, axis=1).T
        points = points + rng.normal(scale=noise, size=points.shape)
        parts[split] = torch.from_numpy(points).float(), torch.arange(2).repeat_interleave(torch.tensor(of))
    identity = f"n={n} tail={tail} noise={noise} seed={seed}"  # the points are drawn, so indices alone say nothing
    return Source.of("moons", ["head", "tail"], parts, identity=identity)
