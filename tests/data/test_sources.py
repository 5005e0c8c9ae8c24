"""Digits, moons, profiles and published lists: what they give, and what they refuse."""

import gzip
import json

import numpy as np
import pytest
import torch

from longtail.data import Files, load, names
from longtail.data.lists import LISTINGS, read_inat_json, read_list
from longtail.data.profiles import exp_profile, profile_counts, step_profile
from longtail.errors import InputError
from shared import SHARED, needs_shared
from small_images import save_image


def test_digits():
    data = load("digits-lt")
    assert data.counts.n.tolist() == [130, 84, 54, 35, 22, 14, 9, 6, 4, 2]
    assert torch.bincount(data.test.labels).tolist() == [40] * 10
    assert torch.bincount(data.val.labels).tolist() == [8] + [40] * 9
    assert (data.kind, data.input_shape) == ("features", (64,))
    assert (float(data.train.inputs.min()), float(data.train.inputs.max())) == (0, 1)
    seen = torch.cat((data.train.indices, data.val.indices, data.test.indices))
    assert len(seen.unique()) == len(seen)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    for split in (data.train, data.val, data.test):
        assert np.array_equal(split.labels, labels[split.indices])
        assert np.allclose(split.inputs * 16, pixels[split.indices])


def test_digits_of_other_seeds_share_the_test_images():
    data, other = load("digits-lt"), load("digits-lt", seed=3, profile="step", ratio=10)
    assert torch.equal(data.test.indices, other.test.indices)
    assert other.counts.n.tolist() == [130] * 5 + [13] * 5
    assert data.fingerprint == load("digits-lt").fingerprint != other.fingerprint
    explicit = load("digits-lt", profile=[10, 9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert explicit.counts.n.tolist() == list(range(10, 0, -1))


def test_moons():
    data = load("moons")
    assert data.counts.n.tolist() == [950, 50]
    assert torch.bincount(data.test.labels).tolist() == [1000, 1000]
    assert torch.bincount(data.val.labels).tolist() == [250, 250]
    assert load("moons").fingerprint == data.fingerprint != load("moons", seed=1).fingerprint
    assert torch.equal(load("moons").train.inputs, data.train.inputs)
    assert load("moons", n=200, tail=0.1).counts.n.tolist() == [180, 20]
    # the upper moon is the head: points above the lower one's centre line
    head = data.train.inputs[data.train.labels == 0]
    assert float((head[:, 1] > -0.4).float().mean()) > 0.99


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_moons_are_those_of_scikit_learn(noise):
    from sklearn.datasets import make_moons

    data = load("moons", seed=4, noise=noise)
    for number, split in enumerate((data.train, data.val, data.test)):
        of = tuple(torch.bincount(split.labels).tolist())
        rng = np.random.RandomState([4, number])
        points, labels = make_moons(of, noise=noise or None, random_state=rng, shuffle=False)
        assert torch.equal(split.inputs, torch.from_numpy(points).float())
        assert np.array_equal(split.labels, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rato": 3}, "unknown option 'rato': did you mean 'ratio'"),
        ({"ratio": 0.5}, "ratio .* must be a number of at least 1, got 0.5"),
        ({"ratio": 1000}, "leaves the rarest class without samples"),
        ({"ratio": "10"}, "ratio .* got '10'"),
        ({"n_max": 150}, r"wants 150 samples of class 0, which has 138"),
        ({"n_max": 2.5}, "n_max .* got 2.5"),
        ({"profile": "expp"}, "unknown profile 'expp': did you mean 'exp'"),
        ({"profile": [1, 2]}, "profile has 2 counts, but there are 10 classes"),
        ({"profile": ["a"] * 10}, "profile must be 'exp', 'step' or whole numbers"),
        ({"profile": [-1] + [1] * 9}, "wants -1 samples of class 0"),
        ({"holdout": 1.5}, r"holdout must be a number of at least 0 and below 1, got 1.5"),
        ({"seed": -1}, "seed must be"),
        ({"test_share": 0.5}, "unknown option 'test_share'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        load("digits-lt", **options)


@pytest.mark.parametrize("options", [{"n": 1}, {"tail": 0}, {"tail": 1.0}, {"tail": 0.0001}, {"noise": -1}])
def test_wrong_moons(options):
    with pytest.raises(InputError):
        load("moons", **options)


def test_unknown_names(tmp_path):
    with pytest.raises(InputError, match="unknown data set 'cifar100lt': did you mean 'cifar100-lt'"):
        load("cifar100lt")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(InputError, match=r"neither a folder of class folders nor a \.csv"):
        load(tmp_path / "x.txt")
    assert set(names()) >= {"digits-lt", "moons", "cifar10-lt", "cifar100-lt", "imagenet-lt", "places-lt", "inat2018"}


def test_profiles():
    assert sum(exp_profile(5000, 10, 100)) == 12_406
    assert sum(exp_profile(500, 100, 100)) == 10_847
    assert exp_profile(49, 2, 49) == [49, 1]
    assert step_profile(500, 4, 100) == [500, 500, 5, 5]
    assert profile_counts(None, [3, 2], 100) == [3, 2]


# Published lists


@needs_shared
@pytest.mark.parametrize(
    ("file", "lines", "classes", "extremes"),
    [
        ("ImageNet_LT_test.txt.gz", 50_000, 1000, (50, 50)),
        ("ImageNet_LT_val.txt.gz", 20_000, 1000, (20, 20)),
        ("iNaturalist18_val.txt.gz", 24_426, 8142, (3, 3)),
        ("Places_LT_train.txt.gz", 62_500, 365, (4980, 5)),
    ],
)
def test_published_lists(file, lines, classes, extremes):
    path = SHARED / "data" / "splits" / file
    found = read_list(path, "images", classes)
    counts = torch.bincount(found.labels, minlength=classes)
    assert (len(found.labels), len(counts)) == (lines, classes)
    assert (int(counts.max()), int(counts.min())) == extremes
    with gzip.open(path, "rt") as plain:
        for i, line in enumerate(plain):
            if i % 997 == 0:
                assert f"{found.paths.name(i)} {found.labels[i]}" == line.strip()
    if file.startswith("Places"):
        assert found.class_names[0] == "airfield"


def make_listing(root, name, classes=3):
    """A tiny root in the published layout."""
    listing, folder = LISTINGS[name], root / name
    for key, (file, *_) in listing.lists.items():
        lines = []
        for label in range(classes):
            for k in range(4 if key == "train" else 1):
                save_image(folder / key / f"class {label}" / f"{k}.png")
                lines.append(f"{key}/class {label}/{k}.png {label}")
        (folder / file).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", list(LISTINGS))
def test_listed_data_sets(name, tmp_path):
    make_listing(tmp_path, name)
    data = load(name, root=tmp_path, size=32)
    assert (data.kind, data.num_classes, data.input_shape) == ("files", LISTINGS[name].classes, (3, 32, 32))
    assert data.counts.n[:4].tolist() == [4, 4, 4, 0]
    assert data.class_names[1] == "class 1"
    assert (data.val is None) == (name == "inat2018")
    assert data.train.inputs[0].is_file()
    moved = load(name, root="nowhere", lists=tmp_path / name, images=tmp_path / name)
    assert moved.fingerprint == data.fingerprint


def test_listed_data_without_images_or_lists(tmp_path):
    with pytest.raises(InputError, match=r"no ImageNet_LT_train\.txt or .*`longtail data fetch imagenet-lt` says"):
        load("imagenet-lt", root=tmp_path)
    make_listing(tmp_path, "places-lt")
    (tmp_path / "places-lt" / "train" / "class 0" / "0.png").unlink()
    with pytest.raises(InputError, match=r"there is no image .*0\.png \(.*Places_LT_train\.txt, line 1\)"):
        load("places-lt", root=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 0\nb.jpg\n", "line 2: 'b.jpg' is not 'path label'"),
        ("a.jpg 0\n\nb.jpg x\n", "line 3: 'b.jpg x' is not 'path label'"),
        ("a.jpg 5\n", r"line 1: label 5 is outside \[0, 3\)"),
        ("a.jpg -1\n", r"line 1: label -1 is outside"),
        (" 1\n", "line 1: '1' has no path"),
        ("", "is empty"),
    ],
)
def test_bad_lists(text, message, tmp_path):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_list(tmp_path / "list.txt", tmp_path, 3)


def test_truncated_gzip(tmp_path):
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(b"a.jpg 0\n" * 1000)[:-12])
    with pytest.raises(InputError, match="cannot be read"):
        read_list(tmp_path / "list.txt.gz", tmp_path, 3)


def test_lists_with_spaces_blank_lines_and_windows_ends(tmp_path):
    (tmp_path / "list.txt").write_bytes("a b.jpg 0\r\n\r\nd/é.jpg 1\r\n".encode())
    found = read_list(tmp_path / "list.txt", tmp_path, 3)
    assert found.paths.names() == ["a b.jpg", "d/é.jpg"]
    assert "line 3" in found.paths.where(1)


def test_inat_json(tmp_path):
    content = {
        "images": [{"id": 7, "file_name": "train_val2018/a.jpg"}, {"id": 3, "file_name": "train_val2018/b.jpg"}],
        "annotations": [{"image_id": 3, "category_id": 1}, {"image_id": 7, "category_id": 0}],
        "categories": [{"id": 0, "name": "Aves"}, {"id": 1, "name": "Fungi"}],
    }
    for file in ("train2018.json", "val2018.json"):
        (tmp_path / "inat2018").mkdir(exist_ok=True)
        (tmp_path / "inat2018" / file).write_text(json.dumps(content))
    for image in content["images"]:
        save_image(tmp_path / "inat2018" / image["file_name"])
    data = load("inat2018", root=tmp_path)
    assert data.train.labels.tolist() == [0, 1]
    assert data.class_names[:2] == ["Aves", "Fungi"]
    assert data.train.inputs.names() == ["train_val2018/a.jpg", "train_val2018/b.jpg"]
    for broken, message in (("{", "is no JSON"), ("{}", "'annotations' is missing"), ("[]", "not as iNaturalist")):
        (tmp_path / "x.json").write_text(broken)
        with pytest.raises(InputError, match=message):
            read_inat_json(tmp_path / "x.json", tmp_path, 3)


def test_files_hold_their_names():
    files = Files(["a/1.jpg", "ü.png", "c"], root="r", origin="list", lines=[3, 5, 9])
    assert files.names() == ["a/1.jpg", "ü.png", "c"]
    part = files.take(torch.tensor([2, 0]))
    assert part.names() == ["c", "a/1.jpg"]
    assert part.where(0).endswith("(list, line 9)")
    assert [path.name for path in files] == ["1.jpg", "ü.png", "c"]
    with pytest.raises(IndexError):
        files[3]
    with pytest.raises(InputError, match="size must be"):
        Files([], root="r", size=0)
