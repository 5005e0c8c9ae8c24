"""Anybody's own data: class folders, CSV, features: what they give, and what they refuse."""

import csv
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from longtail.data import load
from longtail.data.catalogue import read
from longtail.errors import InputError
from shared import SHARED, needs_shared
from small_images import save_image


def make_folder(path, sizes):
    for name, n in sizes.items():
        for k in range(n):
            save_image(path / name / f"{k:02}.png")


def test_class_folders_without_a_test_split(tmp_path):
    make_folder(tmp_path, {"dog": 20, "cat": 10, "emu": 2, "yak": 1})
    data = load(tmp_path)
    assert data.class_names == ["cat", "dog", "emu", "yak"]
    assert data.counts.n.tolist() == [8, 16, 1, 1]
    assert torch.bincount(data.test.labels, minlength=4).tolist() == [2, 4, 1, 0]
    assert any("no test split given: 20%" in note for note in data.notes)
    assert data.val is None
    for split in (data.train, data.test):
        for i in range(len(split)):
            assert split.inputs[i].parent.name == data.class_names[split.labels[i]]
    assert load(tmp_path, seed=4).test.inputs.names() == data.test.inputs.names()
    assert load(tmp_path, holdout=0.25).val is not None
    cut = load(tmp_path, profile=[8, 4, 1, 1])
    assert cut.counts.n.tolist() == [8, 4, 1, 1]
    assert torch.bincount(cut.val.labels).tolist() == [0, 12]


def test_class_folders_with_splits(tmp_path):
    make_folder(tmp_path / "train", {"a": 3, "b": 2})
    make_folder(tmp_path / "valid", {"a": 1, "b": 1})
    make_folder(tmp_path / "test", {"a": 2, "b": 2})
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (5, 2, 4)
    assert load(tmp_path, size=24).notes == []


@pytest.mark.parametrize(("side", "taken"), [(20, 32), (45, 48), (100, 96), (500, 224)])
def test_images_are_taken_as_large_as_their_files_are(side, taken, tmp_path):
    for name in "ab":
        for k in range(3):
            save_image(tmp_path / name / f"{k}.png", size=(side, 2 * side))
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    data = read(tmp_path)
    assert data.train.input_shape == data.test.input_shape == (3, taken, taken)
    assert ("taken at" in " ".join(data.notes)) == (taken < 224)
    assert read(tmp_path, size=64).input_shape == (3, 64, 64)


def test_empty_class_folder(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "readme.txt").write_text("not an image")
    with pytest.raises(InputError, match=r"class folder .*c has no image"):
        load(tmp_path)


def test_folders_without_classes(tmp_path):
    with pytest.raises(InputError, match="has 0 class folders: at least two"):
        load(tmp_path)
    make_folder(tmp_path / "test", {"a": 2, "b": 2})
    with pytest.raises(InputError, match="has test but no train folder"):
        load(tmp_path)


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_csv(tmp_path):
    for k in range(4):
        save_image(tmp_path / f"{k}.png")
    rows = [
        ("0.png", "zebra, plains", "train"),
        ("1.png", "ant", "Train"),
        ("2.png", "ant", "validation"),
        ("3.png", "ant", "test"),
    ]
    data = load(write_csv(tmp_path / "d.csv", ("image", "label", "split"), rows))
    assert data.class_names == ["ant", "zebra, plains"]
    assert data.train.labels.tolist() == [1, 0]
    assert (len(data.val), len(data.test)) == (1, 1)
    assert data.train.inputs.where(1).endswith("line 3)")


def test_csv_with_own_columns_and_numbers(tmp_path):
    rows = [("x.png", str(k % 12)) for k in range(48)]
    save_image(tmp_path / "x.png")
    path = write_csv(tmp_path / "d.csv", ("img", "kind"), rows)
    data = load(path, image_column="img", label_column="kind")
    assert data.class_names == [str(k) for k in range(12)]
    assert "no test split given" in data.notes[-1]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (("image", "kind"), [("x.png", "a")], "no label column 'label' or .*its columns are 'image', 'kind'"),
        (("photo", "label"), [("x.png", "a")], "no image column"),
        (("image", "label"), [("x.png", "a"), ("", "b")], "line 3: column 'image' is empty"),
        (("image", "label"), [("x.png",)], "cells in line 2: 1, in the first: 2"),
        (("image", "label", "split"), [("x.png", "a", "dev")], "line 2: split 'dev' is none of"),
        (("image", "label", "split"), [("x.png", "a", "test")], "no training row"),
        (("image", "label"), [], "has no row"),
        (("image", "label"), [("y.png", "a"), ("y.png", "b")] * 3, r"there is no image .*y\.png \(.*d\.csv, line 2\)"),
    ],
)
def test_bad_csv(header, rows, message, tmp_path):
    save_image(tmp_path / "x.png")
    with pytest.raises(InputError, match=message):
        load(write_csv(tmp_path / "d.csv", header, rows))


def test_features_with_splits(tmp_path):
    rng = np.random.RandomState(0)
    parts = {f"{key}_{split}": value for split, n in (("train", 20), ("test", 6))
             for key, value in (("x", rng.randn(n, 4).astype(np.float16)), ("y", np.arange(n) % 3))}  # fmt: skip
    np.savez(tmp_path / "f.npz", **parts)
    data = load(tmp_path / "f.npz")
    assert (len(data.train), data.val, len(data.test)) == (20, None, 6)
    assert data.train.inputs.dtype == torch.float32
    assert torch.equal(data.train.inputs, torch.from_numpy(parts["x_train"]).float())
    rename = {"x": "features", "y": "labels"}
    tensors = {f"{key[2:]}_{rename[key[0]]}": torch.from_numpy(array) for key, array in parts.items()}
    save_file(tensors, tmp_path / "f.safetensors")
    again = load(tmp_path / "f.safetensors")
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert again.fingerprint == data.fingerprint
    parts["x_train"][0, 0] += 1
    np.savez(tmp_path / "f.npz", **parts)
    assert load(tmp_path / "f.npz").fingerprint != data.fingerprint


def test_features_in_one_piece_with_strings(tmp_path):
    np.savez(tmp_path / "f.npz", features=np.eye(10), labels=np.array(["b", "a"] * 5))
    data = load(tmp_path / "f.npz")
    assert data.class_names == ["a", "b"]
    assert data.counts.n.tolist() == [4, 4]
    assert "no test split given" in data.notes[-1]


@needs_shared
def test_real_features():
    data = load(SHARED / "data" / "cifar100lt100_efflite0_pca256.npz")
    assert data.train.inputs.shape == (10_847, 256)
    assert (len(data.val), len(data.test)) == (1980, 10_000)
    assert [len(index) for index in data.counts.groups().values()] == [35, 35, 30]


X, Y = np.ones((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.array([[1.0, 2], [3, np.nan]]), "y": Y[:2]}, "not finite: nan in row 1, column 1"),
        ({"x": np.array([[1.0, np.inf]]), "y": Y[:1]}, "not finite: inf"),
        ({"x": X}, "has 'x' but no labels"),
        ({"y": Y}, "has 'y' but no features"),
        ({"a": X}, "has no training data: .* it has 'a'"),
        ({"x_test": X, "y_test": Y}, "has no training data"),
        ({"x": X, "y": Y[:3]}, "4 rows of features and 3 labels"),
        ({"x": X, "y": Y.astype(float)}, "labels of train must be whole numbers or strings"),
        ({"x": X, "y": Y - 1}, "label -1 of train, row 0, is none of the 1 classes"),
        ({"x": X[0], "y": Y}, "features of train must be numbers"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y}, "test has 1 features a sample, train has 2"),
        (
            {"x": X, "y": np.array([0, 1, 2, 2]), "class_names": np.array(["a", "b"])},
            "label 2 of train, row 2, is none of the 2 classes",
        ),
        ({"x": np.array([{}] * 4), "y": Y}, "pickled objects"),
    ],
)
def test_bad_features(arrays, message, tmp_path):
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "f.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_feature_files_that_are_none(suffix, tmp_path):
    (tmp_path / f"f{suffix}").write_bytes(b"this is no archive")
    with pytest.raises(InputError, match=f"f{suffix}"):
        load(tmp_path / f"f{suffix}")


def test_split_folders_in_any_case_are_no_classes(tmp_path):
    make_folder(tmp_path / "Train", {"a": 3, "b": 2})
    make_folder(tmp_path / "TEST", {"a": 1, "b": 1})
    data = load(tmp_path)
    assert data.class_names == ["a", "b"]
    assert (len(data.train), len(data.test)) == (5, 2)
    make_folder(tmp_path / "val", {"a": 1, "b": 1})
    make_folder(tmp_path / "valid", {"a": 1, "b": 1})
    with pytest.raises(InputError, match="has val and valid, which both mean val"):
        load(tmp_path)


def test_a_class_folder_whose_name_is_no_utf8(tmp_path):
    make_folder(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "b").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    data = load(tmp_path)
    assert data.class_names == ["a", "caf\\xe9"]
    assert all(path.is_file() for path in data.train.inputs)


def test_there_is_something_to_test_on(tmp_path):
    make_folder(tmp_path / "folder", {"a": 1, "b": 1})
    with pytest.raises(InputError, match="no test split, and none can be made: every class has one sample"):
        load(tmp_path / "folder")
    x, y = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    full, none = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}, {"x": x[:0], "y": y[:0]}
    for part in ("train", "val", "test"):
        np.savez(tmp_path / "f.npz", **full | {f"{k}_{part}": v for k, v in none.items()})
        with pytest.raises(InputError, match=f"{part} has no rows"):
            load(tmp_path / "f.npz")


def test_labels_that_are_no_places_in_a_list_of_classes(tmp_path):
    np.savez(tmp_path / "f.npz", x=np.zeros((4, 2), np.float32), y=np.array([7, 7, 10**12, 10**12]))
    with pytest.raises(InputError, match=r"label 1000000000000 would make .* classes: number the classes from 0"):
        load(tmp_path / "f.npz")


def test_a_bare_array_under_another_name(tmp_path):
    with open(tmp_path / "f.npz", "wb") as file:
        np.save(file, np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"is one bare array, not an \.npz"):
        load(tmp_path / "f.npz")


def test_columns_and_folders_that_read_as_numbers(tmp_path):
    """The command makes numbers of options that look like them."""
    make_folder(tmp_path / "2018", {"a": 3, "b": 3})
    rows = [(f"{name}/{k:02}.png", name) for name in "ab" for k in range(3)]
    (tmp_path / "t.csv").write_text("1,2\n" + "".join(f"{path},{name}\n" for path, name in rows))
    data = load(tmp_path / "t.csv", image_column=1, label_column=2, images=tmp_path / "2018")
    assert data.class_names == ["a", "b"]
    with pytest.raises(InputError, match="in 2018"):
        load("imagenet-lt", lists=2018)


def test_equal_numbers_in_other_words_have_one_order(tmp_path):
    from longtail.data.tables import sorted_labels

    assert sorted_labels({"1", "01", "001", "0"}) == ["0", "001", "01", "1"]


@pytest.mark.parametrize("option", [{"tail": "much"}, {"noise": "none"}, {"tail": True}])
def test_options_of_moons_are_numbers(option):
    with pytest.raises(InputError, match="must be a number"):
        load("moons", **option)
