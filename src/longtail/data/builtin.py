"""Built-in problems that need no download: scikit-learn's real digits, and the paper's two moons."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import InputError, real, whole
from .dataset import Split
from .limits import check_memory
from .profiles import Source, check_seed, shuffled_by_class

TEST_PER_CLASS = 40


def digits() -> Source:
    """Real 8×8 handwritten digits as 64 features in [0, 1]; 40 test images a class, always the same ones."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels).long()
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
    from sklearn.datasets import make_moons

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
        points, labels = make_moons(of, noise=noise or None, random_state=rng, shuffle=False)
        parts[split] = torch.from_numpy(points).float(), torch.from_numpy(labels).long()
    identity = f"n={n} tail={tail} noise={noise} seed={seed}"  # the points are drawn, so indices alone say nothing
    return Source.of("moons", ["head", "tail"], parts, identity=identity)
