"""Naive loops for everything in longtail.evaluate: slow, plain, in float64 Python."""

import math

import numpy as np


def recalls(predicted, labels, classes):
    out = []
    for c in range(classes):
        mine = [p == c for p, y in zip(predicted, labels) if y == c]
        out.append(sum(mine) / len(mine) if mine else math.nan)
    return out


def margin(logits, label):
    return logits[label] - max(v for i, v in enumerate(logits) if i != label)


def squared(a, b):
    return sum((float(p) - float(q)) ** 2 for p, q in zip(a, b))


def d_max(x, y):
    return [max(math.sqrt(squared(x[i], x[j])) for j in range(len(x)) if y[j] == y[i]) for i in range(len(x))]


def pull(x, y, alpha):
    out = []
    for i in range(len(x)):
        terms = [squared(x[i], x[j]) - alpha[y[i]] for j in range(len(x)) if j != i and y[j] == y[i]]
        top = max([0.0, *terms])
        out.append(top + math.log(math.exp(-top) + sum(math.exp(t - top) for t in terms)))
    return out


def hard_pull(x, y, alpha):
    return [
        max([0.0, *(squared(x[i], x[j]) - alpha[y[i]] for j in range(len(x)) if j != i and y[j] == y[i])])
        for i in range(len(x))
    ]


def proposition1(x, y, alpha):
    """{label: (left side, right side)} for classes of at least two samples."""
    x = np.asarray(x, dtype=np.float64)
    omega = pull(x, y, alpha)
    out = {}
    for c in sorted(set(y)):
        mine = [i for i in range(len(y)) if y[i] == c]
        n = len(mine)
        if n < 2:
            continue
        variance = sum(x[mine][:, j].var() for j in range(x.shape[1]))
        left = 2 * n / (n - 1) * variance - alpha[c] + math.log(n - 1)
        out[c] = (left, sum(omega[i] for i in mine) / n)
    return out


def vote(train, train_labels, query, k):
    """Majority of the k nearest; among equals the class of the nearest voter."""
    order = sorted(range(len(train)), key=lambda i: squared(train[i], query))[:k]
    labels = [int(train_labels[i]) for i in order]
    most = max(labels.count(c) for c in labels)
    return next(c for c in labels if labels.count(c) == most)


def nearest_mean(train, train_labels, query):
    means = {int(c): train[train_labels == c].mean(0) for c in np.unique(train_labels)}
    return min(means, key=lambda c: squared(means[c], query))


def chance_of_positive(n, total, batch):
    """One minus the product of drawing another class every time."""
    none = 1.0
    for drawn in range(batch - 1):
        none *= max(total - n - drawn, 0) / (total - 1 - drawn)
    return 1 - none


def nc1(x, y):
    x, classes = np.asarray(x, dtype=np.float64), sorted(set(y))
    means = np.stack([x[np.asarray(y) == c].mean(0) for c in classes])
    within = np.mean([np.cov(x[np.asarray(y) == c].T, bias=True) for c in classes], axis=0)
    centred = means - means.mean(0)
    between = centred.T @ centred / len(classes)
    return np.trace(within @ np.linalg.pinv(between)) / len(classes)
