import functools
import json

import numpy as np
import pytest

from longtail import posthoc
from longtail.evaluate import Predictions, accuracy

N = [200, 40, 8]


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    mu = 2 * np.eye(3)
    found = {}
    for part, sizes in (("train", N), ("val", [30] * 3), ("test", [100] * 3)):
        y = np.repeat(np.arange(3), sizes)
        x = mu[y] + rng.normal(size=(len(y), 3))
        found[f"{part}_embeddings"], found[f"{part}_labels"] = x, y
        found[f"{part}_logits"] = x @ mu.T - 2 + np.log(np.array(N) / sum(N))
    return {**found, "head_weight": mu, "head_bias": np.log(np.array(N) / sum(N)) - 2}


@pytest.fixture
def run(longtail):
    return functools.partial(longtail, "posthoc")


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "p.npz", **arrays())
    return tmp_path / "p.npz"


def test_the_help_names_every_method(run):
    _, out, _ = run("--help")
    assert all(kind in out for kind in posthoc.KINDS)


@pytest.mark.parametrize("method", posthoc.KINDS)
def test_every_method_on_a_foreign_file(run, file, tmp_path, method):
    out_file = tmp_path / "new.safetensors"
    code, out, err = run(file, "--method", method, "--out", out_file)
    assert (code, err) == (0, "")
    assert "test before" in out
    row = next(line for line in out.splitlines() if line.startswith(f"test {method}"))
    new = Predictions.load(out_file)
    shown = float(row.split()[2])
    assert shown == pytest.approx(100 * accuracy.summary(new.test.logits, new.test.labels, N).balanced, abs=0.006)
    assert "head (1)" in out
    assert ("chosen on 90 validation samples" in out) == (method != "ncm")


def test_what_is_written_has_the_names_that_the_guide_gives(run, tmp_path):
    a = arrays()
    given = {"logits": a["test_logits"], "labels": a["test_labels"], "counts": N}
    np.savez(tmp_path / "p.npz", **given)
    code, _, err = run(tmp_path / "p.npz", "--method", "logit-adjust", "--value", 1, "--out", tmp_path / "q.npz")
    assert (code, err) == (0, "")
    written = dict(np.load(tmp_path / "q.npz"))
    assert written.keys() == given.keys()
    np.testing.assert_allclose(written["logits"], a["test_logits"] - np.log(np.array(N) / sum(N)))


def test_probabilities_in_place_of_logits_are_warned_of(run, tmp_path):
    a = arrays()
    p = np.exp(a["test_logits"])
    np.savez(tmp_path / "p.npz", logits=p / p.sum(1, keepdims=True), labels=a["test_labels"], counts=N)
    code, _, err = run(tmp_path / "p.npz", "--method", "logit-adjust", "--value", 1)
    assert code == 0
    assert "sum to 1 for every sample, as probabilities do" in err
    assert len(err.splitlines()) == 1


def test_a_head_that_did_not_make_the_logits_is_refused(run, tmp_path):
    a = arrays()
    np.savez(tmp_path / "p.npz", **{**a, "head_weight": a["head_weight"][::-1]})
    code, _, err = run(tmp_path / "p.npz", "--method", "tau-norm")
    assert code == 2
    assert "head_weight did not make val_logits" in err
    # A bias that was not stored, rounding and log-probabilities are no such thing
    less = {k: v for k, v in a.items() if k != "head_bias"}
    for part in ("val", "test"):
        f = a[f"{part}_logits"].astype("float16").astype("float32")
        less[f"{part}_logits"] = f - np.log(np.exp(f).sum(1, keepdims=True))
    np.savez(tmp_path / "q.npz", **less)
    assert run(tmp_path / "q.npz", "--method", "tau-norm")[0] == 0


def test_a_run_folder_takes_counts_from_its_split(run, tmp_path):
    Predictions.from_tensors(arrays()).save(tmp_path / "predictions.safetensors")
    (tmp_path / "split.json").write_text(json.dumps({"counts": [500, 400, 5]}))
    code, out, _ = run(tmp_path, "--method", "logit-adjust", "--value", "0.5")
    assert code == 0
    assert "head (2)" in out
    assert "tau = 0.5 (as set)" in out
    assert "no classes" in out


def test_counts_unknown(run, tmp_path):
    a = arrays()
    np.savez(tmp_path / "q.npz", logits=a["test_logits"], labels=a["test_labels"], val_logits=a["val_logits"],
             val_labels=a["val_labels"])  # fmt: skip
    code, out, _ = run(tmp_path / "q.npz", "--method", "logit-adjust")
    assert code == 0
    assert "prior is estimated" in out
    assert "head" not in out.split("prior is estimated")[1]
    code, out, _ = run(tmp_path / "q.npz", "--method", "logit-adjust", "--counts", "200,40,8", "--grid", "0,1")
    assert code == 0
    assert "head (1)" in out
    assert "1.1:" not in out


def test_features_without_logits(run, tmp_path):
    features = {k: v for k, v in arrays().items() if "logits" not in k and "head" not in k}
    np.savez(tmp_path / "f.npz", **features)
    code, out, _ = run(tmp_path / "f.npz", "--method", "knn")
    assert code == 0
    assert "test knn" in out
    assert "before" not in out
    assert "head (1)" in out
    code, _, err = run(tmp_path / "f.npz", "--method", "logit-adjust")
    assert code == 2
    assert "train_logits are not" in err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--method", "tau"], "Valid: tau-norm"),
        (["--method", "knn", "--value", "2.5"], "whole number"),
        (["--method", "knn", "--value", "nan"], "whole number"),
        (["--method", "knn", "--value", "inf"], "whole number"),
        (["--method", "knn", "--value", "1000"], "between 1 and"),
        (["--method", "tau-norm", "--value", "1", "--grid", "1,2"], "not both"),
        (["--method", "tau-norm", "--grid", "a,b"], "separated by commas"),
        (["--method", "tau-norm", "--counts", "1,2"], "of 2 classes"),
        (["--method", "tau-norm", "--counts", "some"], "cannot read training counts"),
        (["--method", "tau-norm", "--out", "x.csv"], ".npz or .safetensors"),
        (["--method", "ncm", "--value", "1"], "no knob"),
        ([], "--method"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(run, file, argv, says):
    code, _, err = run(file, *argv)
    assert code == 2
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["new.npz", "new.safetensors"])
def test_a_file_that_cannot_be_written_is_one_sentence(run, file, tmp_path, name):
    argv = (file, "--method", "ncm", "--out")
    code, out, err = run(*argv, tmp_path / "nowhere" / name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "there is no folder" in err
    (tmp_path / name).mkdir()
    code, _, err = run(*argv, tmp_path / name)
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot write" in err


def test_bad_files(run, tmp_path):
    a = arrays()
    a["test_logits"][7, 1] = np.nan
    np.savez(tmp_path / "bad.npz", **a)
    code, _, err = run(tmp_path / "bad.npz", "--method", "logit-adjust")
    assert code == 2
    assert "bad.npz: test_logits must be finite, but row 7 holds nan" in err
    code, _, err = run(tmp_path / "none.npz", "--method", "ncm")
    assert code == 2
    assert "no such file" in err
    np.savez(tmp_path / "train.npz", train_logits=a["train_logits"], train_labels=a["train_labels"])
    code, _, err = run(tmp_path / "train.npz", "--method", "logit-adjust", "--value", "1")
    assert code == 2
    assert "neither a validation nor a test part" in err
