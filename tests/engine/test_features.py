"""Features of any unit through the whole command: training, predicting, exporting."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from longtail.engine import recipe as recipes
from longtail.engine.finish import concerns
from longtail.engine.job import Job, execute
from longtail.errors import InputError
from longtail.estimator import LongTailClassifier
from longtail.export import export
from longtail.inference import restore
from longtail.models import Standardise


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """Wine as it is, columns between 0.1 and 1,700, long-tailed: 35, 20 and 6 samples; 20 of each to test."""
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(0)
    train, test = [], []
    for c, n in enumerate((35, 20, 6)):
        own = rng.permutation(np.flatnonzero(y == c))
        test += own[:20].tolist()
        train += own[20 : 20 + n].tolist()
    path = tmp_path_factory.mktemp("wine") / "wine.npz"
    np.savez(path, x_train=X[train], y_train=y[train], x_test=X[test], y_test=y[test])
    return path, X[train], y[train], X[test], y[test]


@pytest.fixture(scope="module")
def run(wine, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "wine"
    return execute(Job("elm", data=str(wine[0]), out=str(out)), say=lambda text: None)


def test_unscaled_columns_are_learnt_as_by_the_estimator(wine, run):
    _, X, y, Xt, yt = wine
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test"]["balanced"] > 0.9
    assert summary["test"]["balanced"] > LongTailClassifier(random_state=0).fit(X, y).score(Xt, yt) - 0.05
    assert summary["concerns"] == []


def test_what_was_learnt_of_units_is_part_of_the_run(wine, run):
    """New features are given as they come, in their own units."""
    _, X, _, Xt, yt = wine
    restored = restore(run)
    layer = restored.model.inputs
    assert isinstance(layer, Standardise)
    np.testing.assert_allclose(layer.mean.numpy(), X.astype(np.float32).mean(0, dtype=np.float64), rtol=1e-9)
    predicted = restored.of_features(torch.from_numpy(Xt).float()).argmax(1).numpy()
    assert np.mean([(predicted == yt)[yt == c].mean() for c in range(3)]) > 0.9


def test_exported_with_its_units(wine, run, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    x = wine[3].astype(np.float32)
    session = runtime.InferenceSession(str(export(run, "onnx", tmp_path / "wine.onnx")))
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    np.testing.assert_allclose(found, restore(run).of_features(torch.from_numpy(x)).numpy(), atol=1e-4)


def test_embeddings_are_scaled_alike(wine, tmp_path):
    fields = {"epochs": 1, "standardise": "alike"}
    path = execute(Job("ce", data=str(wine[0]), out=str(tmp_path / "alike"), set_recipe=fields), say=lambda text: None)
    layer = restore(path).model.inputs
    x = torch.from_numpy(wine[1].astype(np.float32))
    assert len(layer.factor.unique()) == 1
    torch.testing.assert_close(layer(x).square().sum(1).mean(), torch.tensor(4.0), rtol=0.1, atol=0)
    assert recipes.default_for("", "embeddings").standardise == "alike"
    with pytest.raises(InputError, match="standardise must be True or False"):
        recipes.get("features").set({"standardise": "likewise"})


def test_without_standardising_somebody_says_so(wine, tmp_path):
    said = []
    fields = {"standardise": False, "model": "linear", "epochs": 3, "lr": 100.0}
    path = execute(Job("ce", data=str(wine[0]), out=str(tmp_path / "raw"), set_recipe=fields), say=said.append)
    found = json.loads((path / "summary.json").read_text())["concerns"]
    assert found
    assert [f"warning: {concern}" for concern in found] == [line for line in said if line.startswith("warning")]


def test_concerns():
    rows = [{"stage": "train", "loss": x} for x in (2.0, 1.0, 1.5)] + [{"stage": "head", "loss": x} for x in (1.0, 1.2)]
    assert concerns(rows, 0.9, 3) == ["the loss of stage head grew from 1 to 1.2: a lower --lr may help"]
    assert concerns(rows[:3], 0.35, 3)[0].endswith("guessing has 33.3 %: nothing was learnt")
    # One that stopped at a cross-entropy of 1.55 says so, whatever it is right on; and what holds its logits down
    end = {"stage": "train", "loss": 6.0, "parts": {"logit": 1.6, "pull": 440.0}}
    end["groups"] = {"head": {"loss": 1.5, "n": 30, "accuracy": 0.5}, "tail": {"loss": 1.7, "n": 10, "accuracy": 0.4}}
    far, crushed = concerns([{"stage": "train", "loss": 9.0}, end], 0.7, 43)
    assert "70 % of the training data are right at the end, cross-entropy 1.55" in far
    assert crushed == "its term on embeddings (pull) may hold the logits down: lower its weight (--set lam=…)"
    end["parts"]["lam"] = 0.01  # an automatic weight is bounded
    assert len(concerns([end], 0.5, 43)) == 1
    end["groups"]["head"]["loss"] = end["groups"]["tail"]["loss"] = 0.3
    assert concerns([end], 0.95, 43) == []
