import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import methods
from longtail.errors import InputError
from longtail.estimator import LongTailClassifier
from shared import SHARED, needs_shared

# Batches of a repeated sample differ from those of a weighted one: scikit-learn's own MLPClassifier is excused as well.
BATCHES = {"check_sample_weight_equivalence_on_dense_data": "batches are drawn at random"}


# A short training of a small network: the contract is the same, and the checks fit some hundred times.
@parametrize_with_checks(
    [LongTailClassifier("logadj", hidden=(16,), epochs=15), LongTailClassifier(hidden=())],
    expected_failed_checks=lambda model: BATCHES if model.hidden else {},
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(estimator)


@pytest.fixture(scope="module")
def digits():
    """Real digits, long-tailed: 100 of the first class down to 4 of the last; the rest is test data."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    train = []
    for c in range(10):
        own = rng.permutation(np.flatnonzero(y == c))
        train.append(own[: int(100 * 25 ** (-c / 9))])
    train = np.concatenate(train)
    test = np.setdiff1d(np.arange(len(y)), train)
    return X[train], y[train], X[test], y[test]


def quick(method="logadj", **options):
    return LongTailClassifier(method, **{"epochs": 10, "hidden": (32,), "random_state": 0, **options})


@pytest.mark.parametrize("method", methods.names())
def test_every_method_learns(method, digits):
    X, y, Xt, yt = digits
    model = quick(method, epochs=15, batch_size=64).fit(X, y)
    assert model.score(Xt, yt) > 0.6
    proba = model.predict_proba(Xt)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-9)
    np.testing.assert_array_equal(model.classes_[proba.argmax(1)], model.predict(Xt))


def test_adjusted_methods_serve_the_tail(digits):
    X, y, Xt, yt = digits
    rare = yt >= 7
    recall = {}
    for method in ("ce", "elm"):
        hit = quick(method).fit(X, y).predict(Xt) == yt
        recall[method] = hit[rare].mean()
    assert recall["elm"] > recall["ce"] + 0.02


def test_score_is_balanced_accuracy(digits):
    X, y, Xt, yt = digits
    model = quick().fit(X, y)
    keep = (yt < 3) | (np.arange(len(yt)) % 10 == 0)
    assert model.score(Xt[keep], yt[keep]) == balanced_accuracy_score(yt[keep], model.predict(Xt[keep]))


def test_string_labels_and_numbers_agree(digits):
    X, y, Xt, _ = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    order = np.argsort(names)
    by_number = quick().fit(X, np.argsort(order)[y])
    by_name = quick().fit(X, names[y])
    assert list(by_name.classes_) == sorted(names)
    assert (by_name.predict(Xt) == by_name.classes_[by_number.predict(Xt)]).all()


def test_random_state_fixes_every_bit(digits):
    X, y, Xt, _ = digits
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, c = (quick("elm", random_state=s).fit(X, y).decision_function(Xt) for s in (3, 3, 4))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)


def test_units_do_not_matter(digits):
    X, y, Xt, yt = digits
    scale = 10.0 ** np.random.default_rng(0).integers(-3, 4, X.shape[1])
    plain, scaled = quick().fit(X, y), quick().fit(X * scale + 7, y)
    assert plain.score(Xt, yt) == pytest.approx(scaled.score(Xt * scale + 7, yt), abs=0.005)


def test_a_nonlinear_problem():
    X, y = make_moons((400, 20), noise=0.1, random_state=0)
    Xt, yt = make_moons(500, noise=0.1, random_state=1)
    assert LongTailClassifier(random_state=0).fit(X, y).score(Xt, yt) > 0.95
    assert LongTailClassifier(hidden=(), random_state=0).fit(X, y).score(Xt, yt) < 0.92


def test_probabilities_and_target_prior(digits):
    X, y, Xt, _ = digits
    model = quick().fit(X, y)
    prior = model.counts_.prior.numpy()
    uniform = model.predict_proba(Xt)
    np.testing.assert_allclose(model.predict_proba(Xt, target_prior="uniform"), uniform, atol=1e-12)
    expected = uniform * prior
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(Xt, target_prior="train"), expected, atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(Xt, target_prior=7 * prior), expected, atol=1e-12)
    # As a setting it moves decisions and predictions too.
    there = clone(model).set_params(target_prior="train").fit(X, y)
    np.testing.assert_allclose(there.predict_proba(Xt), expected, atol=1e-12)
    assert (there.predict(Xt) == there.classes_[expected.argmax(1)]).all()
    by_name = dict(zip(model.classes_, 7 * prior))
    np.testing.assert_allclose(model.predict_proba(Xt, target_prior=by_name), expected, atol=1e-12)
    none = np.eye(10)[3]
    assert (model.predict_proba(Xt, target_prior=none)[:, 3] == 1).all()


def test_priors_that_methods_assume(digits):
    X, y, _, _ = digits
    prior = np.bincount(y) / len(y)
    for method, knobs, expected in (
        ("ce", {}, prior),
        ("logadj", {}, np.ones(10)),
        ("logadj", {"tau": 0.5}, prior**0.5),
        ("crt", {}, np.ones(10)),
        ("elm", {}, np.ones(10)),
        ("tau-norm", {}, np.ones(10)),
    ):
        model = quick(method, knobs=knobs, epochs=1).fit(X, y)
        np.testing.assert_allclose(model.reading_.log_prior.exp().numpy(), expected / expected.sum(), atol=1e-9)


def test_ce_with_a_uniform_target_is_posthoc_logit_adjustment(digits):
    X, y, Xt, yt = digits
    plain = quick("ce").fit(X, y)
    adjusted = quick("ce", target_prior="uniform").fit(X, y)
    expected = plain.decision_function(Xt) - np.log(plain.counts_.prior.numpy())
    assert (adjusted.predict(Xt) == plain.classes_[expected.argmax(1)]).all()
    assert adjusted.score(Xt, yt) > plain.score(Xt, yt)


def test_binary_decision_function():
    X, y = make_moons((60, 20), noise=0.1, random_state=0)
    model = quick().fit(X, y)
    scores, proba = model.decision_function(X), model.predict_proba(X)
    assert scores.shape == (80,)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), proba[:, 1], atol=1e-9)


def test_transform_gives_what_the_head_sees(digits):
    X, y, Xt, _ = digits
    model = quick().fit(X, y)
    Z = model.transform(Xt)
    assert Z.shape == (len(Xt), 32 + 64)
    with torch.no_grad():
        logits = model.module_.head(torch.from_numpy(Z)).numpy()
    np.testing.assert_allclose(logits, model.decision_function(Xt), atol=1e-9)
    assert len(model.get_feature_names_out()) == Z.shape[1]


def test_early_stopping_keeps_the_best_epoch(digits):
    X, y, Xt, yt = digits
    model = quick(epochs=200, early_stopping=True, n_iter_no_change=3).fit(X, y)
    curve = [row["validation"] for row in model.history_]
    assert len(curve) < 200
    assert curve.index(max(curve)) == len(curve) - 4
    assert model.validation_score_ == pytest.approx(max(curve))
    assert model.counts_.total < len(y)
    assert model.score(Xt, yt) > 0.6


def test_validation_data_of_ones_own(digits):
    X, y, Xt, yt = digits
    model = quick("tau-norm").fit(X, y, X_val=Xt[::5], y_val=yt[::5])
    assert model.counts_.total == len(y)
    assert model.validation_score_ == pytest.approx(balanced_accuracy_score(yt[::5], model.predict(Xt[::5])))
    assert quick().fit(X, y).validation_score_ is None
    with pytest.raises(InputError, match="both X_val and y_val"):
        quick().fit(X, y, X_val=Xt)
    with pytest.raises(InputError, match=r"y_val has the class .*99"):
        quick().fit(X, y, X_val=Xt, y_val=np.full(len(Xt), 99))


def test_early_stopping_without_logits_and_in_stages(digits):
    X, y, Xt, yt = digits
    for method in ("supcon", "crt", "lws"):
        model = quick(method, early_stopping=True, n_iter_no_change=2, batch_size=32, epochs=20).fit(X, y)
        assert model.score(Xt, yt) > 0.5


def test_composes_with_scikit_learn(digits):
    X, y, Xt, yt = digits
    pipeline = make_pipeline(MinMaxScaler(), quick()).fit(X, y)
    assert pipeline.score(Xt, yt) > 0.6
    search = GridSearchCV(quick(), {"method": ["ce", "logadj"], "hidden": [(), (8,)]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"method", "hidden"}
    assert cross_val_score(quick(epochs=5), X, y, cv=2).shape == (2,)
    model = search.best_estimator_
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(Xt), model.predict_proba(Xt))


def test_features_that_do_not_vary(digits):
    X, y, Xt, _ = digits
    X, Xt = (np.hstack([A, np.full((len(A), 2), 1e6)]) for A in (X, Xt))
    assert np.isfinite(quick().fit(X, y).predict_proba(Xt)).all()


def test_a_feature_far_from_zero_counts(digits):
    X, y, Xt, _ = digits
    far, near = (quick().fit(X + shift, y).predict(Xt + shift) for shift in (1.7e9, 0.0))
    assert np.mean(far == near) > 0.95


def test_whole_numbers_of_numpy_are_whole_numbers(digits):
    X, y, _, _ = digits
    settings = {"epochs": np.int64(2), "batch_size": np.int32(32), "n_iter_no_change": np.int64(1)}
    LongTailClassifier(hidden=np.array([8]), **settings).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "elmm"}, "unknown method 'elmm'"),
        ({"knobs": {"lamm": 1}}, "unknown knob"),
        ({"epochs": -1}, "epochs must be a whole number"),
        ({"lr": 0}, "lr must be"),
        ({"hidden": (0,)}, "a hidden size must be"),
        ({"early_stopping": True, "validation_fraction": 1.5}, "validation_fraction"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"early_stopping": True, "n_iter_no_change": 0}, "n_iter_no_change must be a whole number"),
        ({"hidden": 64}, "hidden must be the sizes"),
        ({"knobs": [1]}, "knobs must be a mapping"),
        ({"device": "gpu"}, "device must be"),
        ({"target_prior": {"a": 1}}, "target_prior must be a dict from each of classes_ to a number, and it names 'a'"),
        ({"target_prior": {0: 1}}, "and it lacks 1: the classes are 0, 1, 2"),
        ({"weight_decay": -1.0, "hidden": ()}, "weight_decay must be a number of at least 0"),
    ],
)
def test_mistakes_are_named(options, message, digits):
    X, y, _, _ = digits
    with pytest.raises(InputError, match=message):
        LongTailClassifier(**options).fit(X, y)


def test_mistakes_in_fit_and_predict(digits):
    X, y, Xt, _ = digits
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        quick().fit(X, y, weights=1)
    with pytest.raises(InputError, match="at least two classes"):
        quick().fit(X[:5], np.zeros(5))
    with pytest.raises(InputError, match="no class has two samples"):
        quick("tau-norm").fit(X[:3], [0, 1, 2])
    assert not hasattr(quick(), "partial_fit")
    model = quick().fit(X, y)
    for wrong in ("balanced", [1, 2], np.full(10, -1.0), np.zeros(10)):
        with pytest.raises(InputError, match="target_prior must be"):
            model.predict_proba(Xt, target_prior=wrong)


@pytest.fixture(scope="module")
def words(digits):
    """Real digits as counts of ink, which is sparse as words are."""
    X, y, Xt, yt = digits
    return sparse.csr_matrix(np.where(X > 4, X, 0)), y, sparse.csr_array(np.where(Xt > 4, Xt, 0)), yt


@pytest.mark.parametrize("method", ["ce", "logadj", "elm", "vs", "cb-focal", "ldam-drw", "crt", "lws", "equalised"])
def test_sparse_and_dense_say_the_same(method, words):
    X, y, Xt, yt = words
    model = LongTailClassifier(method, random_state=0).fit(X, y)
    assert model.score(Xt, yt) > 0.8
    np.testing.assert_allclose(model.predict_proba(Xt), model.predict_proba(Xt.toarray()), atol=1e-9)
    Z = model.transform(Xt)
    assert sparse.issparse(Z)
    assert Z.shape == Xt.shape


def test_a_linear_model_is_at_its_optimum(words):
    """The loss that scikit-learn's solver reaches for cross-entropy, and no descent left."""
    X, y, _, _ = words
    model = LongTailClassifier("ce", weight_decay=1e-3).fit(X, y)
    Z = model.transform(X)
    reference = LogisticRegression(C=1 / (1e-3 * len(y)), tol=1e-10, max_iter=5000).fit(Z, y)
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(Z), atol=2e-3)


def test_logit_adjustment_against_a_naive_loop(words):
    """Gradient of the float64 loss written out, 0 at what was found."""
    X, y, _, _ = words
    model = LongTailClassifier("elm", knobs={"tau": 0.7}, weight_decay=1e-3).fit(X, y)
    Z, W, b = model.transform(X).toarray(), model.module_.head.weight.numpy(), model.module_.head.bias.numpy()
    prior = np.bincount(y) / len(y)
    gradient = 1e-3 * W
    for z, c in zip(Z, y):
        f = W @ z + b + 0.7 * np.log(prior)
        p = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
        gradient = gradient + np.outer(p - np.eye(10)[c], z) / len(y)
    assert np.abs(gradient).max() < 1e-4


def test_a_sparse_matrix_is_never_made_dense():
    rng = np.random.default_rng(0)
    # Not sparse.random, which permutes all 8e8 places
    rows, columns = rng.integers(0, 4000, 8000), rng.integers(0, 200_000, 8000)
    X = sparse.csr_matrix((rng.random(8000), (rows, columns)), shape=(4000, 200_000))
    y = rng.integers(0, 2, 4000)
    tracemalloc.start()
    LongTailClassifier(epochs=3).fit(X, y).predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3e9 < 4000 * 200_000


def test_sparse_features_for_a_network(words):
    X, y, Xt, _ = words
    model = quick().fit(X.toarray(), y)
    np.testing.assert_allclose(model.predict_proba(Xt), model.predict_proba(Xt.toarray()), atol=1e-9)


def test_what_sparse_features_cannot(words):
    X, y, _, _ = words
    for method in ("supcon", "tau-norm", "hybrid"):
        with pytest.raises(InputError, match=rf"{method} learns an embedding, and sparse .* TruncatedSVD"):
            LongTailClassifier(method).fit(X, y)
    with pytest.raises(InputError, match="early_stopping must be False"):
        LongTailClassifier(early_stopping=True).fit(X, y)


@pytest.mark.parametrize("method", ["supcon", "triplet", "contrastive"])
def test_a_linear_model_has_no_embedding_to_learn(digits, method):
    with pytest.raises(InputError, match=rf"{method} learns an embedding, and hidden=\(\) .* give it hidden layers"):
        LongTailClassifier(method, hidden=()).fit(*digits[:2])


def test_weights_of_whole_numbers_are_repetitions(digits):
    X, y, Xt, _ = digits
    weights = np.random.default_rng(0).integers(0, 4, len(y))
    weighted = LongTailClassifier(hidden=()).fit(X, y, sample_weight=weights)
    repeated = LongTailClassifier(hidden=()).fit(X.repeat(weights, 0), y.repeat(weights))
    assert weighted.counts_ == repeated.counts_
    np.testing.assert_allclose(weighted.predict_proba(Xt), repeated.predict_proba(Xt), atol=1e-5)


def test_weights_move_a_network(digits):
    X, y, Xt, yt = digits
    plain = quick("ce").fit(X, y)
    same = quick("ce").fit(X, y, sample_weight=np.full(len(y), 3.0))
    np.testing.assert_allclose(same.predict_proba(Xt), plain.predict_proba(Xt), atol=1e-6)
    tail = np.where(y >= 7, 20.0, 1.0)
    recalls = [(m.predict(Xt) == yt)[yt >= 7].mean() for m in (plain, quick("ce").fit(X, y, sample_weight=tail))]
    assert recalls[1] > recalls[0] + 0.02
    assert quick().fit(X, y, sample_weight=tail / 1e4).counts_.n.min() >= 1
    with pytest.raises(ValueError, match="at least one non-zero"):
        quick().fit(X, y, sample_weight=np.zeros(len(y)))


def test_knobs_in_searches(digits):
    X, y, _, _ = digits
    model = quick("elm", epochs=2)
    search = GridSearchCV(model, {"knobs__lam": [0.0, 0.1]}, cv=2).fit(X, y)
    assert search.best_estimator_.knobs == {"lam": search.best_params_["knobs__lam"]}
    assert search.best_estimator_.get_params()["knobs__lam"] == search.best_params_["knobs__lam"]
    pipeline = Pipeline([("scale", MinMaxScaler()), ("clf", model)])
    search = GridSearchCV(pipeline, [{"clf__lam": [0.5]}, {"clf__method": ["logadj"], "clf__tau": [0.5]}], cv=2)
    assert len(search.fit(X, y).cv_results_["params"]) == 2
    assert model.knobs is None
    assert clone(model).set_params(lam=0.3).set_params(tau=2.0).knobs == {"lam": 0.3, "tau": 2.0}
    with pytest.raises(InputError, match=r"unknown parameter of LongTailClassifier with the method 'elm' 'lamm'"):
        model.set_params(lamm=1)


def test_verbose_shows_a_bar(digits, capsys):
    X, y, _, _ = digits
    quick(epochs=2).fit(X, y)
    assert capsys.readouterr().err == ""
    for hidden in ((8,), ()):
        quick(epochs=2, hidden=hidden, verbose=True).fit(X, y)
        assert "train: loss" in capsys.readouterr().err


@needs_shared
def test_defaults_on_real_features():
    with np.load(SHARED / "data" / "cifar100lt100_efflite0_pca256.npz", allow_pickle=False) as file:
        data = {k: file[k] for k in file.files}
    model = LongTailClassifier(random_state=0).fit(data["f_train"], data["y_train"])
    y_val, hit = data["y_val"], model.predict(data["f_val"]) == data["y_val"]
    recall = {c: 100 * hit[y_val == c].mean() for c in np.unique(y_val)}
    # Balanced logistic regression, the best of seven C on this very part: 56.2, tail 41.2.
    assert np.mean(list(recall.values())) > 57
    assert np.mean([recall[c] for c in model.counts_.groups()["tail"].tolist()]) > 44
