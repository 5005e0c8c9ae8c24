"""Points for pictures of the embeddings: the embeddings themselves where they are planar, and a t-SNE map."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..counts import ClassCounts
from .predictions import Part

_POINTS_2D = 2000
_PERPLEXITY = 30


def maps(train: Part | None, counts: ClassCounts, seed: int, tsne: bool | str) -> dict[str, Any]:
    if train is None or train.embeddings is None or not len(train):
        return {"tsne": None}
    x, y = train.embeddings, train.labels.cpu()
    found: dict[str, Any] = {"tsne": None}
    if tsne:
        found["tsne"] = tsne_map(x, y, counts, seed=seed, most=300 if tsne == "auto" and len(train) < 5000 else 600)
    if x.shape[1] == 2:
        chosen = _sample(y, list(range(counts.num_classes)), _POINTS_2D, seed)
        found["embeddings2d"] = {"train": _points(x[chosen], y[chosen])}
    return found


def _points(xy: Tensor, labels: Tensor) -> dict[str, Any]:
    return {"x": xy[:, 0].double().tolist(), "y": xy[:, 1].double().tolist(), "labels": labels.tolist()}


def _sample(labels: Tensor, classes: list[int], most: int, seed: int) -> Tensor:
    """Positions of at most ``most`` samples of the given classes: all of small ones, equal shares of large ones."""
    rng = np.random.default_rng(seed)
    members = sorted(((labels == y).nonzero().flatten().numpy() for y in classes), key=len)
    chosen, left = [], most
    for i, mine in enumerate(members):
        take = min(len(mine), left // (len(members) - i))
        chosen.append(rng.permutation(mine)[:take])
        left -= take
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


def tsne_map(embeddings: Tensor, labels: Tensor, counts: ClassCounts, *, seed: int, most: int) -> dict[str, Any] | None:
    """t-SNE of up to five classes a group and ``most`` points; None where there are too few points for a map."""
    classes: list[int] = []
    present = torch.bincount(labels, minlength=counts.num_classes) > 0
    for group in counts.groups().values():
        mine = group[present[group]].tolist()
        step = max(len(mine) / 5, 1)
        classes += [mine[int(i * step)] for i in range(min(5, len(mine)))]
    chosen = _sample(labels, classes, most, seed)
    x = embeddings[chosen].double().cpu()
    if len(chosen) <= 3 * _PERPLEXITY or float(x.var(0).sum()) == 0:
        return None
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # A start from the leading components and a single thread make the map the same on every run. Half of the 500 steps
    # are t-SNE's early exaggeration: with fewer, every class would look compact.
    init = _leading(x)
    solver = TSNE(perplexity=_PERPLEXITY, init=init, learning_rate="auto", max_iter=500, random_state=seed, n_jobs=1)
    with threadpool_limits(1):
        found = solver.fit_transform(x.numpy().astype(np.float32))
    return _points(torch.from_numpy(found), labels[chosen])


def _leading(x: Tensor) -> np.ndarray[Any, Any]:
    centred = x - x.mean(0)
    _, _, v = torch.linalg.svd(centred, full_matrices=False)
    y = centred @ v[:2].T
    if y.shape[1] < 2:
        y = torch.cat([y, torch.zeros_like(y)], 1)
    scale = float(y[:, 0].std()) or 1.0
    start: np.ndarray[Any, Any] = (y / scale * 1e-4).numpy().astype(np.float32)
    return start
