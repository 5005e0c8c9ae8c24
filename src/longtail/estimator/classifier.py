"""The estimator itself: checks, training by the engine or as a linear model, and reading what was learnt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import balanced_accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import methods, models, posthoc
from ..counts import ClassCounts
from ..data.dataset import Split
from ..engine import recipe as recipes
from ..engine.finish import after, predict
from ..engine.process import Interrupted, pick_device
from ..engine.stage import needs_logits
from ..engine.train import Saving
from ..engine.train import fit as train_network
from ..errors import InputError, real, unknown, whole
from ..evaluate import accuracy
from ..models import Standardise
from ..plan import Plan
from ..probabilities import reading
from . import inputs, linear
from .watchers import Display, EarlyStopping

Array = NDArray[Any]


class LongTailClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small network trained by any method of ``methods.names()``, under scikit-learn's contract.

    Features are standardised and weighed by how much of their variance lies between classes (``models.Standardise``),
    so scaling them beforehand changes nothing. The network is one hidden layer beside its own input, under a cosine
    head of scale 16; a method that works on the head's bias or norm (τ-normalisation, LWS, CB focal) has a linear one.

    ``hidden=()`` is a linear model, fitted by L-BFGS on all samples at once; its embedding is the input, so ELM is
    logit adjustment there. A scipy sparse matrix (TF-IDF, counts) always has a linear model, and is never made dense.

    Args:
        method: any of ``longtail.methods.names()``; ``knobs`` are its settings. A search sets single ones by name:
            ``GridSearchCV(LongTailClassifier(), {"lam": [0.01, 0.1]})``, or as ``knobs__lam``.
        hidden: sizes of the hidden layers; ``()`` is a linear model.
        epochs: passes over the data; by default 20, and more on small data: 250 steps at least (16 and 125 where there
            are at most 8 samples for each feature). Of a linear model the most iterations, 200 by default;
            ``batch_size`` and ``lr`` are not for it.
        batch_size: by default 256, less on small data.
        early_stopping: hold out ``validation_fraction`` of every class that has two samples (at least one of each),
            stop after ``n_iter_no_change`` epochs without a better balanced accuracy there, and keep the best epoch's
            weights. Applies to the last stage of a method that has several, not to LWS's factors. Off by default: the
            tail has no samples to spare.
        target_prior: the class frequencies that probabilities, decisions and predictions assume: ``"uniform"``,
            ``"train"``, one number for each of ``classes_``, or a dict from class to number. By default what the method
            trains for: uniform for the adjusted ones (ELM, LogAdj, …), the training frequencies for plain
            cross-entropy.
        random_state: fixes everything: the same data, threads and state give the same bits.
        verbose: show a progress bar.

    Attributes:
        classes_, n_features_in_, counts_: what was seen in ``fit``.
        module_: the network, float64 on the CPU, which takes features as they come.
        history_: one row an epoch (of a linear model an iteration), as in a run's ``metrics.jsonl``.
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
        target_prior: str | ArrayLike | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: bool | int = False,
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
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings; ``deep`` adds the method's knobs as ``knobs__NAME``."""
        settings: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.method, str) and self.method in methods.names():
            given = self.knobs if isinstance(self.knobs, Mapping) else {}
            settings |= {f"knobs__{k}": v for k, v in {**methods.knobs(self.method), **given}.items()}
        return settings

    def set_params(self, **settings: Any) -> LongTailClassifier:
        """Set settings and, as ``knobs__NAME`` or by NAME alone, single knobs of the method: what a search does."""
        own = super().get_params(deep=False)
        super().set_params(**{k: v for k, v in settings.items() if k in own})
        rest = {k.removeprefix("knobs__"): v for k, v in settings.items() if k not in own}
        if rest:
            valid = methods.knobs(self.method)
            for name in rest:
                if name not in valid:
                    kind = f"parameter of {type(self).__name__} with the method {self.method!r}"
                    raise unknown(kind, name, [*own, *valid])
            # Not in place: the dictionary may be somebody else's
            self.knobs = {**(self.knobs or {}), **rest}
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
    ) -> LongTailClassifier:
        """Train on features (N, K), an array or a scipy sparse matrix, and labels (N,) of any kind.

        ``sample_weight`` (N,) multiplies each sample's loss, and class counts become sums of weights: a weight of 2
        stands for a sample given twice, a weight of 0 for one that is not there.
        """
        self._check_settings()
        x: Any
        labels_given: Array
        x, labels_given = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_classification_targets(labels_given)
        weights = inputs.sample_weights(sample_weight, x)
        if weights is not None:
            kept = np.flatnonzero(weights)
            x, labels_given, weights = x[kept], labels_given[kept], weights[kept]
        self.classes_, codes = np.unique(labels_given, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"a classifier needs at least two classes, got 1 class: {self.classes_[0]}")
        labels = torch.from_numpy(codes.astype(np.int64))
        if self.target_prior is not None:  # before the training, not after it
            inputs.log_prior(self.target_prior, ClassCounts.from_labels(labels), self.classes_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held = self._validation(X_val, y_val)
        plan = self._plan(labels, weights)
        self._check_linear(plan, sparse.issparse(x))
        if held is None and (self.early_stopping or plan.posthoc):
            kept, out = inputs.hold_out(labels, self.validation_fraction, seed)
            held = (x[out], labels[out])
            x, labels, weights = x[kept], labels[kept], None if weights is None else weights[kept]
            plan = self._plan(labels, weights)
        self._train(plan, x, labels, None if weights is None else torch.from_numpy(weights), held, seed)
        self.validation_score_ = None
        if held is not None:
            predicted = self._logits(held[0]).argmax(1)
            self.validation_score_ = accuracy.of_labels(predicted, held[1], self.counts_).balanced
        return self

    def _check_settings(self) -> None:
        """What nothing further down would refuse in a sentence."""
        for name in ("epochs", "batch_size", "n_iter_no_change"):
            if (value := getattr(self, name)) is not None or name == "n_iter_no_change":
                whole(name, value, at_least=1)
        if not isinstance(self.hidden, Iterable):
            raise InputError(f"hidden must be the sizes of the hidden layers, such as (256,), got {self.hidden!r}")
        if self.knobs is not None and not isinstance(self.knobs, Mapping):
            raise InputError(f"knobs must be a mapping, such as {{'lam': 0.1}}, got {self.knobs!r}")

    def _check_linear(self, plan: Plan, is_sparse: bool) -> None:
        """What needs an embedding of the network's own is not for a linear model."""
        logits = "choose a method that trains logits (elm, logadj, ce, …)"
        if is_sparse and (plan.posthoc or not linear.suits(plan)):
            raise InputError(
                f"{self.method} learns an embedding, and sparse features have a linear model, which has none of its "
                f"own: {logits}, or make the features dense, as scikit-learn's TruncatedSVD does"
            )
        if not tuple(self.hidden) and not all(needs_logits(stage.objective) for stage in plan.stages):
            raise InputError(
                f"{self.method} learns an embedding, and hidden=() is a linear model, which has none of its own: "
                f"{logits}, or give it hidden layers"
            )
        if is_sparse and self.early_stopping:
            raise InputError("early_stopping must be False for sparse features: their linear model has no epochs")

    def _plan(self, labels: Tensor, weights: Array | None) -> Plan:
        self.counts_ = inputs.weighted_counts(labels, weights)
        return methods.build(self.method, self.counts_, **dict(self.knobs or {}))

    def _validation(self, X: Any, y: ArrayLike | None) -> tuple[Any, Tensor] | None:
        if X is None and y is None:
            return None
        if X is None or y is None:
            raise InputError("validation data is both X_val and y_val, got one of them")
        x, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise InputError(f"y_val has the class {strange[0]}, which y does not have")
        return x, torch.from_numpy(np.searchsorted(self.classes_, y).astype(np.int64))

    def _train(
        self, plan: Plan, x: Any, labels: Tensor, weights: Tensor | None, held: tuple[Any, Tensor] | None, seed: int
    ) -> None:
        self._sparse = bool(sparse.issparse(x))
        hidden = () if self._sparse else tuple(int(h) if isinstance(h, Integral) else h for h in self.hidden)
        # The seed of the caller's program is none of ours.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # What the recipe for features has, or with no hidden layers a linear model
            head = plan.needed_head if hidden else plan.head
            module = models.build("mlp-features", len(self.classes_), (x.shape[1],), head, hidden=hidden)
        self._neighbours: tuple[Tensor, Tensor, int] | None = None
        if self._sparse:
            layer = Standardise.fitted_to_sparse(x, np.ones(len(labels)) if weights is None else weights.numpy())
        else:
            layer = Standardise.fitted(torch.from_numpy(x), labels, weights)
        with Display(self.verbose) as display:
            if not hidden and linear.suits(plan) and not plan.posthoc and not self.early_stopping:
                self._train_linear(module, plan, inputs.scaled(layer, x), labels, weights, display)
            else:
                train = inputs.split(layer, x, labels)
                val = None if held is None else inputs.split(layer, held[0], held[1])
                self._train_network(module, plan, train, val, weights, seed, display)
        self.reading_ = reading(plan, self.counts_)
        self._layer = module.inputs = layer
        self.module_ = module.double().eval().requires_grad_(False)
        self._n_features_out = int(module.embedding_size)  # type: ignore[arg-type]

    def _train_linear(
        self, module: nn.Module, plan: Plan, x: Any, labels: Tensor, weights: Tensor | None, display: Display
    ) -> None:
        weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
        iterations = int(self.epochs or linear.ITERATIONS)
        decay = real("weight_decay", self.weight_decay, at_least=0)
        self.history_ = linear.fit(
            module.double(), plan, x, labels, weights, weight_decay=decay, iterations=iterations, show=display.show
        )

    def _train_network(
        self,
        module: nn.Module,
        plan: Plan,
        train: Split,
        val: Split | None,
        weights: Tensor | None,
        seed: int,
        display: Display,
    ) -> None:
        recipe = recipes.get("features").for_samples(len(train), width=train.input_shape[0])
        recipe = recipe.set({k: getattr(self, k) for k in ("epochs", "batch_size") if getattr(self, k) is not None})
        recipe = recipe.replace(lr=self.lr, weight_decay=self.weight_decay, precision="fp32")
        epochs = recipe.epochs
        if weights is not None:
            for stage in plan.stages:
                stage.objective.sample_weight = (weights / weights.mean()).float()
        watched = val if self.early_stopping else None
        watch = EarlyStopping(module, plan, train, watched, sum(plan.epochs(epochs)[:-1]), self.n_iter_no_change)
        with contextlib.suppress(Interrupted):  # by `watch`: nothing else can
            device = pick_device(self.device)
            watchers, saving = [watch, display], Saving(stop=watch.stop)
            train_network(module, plan, train, recipe, seed=seed, device=device, watchers=watchers, saving=saving)
        watch.restore()
        self.history_ = watch.rows
        module.cpu()
        if plan.posthoc:
            predictions = predict(module, {"train": train, "val": val}, torch.device("cpu"))
            for step in after(module, plan, predictions)[1]:
                if step["kind"] == "knn":
                    assert predictions.train is not None
                    assert predictions.train.embeddings is not None
                    self._neighbours = (predictions.train.embeddings.double(), train.labels, int(step["value"]))

    def _valid(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)

    def _logits(self, x: Any) -> Tensor:
        if self._sparse:
            return self.reading_.scores(
                linear.logits(self.module_.head, inputs.scaled(self._layer, sparse.csr_array(x)))
            )
        found = []
        for rows in inputs.dense_blocks(x):
            with torch.no_grad():
                logits, embeddings = self.module_(rows)
            if self._neighbours is not None:
                known, labels, k = self._neighbours
                logits = posthoc.knn(embeddings, known, labels, len(self.classes_), k).double()
            found.append(logits)
        return self.reading_.scores(torch.cat(found))

    def _decide(self, X: Any, target: Any) -> Array:
        logits: Array = self._logits(self._valid(X)).numpy()
        if target is None:
            return logits
        shift: Array = inputs.log_prior(target, self.counts_, self.classes_) - self.reading_.log_prior.numpy()
        return logits + shift

    def decision_function(self, X: Any) -> Array:
        """Scores whose softmax is ``predict_proba``: (N, C), or (N,) with two classes, above 0 for the second."""
        scores = self._decide(X, self.target_prior)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, target_prior: Any = None) -> Array:
        """Probabilities (N, C) under ``target_prior`` (the estimator's own unless given here)."""
        scores = self._decide(X, self.target_prior if target_prior is None else target_prior)
        shifted = np.exp(scores - scores.max(1, keepdims=True))
        probabilities: Array = shifted / shifted.sum(1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample."""
        best = self._decide(X, self.target_prior).argmax(1)
        predicted: Array = self.classes_[best]
        return predicted

    def transform(self, X: Any) -> Any:
        """Embeddings (N, K): what the head sees. Of a model fitted to a sparse matrix, its scaled columns, sparse."""
        x = self._valid(X)
        if self._sparse:
            return inputs.scaled(self._layer, sparse.csr_array(x))
        with torch.no_grad():
            return torch.cat([self.module_.embed(rows) for rows in inputs.dense_blocks(x)]).numpy()  # type: ignore[operator]

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # type: ignore[override]
        """Balanced accuracy: the mean over classes of the share of their samples that are predicted right."""
        return float(balanced_accuracy_score(y, self.predict(X), sample_weight=sample_weight))
