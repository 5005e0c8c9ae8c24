import numpy as np
import pytest
import torch

from longtail import ClassCounts
from longtail.errors import InputError
from longtail.evaluate import Part, Predictions
from longtail.evaluate.predictions import read_counts


def arrays(n=6, c=3, k=2, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for part in ("train", "val", "test"):
        found[f"{part}_logits"] = rng.normal(size=(n, c)).astype(np.float32)
        found[f"{part}_labels"] = np.arange(n) % c
        found[f"{part}_embeddings"] = rng.normal(size=(n, k)).astype(np.float32)
    return found


@pytest.mark.parametrize("name", ["p.safetensors", "p.npz"])
def test_round_trip(tmp_path, name):
    made = Predictions.from_tensors({**arrays(), "head_weight": np.ones((3, 2)), "head_bias": np.zeros(3)})
    made.save(tmp_path / name)
    back = Predictions.load(tmp_path / name)
    assert set(back.to_tensors()) == set(made.to_tensors())
    for key, value in made.to_tensors().items():
        assert torch.equal(back.to_tensors()[key], value), key
    assert back.counts == ClassCounts([2, 2, 2])
    assert (back.num_classes, len(back.test)) == (3, 6)


def test_a_foreign_file_needs_logits_and_labels_only(tmp_path):
    np.savez(tmp_path / "f.npz", logits=np.eye(3), labels=[0, 1, 1], counts=[9, 5, 1])
    found = Predictions.load(tmp_path / "f.npz")
    assert found.train is None
    assert found.val is None
    assert found.test.labels.tolist() == [0, 1, 1]
    assert found.counts.n.tolist() == [9, 5, 1]
    assert Predictions.load(tmp_path / "f.npz", counts=[1, 2, 3]).counts.n.tolist() == [1, 2, 3]
    np.savez(tmp_path / "g.npz", logits=np.eye(3), labels=[0, 1, 1])
    assert Predictions.load(tmp_path / "g.npz").counts is None


def test_embeddings_with_a_head_stand_for_logits():
    x, w, b = np.random.default_rng(0).normal(size=(4, 2)), np.arange(6.0).reshape(3, 2), np.array([0.0, 1.0, 2.0])
    found = Predictions.from_tensors({"embeddings": x, "labels": [0, 1, 2, 0], "head_weight": w, "head_bias": b})
    np.testing.assert_allclose(found.test.logits, x @ w.T + b)
    with pytest.raises(InputError, match=r"head_bias must be 3 finite numbers, got shape \(9,\)"):
        Predictions.from_tensors({"embeddings": x, "labels": [0, 1, 2, 0], "head_weight": w, "head_bias": np.zeros(9)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"test_logits": np.array([[0.0, 0, 0]] * 3 + [[0, np.nan, 0]] + [[0, 0, 0]] * 2)},
            "test_logits .* row 3 holds nan",
        ),
        ({"val_embeddings": np.full((6, 2), np.inf)}, "val_embeddings .* row 0 holds inf"),
        ({"test_labels": np.array([0, 1, 2, 0, 1, 3])}, r"test_labels must be in \[0, 3\), but row 5 holds 3"),
        ({"train_labels": np.array([0, -1, 2, 0, 1, 1])}, "train_labels .* row 1 holds -1"),
        ({"test_labels": np.zeros(5, dtype=int)}, "6 samples, but 5 labels"),
        ({"test_logits": np.zeros((6, 4))}, "test_logits must have 3 columns, got 4"),
        ({"test_embeddings": np.zeros((5, 2))}, "test_embeddings have 5 rows, but test_logits have 6"),
        ({"test_embeddings": np.zeros((6, 9))}, "test_embeddings must have 2 columns, got 9"),
        ({"head_weight": np.zeros((2, 2))}, "head_weight must have a row for each of the 3"),
        ({"head_bias": np.zeros(2)}, "head_bias must be 3 finite"),
        ({"val_embeddings": np.full((6, 2), 1e200)}, "val_embeddings must be within"),
        ({"counts": np.array([1, 2])}, "counts are of 2 classes, but the logits of 3"),
        ({"counts": np.array([1, 2, -1])}, "must not be negative"),
        ({"logits": np.zeros((6, 3))}, "short for test_logits"),
        ({"weights": np.zeros(3)}, "unknown array 'weights'"),
        ({"test_labels": np.array(list("abcdef"))}, "array of numbers"),
    ],
)
def test_bad_files_are_refused_in_one_sentence_that_names_file_and_row(tmp_path, change, says):
    np.savez(tmp_path / "bad.npz", **{**arrays(), **change})
    with pytest.raises(InputError, match=says) as caught:
        Predictions.load(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.eye(2))
    with pytest.raises(InputError, match="test_logits are there, but test_labels are not"):
        Predictions.load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", counts=[1, 2])
    with pytest.raises(InputError, match="at least one of train, val and test"):
        Predictions.load(tmp_path / "b.npz")


def test_unreadable_files(tmp_path):
    for name in ("x.npz", "x.safetensors", "x.pt"):
        (tmp_path / name).write_bytes(b"not a file of arrays")
        with pytest.raises(InputError, match=name):
            Predictions.load(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        Predictions.load(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"\.safetensors or \.npz"):
        Predictions.from_tensors(arrays()).save(tmp_path / "y.pt")


def test_pickles_are_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    np.savez(tmp_path / "evil.npz", logits=np.array([Evil()], dtype=object), labels=[0])
    with pytest.raises(InputError, match="pickled objects, which are not read"):
        Predictions.load(tmp_path / "evil.npz")
    assert not (tmp_path / "owned").exists()


def test_parts_keep_reduced_precision():
    part = Part(torch.zeros(2, 2, dtype=torch.bfloat16), torch.tensor([0, 1]))
    assert Predictions(test=part).test.logits.dtype == torch.bfloat16


def test_counts_from_text(tmp_path):
    assert read_counts("3, 2,1").n.tolist() == [3, 2, 1]
    (tmp_path / "c.json").write_text("[30, 20, 10]")
    assert read_counts(tmp_path / "c.json").n.tolist() == [30, 20, 10]
    (tmp_path / "c.txt").write_text("5\n4\n")
    assert read_counts(tmp_path / "c.txt").n.tolist() == [5, 4]
    for bad in ("nowhere.json", "1,2.5", "1,-2", ""):
        with pytest.raises(InputError, match="training counts"):
            read_counts(bad)
