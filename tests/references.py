"""Every loss as its formula says, in plain Python floats: double loops over samples and classes, nothing clever.

Logits and embeddings are lists of rows, labels a list of integers; each function returns one value a sample. Keys are a
list of (embedding, label, id) triples; `others` decides which of them an anchor is compared with.
"""

from __future__ import annotations

import math

Rows = list[list[float]]


def prior(counts: list[int]) -> list[float]:
    """P(y), a count of 0 taken as 1."""
    return [max(n, 1) / sum(counts) for n in counts]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(p * q for p, q in zip(a, b))


def distance(a: list[float], b: list[float]) -> float:
    """Squared Euclidean distance."""
    return math.fsum((p - q) ** 2 for p, q in zip(a, b))


def mean(rows: Rows) -> list[float]:
    return [math.fsum(column) / len(rows) for column in zip(*rows)]


def unit(a: list[float]) -> list[float]:
    norm = math.sqrt(dot(a, a))
    return [p / norm if norm else 0.0 for p in a]


def log1p_sum(exponents: list[float]) -> float:
    """log(1 + Σ exp), without overflow."""
    top = max([0.0, *exponents])
    if top == 0:
        return math.log1p(math.fsum(math.exp(e) for e in exponents))
    return top + math.log(math.exp(-top) + math.fsum(math.exp(e - top) for e in exponents))


def others(i: int, labels: list[int], embeddings: Rows, ids: list[int] | None, keys: list | None) -> list:
    """(embedding, label) of the keys that are not anchor i itself."""
    found = []
    if keys is None:
        for j, (x, y) in enumerate(zip(embeddings, labels)):
            if (ids is None and j != i) or (ids is not None and ids[j] != ids[i]):
                found.append((x, y))
    else:
        for x, y, key_id in keys:
            if ids is None or key_id is None or key_id != ids[i]:
                found.append((x, y))
    return found


# --- logits ---


def margin_ce_of(f: list[float], y: int, target: list[float], other: list[float], scale: list[float]) -> float:
    own = scale[y] * f[y]
    return log1p_sum([target[y] + other[k] + scale[k] * f[k] - own for k in range(len(f)) if k != y])


def margin_cross_entropy(
    logits: Rows,
    labels: list,
    target: list[float] | None = None,
    other: list[float] | None = None,
    scale: list[float] | None = None,
    weights: list[float] | None = None,
    focal: float = 0.0,
    smoothing: float = 0.0,
    ignore: int | None = None,
) -> list[float]:
    """Labels are class indices or distributions over the classes."""
    values = []
    for f, y in zip(logits, labels):
        c = len(f)
        if y == ignore:
            values.append(0.0)
            continue
        q = list(y) if isinstance(y, (list, tuple)) else [float(k == y) for k in range(c)]
        value = 0.0
        for k in range(c):
            share = (1 - smoothing) * q[k] + smoothing / c
            loss = margin_ce_of(f, k, target or [0.0] * c, other or [0.0] * c, scale or [1.0] * c)
            value += share * (weights[k] if weights else 1.0) * (1 - math.exp(-loss)) ** focal * loss
        values.append(value)
    return values


def hard_margin(logits: Rows, labels: list[int], target: list[float], other: list[float]) -> list[float]:
    values = []
    for f, y in zip(logits, labels):
        hinges = [max(0.0, target[y] + other[k] + f[k] - f[y]) for k in range(len(f)) if k != y]
        values.append(max(hinges, default=0.0))
    return values


def sigmoid_focal(logits: Rows, labels: list[int], gamma: float, weights: list[float]) -> list[float]:
    values = []
    for f, y in zip(logits, labels):
        total = 0.0
        for k in range(len(f)):
            p = 1 / (1 + math.exp(-f[k]))
            p_true = p if k == y else 1 - p
            total += (1 - p_true) ** gamma * -math.log(p_true)
        values.append(weights[y] * total)
    return values


def hybrid(logits: Rows, labels: list[int]) -> list[float]:
    values = []
    for f, y in zip(logits, labels):
        values.append(log1p_sum([g[y] - f[y] for g, other_y in zip(logits, labels) if other_y != y]))
    return values


# --- embeddings, against keys ---


def pull(x: Rows, labels: list[int], alpha: list[float], ids=None, keys=None) -> list[float]:
    values = []
    for i, y in enumerate(labels):
        positives = [k for k, other_y in others(i, labels, x, ids, keys) if other_y == y]
        values.append(log1p_sum([distance(x[i], k) - alpha[y] for k in positives]))
    return values


def hard_pull(x: Rows, labels: list[int], alpha: list[float], ids=None, keys=None) -> list[float]:
    values = []
    for i, y in enumerate(labels):
        positives = [k for k, other_y in others(i, labels, x, ids, keys) if other_y == y]
        values.append(max([max(0.0, distance(x[i], k) - alpha[y]) for k in positives], default=0.0))
    return values


def supcon(x: Rows, labels: list[int], normalise=False, temperature=1.0, ids=None, keys=None) -> list[float]:
    change = unit if normalise else list
    values = []
    for i, y in enumerate(labels):
        near = others(i, labels, x, ids, keys)
        s = [(dot(change(x[i]), change(k)) / temperature, other_y == y) for k, other_y in near]
        positives, negatives = [v for v, same in s if same], [v for v, same in s if not same]
        losses = [log1p_sum([n - p for n in negatives]) for p in positives]
        values.append(math.fsum(losses) / len(losses) if losses else 0.0)
    return values


def triplet(x: Rows, labels: list[int], gamma=1.0, normalise=False, ids=None, keys=None) -> list[float]:
    change = unit if normalise else list
    values = []
    for i, y in enumerate(labels):
        s = [(dot(change(x[i]), change(k)), other_y == y) for k, other_y in others(i, labels, x, ids, keys)]
        hinges = []
        for positive, same in s:
            for negative, also_same in s:
                if same and not also_same:
                    hinges.append(max(0.0, gamma + negative - positive))
        values.append(math.fsum(hinges) / len(hinges) if hinges else 0.0)
    return values


def infonce(x: Rows, labels: list[int], normalise: bool, temperature: float, ids: list[int], keys=None) -> list[float]:
    change = unit if normalise else list
    values = []
    for i in range(len(x)):
        rows = [(k, key_id) for k, _, key_id in keys] if keys is not None else list(zip(x, ids))
        positives, negatives = [], []
        for j, (k, key_id) in enumerate(rows):
            s = dot(change(x[i]), change(k)) / temperature
            if key_id != ids[i]:
                negatives.append(s)
            elif keys is not None or j != i:
                positives.append(s)
        losses = [log1p_sum([n - p for n in negatives]) for p in positives]
        values.append(math.fsum(losses) / len(losses) if losses else 0.0)
    return values


def dro_lt(x: Rows, labels: list[int], epsilon: list[float], centroids=None, ids=None, keys=None) -> list[float]:
    values = []
    for i, y in enumerate(labels):
        near = others(i, labels, x, ids, keys)
        mu = mean([x[i], *(k for k, other_y in near if other_y == y)]) if centroids is None else centroids[y]
        own = distance(x[i], mu)
        values.append(log1p_sum([own - distance(k, mu) + epsilon[y] * (other_y != y) for k, other_y in near]))
    return values


# --- embeddings, of the batch ---


def center(x: Rows, labels: list[int]) -> list[float]:
    return [distance(a, mean([b for b, other_y in zip(x, labels) if other_y == y])) for a, y in zip(x, labels)]


def range_loss(x: Rows, labels: list[int], gamma: float) -> list[float]:
    centres = {y: mean([a for a, other_y in zip(x, labels) if other_y == y]) for y in labels}
    hinges = [max(0.0, gamma - distance(centres[a], centres[b])) for a in centres for b in centres if a != b]
    return [max(hinges, default=0.0)] * len(x)


def spreadout(x: Rows, labels: list[int]) -> list[float]:
    cosines = [dot(unit(a), unit(b)) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    if not cosines:
        return [0.0] * len(x)
    m1, m2 = math.fsum(cosines) / len(cosines), math.fsum(s * s for s in cosines) / len(cosines)
    return [m1**2 + max(0.0, m2 - 1 / len(x[0]))] * len(x)
