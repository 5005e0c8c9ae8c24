"""The pull as naive loops over float64 numbers, straight from the formulas."""

import math

import torch


def positives(i, labels, ids=None, key_labels=None, key_ids=None):
    """The indices of anchor i's positives: among the keys, or in its own batch."""
    if key_labels is None:
        same = [j for j in range(len(labels)) if labels[j] == labels[i]]
        return [j for j in same if (j != i if ids is None else ids[j] != ids[i])]
    same = [j for j in range(len(key_labels)) if key_labels[j] == labels[i]]
    return same if ids is None or key_ids is None else [j for j in same if key_ids[j] != ids[i]]


def distances(x, labels, ids=None, keys=None):
    """For each anchor the list of squared distances to its positives. ``keys`` = (embeddings, labels, ids)."""
    x = x.detach().double()
    z, key_labels, key_ids = (x, None, None) if keys is None else (keys[0].detach().double(), *keys[1:])
    as_list = [None if t is None else t.tolist() for t in (labels, ids, key_labels, key_ids)]
    return [[float(((x[i] - z[j]) ** 2).sum()) for j in positives(i, *as_list)] for i in range(len(x))]


def log1p_sum_exp(terms):
    """log(1 + Σ exp t), stable."""
    top = max([0.0, *terms])
    return top + math.log(math.exp(-top) + sum(math.exp(t - top) for t in terms))


def pull(x, labels, alpha, ids=None, keys=None, factor=None):
    """``factor(i, m)``: what the sum over m positives of anchor i is multiplied by."""
    values = []
    for i, found in enumerate(distances(x, labels, ids, keys)):
        shift = math.log(factor(i, len(found))) if factor and found else 0.0
        values.append(log1p_sum_exp([d - float(alpha[labels[i]]) + shift for d in found]))
    return torch.tensor(values, dtype=torch.float64)


def hard_pull(x, labels, alpha, ids=None, keys=None):
    found = distances(x, labels, ids, keys)
    values = [max([0.0, *(d - float(alpha[labels[i]]) for d in ds)]) for i, ds in enumerate(found)]
    return torch.tensor(values, dtype=torch.float64)


def relative_pull(x, labels, alpha, ids=None, keys=None):
    x = x.detach().double()
    variance = float(((x - x.mean(0)) ** 2).sum(1).mean())
    found = distances(x, labels, ids, keys)
    values = [log1p_sum_exp([4 * d / variance - float(alpha[labels[i]]) for d in ds]) for i, ds in enumerate(found)]
    return torch.tensor(values, dtype=torch.float64)
