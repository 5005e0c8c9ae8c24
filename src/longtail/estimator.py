"""Every method as a scikit-learn classifier over tabular data or frozen features."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import balanced_accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from . import methods, models, posthoc
from .counts import ClassCounts
from .data.dataset import Split
from .engine import recipe as recipes
from .engine.distributed import pick_device
from .engine.finish import after
from .engine.forward import outputs
from .engine.signals import Interrupted
from .engine.train import fit
from .errors import InputError
from .evaluate import accuracy
from .evaluate.predictions import Part, Predictions
from .models import CosineHead
from .plan import Plan
from .probabilities import reading
from .stopping import EarlyStopping

# Chosen on the validation part of CIFAR100-LT features, as the defaults of the estimator were.
_COSINE_SCALE = 16.0
_INPUT_NORM = 2.0
_STEPS = 600

Array = NDArray[Any]


class LongTailClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small network trained by any method of ``methods.names()``, under scikit-learn's contract.

    Features are standardised and weighed by how much of their variance lies between classes (the fourth root of the
    ratio of between- to within-class variance, held in [0.32, 1]), so scaling them beforehand changes nothing. The
    network is one hidden layer beside its own input, under a cosine head of scale 16; a method that works on the head's
    bias or norm (τ-normalisation, LWS, CB focal) and ``hidden=()`` have a linear head.

    Args:
        method: any of ``longtail.methods.names()``; ``knobs`` are its settings.
        hidden: sizes of the hidden layers; ``()`` is a linear model.
        epochs: passes over the data; by default 20, and more on small data: 600 steps at least.
        batch_size: by default 256, less on small data.
        early_stopping: hold out ``validation_fraction`` of every class that has two samples (at least one of each),
            stop after ``n_iter_no_change`` epochs without a better balanced accuracy there, and keep the best epoch's
            weights. Applies to the last stage of a method that has several, not to LWS's factors. Off by default: the
            tail has no samples to spare.
        target_prior: the class frequencies that probabilities, decisions and predictions assume: ``"uniform"``,
            ``"train"``, or one number for each of ``classes_``. By default what the method trains for: uniform for the
            adjusted ones (ELM, LogAdj, …), the training frequencies for plain cross-entropy.
        random_state: fixes everything: the same data, threads and state give the same bits.

    Attributes:
        classes_, n_features_in_, counts_: what was seen in ``fit``.
        module_: the network, float64 on the CPU; it takes standardised features.
        history_: one row an epoch, as in a run's ``metrics.jsonl``.
        reading_: how the network's logits become probabilities, and the log-prior that those assume.
        validation_score_: balanced accuracy on the validation part where there is one, else None.

    ``fit(X, y, X_val=…, y_val=…)`` takes validation data of one's own, for early stopping and for methods that choose a
    knob on it (k-NN's k, τ); those hold out ``validation_fraction`` otherwise.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> round(LongTailClassifier(random_state=0).fit(X[:110], y[:110]).score(X, y), 1)
    1.0
    """

    def __init__(
        self,
        method: str = "elm",
        *,
        knobs: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (256,),
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.2,
        weight_decay: float = 5e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        target_prior: str | ArrayLike | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.knobs = knobs
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.target_prior = target_prior
        self.random_state = random_state
        self.device = device

    def fit(
        self, X: ArrayLike, y: ArrayLike, X_val: ArrayLike | None = None, y_val: ArrayLike | None = None, **others: Any
    ) -> LongTailClassifier:
        """Train on features (N, K) and labels (N,) of any kind."""
        _refuse(others)
        self._check_settings()
        x: Array
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"a classifier needs at least two classes, got 1 class: {self.classes_[0]}")
        labels = torch.from_numpy(codes.astype(np.int64))
        if self.target_prior is not None:  # before the training, not after it
            _log_prior(self.target_prior, ClassCounts.from_labels(labels), len(self.classes_))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held = self._validation(X_val, y_val)
        plan = methods.build(self.method, ClassCounts.from_labels(labels), **dict(self.knobs or {}))
        if held is None and (self.early_stopping or plan.posthoc):
            kept, out = _hold_out(labels, self.validation_fraction, seed)
            held = (x[out], labels[out])
            x, labels = x[kept], labels[kept]
            plan = methods.build(self.method, ClassCounts.from_labels(labels), **dict(self.knobs or {}))
        self.counts_ = ClassCounts.from_labels(labels)
        self._set_scale(x, labels.numpy())
        train = _split(self._scaled(x), labels)
        val = None if held is None else _split(self._scaled(held[0]), held[1])
        self._train(plan, train, val, seed)
        return self

    def _check_settings(self) -> None:
        """What nothing further down would refuse in a sentence."""
        for name in ("epochs", "batch_size", "n_iter_no_change"):
            if (value := getattr(self, name)) is not None or name == "n_iter_no_change":
                _whole(name, value)
        if not isinstance(self.hidden, Iterable):
            raise InputError(f"hidden must be the sizes of the hidden layers, such as (256,), got {self.hidden!r}")
        if self.knobs is not None and not isinstance(self.knobs, Mapping):
            raise InputError(f"knobs must be a mapping, such as {{'lam': 0.1}}, got {self.knobs!r}")

    def _validation(self, X: ArrayLike | None, y: ArrayLike | None) -> tuple[Array, Tensor] | None:
        if X is None and y is None:
            return None
        if X is None or y is None:
            raise InputError("validation data is both X_val and y_val, got one of them")
        x: Array
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=False)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y_val has the class {unknown[0]}, which y does not have")
        return x, torch.from_numpy(np.searchsorted(self.classes_, y).astype(np.int64))

    def _set_scale(self, X: Array, codes: Array) -> None:
        """What features are shifted by and multiplied with, so that ‖x‖ is about 2 whatever their number."""
        X = X.astype(np.float64)
        n = np.bincount(codes).astype(np.float64)
        mean, total = X.mean(0), X.var(0)
        means = np.zeros((len(n), X.shape[1]))
        np.add.at(means, codes, X)
        means /= n[:, None]
        between = (n[:, None] * (means - mean) ** 2).sum(0) / n.sum()
        varies = total > 1e-24 * np.maximum(mean**2, 1e-300)  # times of day in seconds since 1970 do vary
        total = np.where(varies, total, 1.0)
        share = np.clip(between / total, 0, 0.99)
        weight = np.clip(share / (1 - share), 0.01, 1) ** 0.25 * varies
        size = math.sqrt(max(float((weight**2).sum()), 1e-12))
        self.mean_, self.factor_ = mean, _INPUT_NORM / size * weight / np.sqrt(total)

    def _scaled(self, X: Array) -> Tensor:
        return torch.from_numpy((X.astype(np.float64) - self.mean_) * self.factor_)

    def _train(self, plan: Plan, train: Split, val: Split | None, seed: int) -> None:
        # The seed of the caller's program is none of ours.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._network(plan, train.input_shape[0])
        batch = int(self.batch_size or min(256, max(16, len(train) // 8 // 2 * 2)))
        epochs = int(self.epochs or max(20, math.ceil(_STEPS / max(len(train) // batch, 1))))
        recipe = recipes.get("features").with_epochs(epochs)
        recipe = recipe.replace(batch_size=batch, lr=self.lr, weight_decay=self.weight_decay, precision="fp32")
        watched = val if self.early_stopping else None
        watch = EarlyStopping(module, plan, train, watched, sum(plan.epochs(epochs)[:-1]), self.n_iter_no_change)
        with contextlib.suppress(Interrupted):  # by `watch`: nothing else can
            device = pick_device(self.device)
            fit(module, plan, train, recipe, seed=seed, device=device, watchers=[watch], stop=watch.stop)
        watch.restore()
        self.history_ = watch.rows
        module.cpu()
        self._finish(module, plan, train, val)

    def _network(self, plan: Plan, features: int) -> nn.Module:
        c = len(self.classes_)
        hidden = tuple(int(h) if isinstance(h, Integral) else h for h in self.hidden)  # searches have NumPy's
        module = models.build("mlp", c, (features,), head=plan.head, hidden=hidden, skip=True)
        for layer in module.layers:  # type: ignore[union-attr]
            if isinstance(layer, nn.Linear):
                # Fan-out, so that hidden layers are as long as the input (‖x‖ ≈ 2), however few features it has; and
                # kinks spread over the data, where with biases of 0 they would all pass through its centre.
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.normal_(layer.bias, std=_INPUT_NORM * math.sqrt(2 / layer.out_features))
        of_the_head = plan.head_bias is not None or any(p.kind == "tau-norm" for p in plan.posthoc)
        of_the_head |= any(s.trains == "scale" for s in plan.stages)
        if plan.head == "linear" and hidden and not of_the_head:
            module.head = CosineHead(int(module.embedding_size), c, scale=_COSINE_SCALE)  # type: ignore[arg-type]
        return module

    def _finish(self, module: nn.Module, plan: Plan, train: Split, val: Split | None) -> None:
        """Post-hoc steps, and how the network's logits are to be read."""
        self._neighbours: tuple[Tensor, Tensor, int] | None = None
        if plan.posthoc:
            predictions = _predictions(module, train, val)
            _, steps = after(module, plan, predictions)
            for step in steps:
                if step["kind"] == "knn":
                    assert predictions.train is not None
                    assert predictions.train.embeddings is not None
                    embeddings = predictions.train.embeddings.double()
                    self._neighbours = (embeddings, train.labels, int(step["value"]))
        self.reading_ = reading(plan, self.counts_)
        self.module_ = module.double().eval().requires_grad_(False)
        self._n_features_out = int(module.embedding_size)  # type: ignore[arg-type]
        self.validation_score_ = None
        if val is not None:
            logits = self._logits(val.inputs.double())  # type: ignore[union-attr]
            self.validation_score_ = accuracy.of_labels(logits.argmax(1), val.labels, self.counts_).balanced

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor
        with torch.no_grad():
            logits, embeddings = self.module_(x)
            if self._neighbours is not None:
                known, labels, k = self._neighbours
                logits = posthoc.knn(embeddings, known, labels, len(self.classes_), k).double()
        return self.reading_.scores(logits)

    def _features(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return self._scaled(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def _decide(self, X: ArrayLike, target: Any) -> Array:
        logits: Array = self._logits(self._features(X)).numpy()
        if target is None:
            return logits
        shift: Array = _log_prior(target, self.counts_, len(self.classes_)) - self.reading_.log_prior.numpy()
        return logits + shift

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores whose softmax is ``predict_proba``: (N, C), or (N,) with two classes, above 0 for the second."""
        scores = self._decide(X, self.target_prior)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike, target_prior: str | ArrayLike | None = None) -> Array:
        """Probabilities (N, C) under ``target_prior`` (the estimator's own unless given here)."""
        scores = self._decide(X, self.target_prior if target_prior is None else target_prior)
        shifted = np.exp(scores - scores.max(1, keepdims=True))
        probabilities: Array = shifted / shifted.sum(1, keepdims=True)
        return probabilities

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each sample."""
        best = self._decide(X, self.target_prior).argmax(1)
        predicted: Array = self.classes_[best]
        return predicted

    def transform(self, X: ArrayLike) -> Array:
        """Embeddings (N, K): what the network's head sees."""
        x = self._features(X)
        embeddings: Array = self.module_.embed(x).numpy()  # type: ignore[operator]
        return embeddings

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # type: ignore[override]
        """Balanced accuracy: the mean over classes of the share of their samples that are predicted right."""
        return float(balanced_accuracy_score(y, self.predict(X)))


def _refuse(others: Mapping[str, Any]) -> None:
    weights = others.get("sample_weight")
    if weights is not None:
        raise InputError(
            "LongTailClassifier.fit takes no sample_weight: how classes count is the method's own choice "
            "(see method= and knobs=)"
        )
    for name in others:
        if name != "sample_weight":  # None is how scikit-learn says that there is none
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")


def _whole(name: str, value: Any) -> None:
    """Whole numbers of NumPy are as good: grids are made of them."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")


def _split(x: Tensor, labels: Tensor) -> Split:
    return Split(x.float(), labels, torch.arange(len(labels)))


def _hold_out(labels: Tensor, fraction: float, seed: int) -> tuple[Array, Array]:
    """Positions to train on and to validate on: a share of every class, one sample at least, never its last one."""
    if not 0 < fraction < 1:
        raise InputError(f"validation_fraction must be between 0 and 1, got {fraction}")
    rng = np.random.default_rng(seed)
    out = []
    for c in range(int(labels.max()) + 1):
        own = rng.permutation(np.flatnonzero(labels.numpy() == c))
        out.append(own[: min(max(round(fraction * len(own)), 1), len(own) - 1)])
    held = np.concatenate(out)
    if not len(held):
        raise InputError("no class has two samples, so no validation data can be held out: pass X_val and y_val")
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)


def _predictions(module: nn.Module, train: Split, val: Split | None) -> Predictions:
    def part(split: Split) -> Part:
        logits, embeddings = outputs(module, split, torch.device("cpu"))
        return Part(logits, split.labels, embeddings)

    head: Any = module.head
    return Predictions(
        train=part(train),
        val=None if val is None else part(val),
        head_weight=head.weight.detach(),
        head_bias=None if head.bias is None else head.bias.detach(),
    )


def _log_prior(target: Any, counts: ClassCounts, c: int) -> Array:
    if isinstance(target, str):
        if target not in ("uniform", "train"):
            raise InputError(f"target_prior must be 'uniform', 'train' or {c} numbers, got {target!r}")
        target = np.ones(c) if target == "uniform" else counts.n.numpy()
    try:
        prior = np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError):
        prior = np.zeros(0)
    if prior.shape != (c,) or not np.isfinite(prior).all() or (prior < 0).any() or prior.sum() == 0:
        raise InputError(f"target_prior must be {c} numbers of at least 0, one for each of classes_, got {target!r}")
    with np.errstate(divide="ignore"):
        logs: Array = np.log(prior / prior.sum())
    return logs
