import csv
import io
import json
import shutil
import sys
import zlib

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail import plugins
from longtail.cli import app
from longtail.data import load
from longtail.engine.job import Job, execute
from longtail.errors import InputError
from longtail.evaluate.predictions import Predictions
from longtail.inference import restore
from longtail.runs.read import read

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 40), "red": (210, 30, 20)}


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def fails(*args):
    result = run(*args)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def train(folder, method="logadj", **settings):
    settings = {"epochs": 10, **settings}
    return execute(Job(method, out=str(folder / method), threads=1, device="cpu", **settings), say=lambda text: None)


def picture(path, colour, size=(40, 36)):
    from PIL import Image

    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    pixels = np.clip(np.array(colour) + rng.integers(-20, 20, (*size[::-1], 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return train(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of class folders, a run on it, and new files: colours are easy to tell."""
    folder = tmp_path_factory.mktemp("photos")
    for name, n in (("blue", 20), ("green", 12), ("red", 8)):
        for i in range(n):
            picture(folder / "data" / name / f"{i}.png", COLOURS[name])
    for name in COLOURS:
        picture(folder / "new" / f"{name}.png", COLOURS[name], size=(50, 31))
    done = train(
        folder, data=str(folder / "data"), options={"size": 32}, model="resnet20", batch_size=16, lr=0.05, epochs=8
    )
    return folder, done


def test_features_are_classified_as_in_the_run(digits, tmp_path):
    data = load("digits-lt")
    np.savez(tmp_path / "new.npz", features=data.test.inputs.numpy())
    result = run("predict", digits, tmp_path / "new.npz", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    logits = Predictions.load(digits / "predictions.safetensors").test.logits
    assert [int(row["class"]) for row in rows] == logits.argmax(1).tolist()
    expected = logits.softmax(1).amax(1).numpy()
    np.testing.assert_allclose([float(row["probability"]) for row in rows], expected, atol=1e-5)
    assert rows[3]["path"] == f"{tmp_path / 'new.npz'}:3"


@pytest.mark.parametrize("suffix", ["npy", "csv", "header.csv", "safetensors", "only.npz"])
def test_kinds_of_feature_files_agree(digits, tmp_path, suffix):
    from safetensors.numpy import save_file

    x = load("digits-lt").test.inputs[::50].contiguous().numpy()
    path = tmp_path / f"new.{suffix}"
    if suffix == "npy":
        np.save(path, x)
    elif suffix == "safetensors":
        save_file({"x": x, "other": x[:, :2].copy()}, path)
    elif suffix == "only.npz":
        np.savez(path, whatever=x, labels=np.zeros(len(x)))
    else:
        header = ",".join(f"pixel{i}" for i in range(64)) if suffix == "header.csv" else ""
        np.savetxt(path, x, delimiter=",", header=header, comments="")
    expected = restore(digits).of_features(torch.from_numpy(x)).argmax(1).tolist()
    rows = json.loads(run("predict", digits, path, "--format", "json").stdout)
    assert [int(row["class"]) for row in rows] == expected
    assert set(rows[0]) == {"path", "class", "probability"}


@pytest.mark.parametrize("method", ["supcon", "tau-norm", "ldam-drw", "cb-focal"])
def test_runs_of_other_methods_are_restored_whole(method, tmp_path):
    done = train(tmp_path, method, epochs=3)
    data = load("digits-lt")
    expected = Predictions.load(done / "predictions.safetensors").test.logits.argmax(1)
    probabilities = restore(done).of_features(data.test.inputs)
    assert torch.equal(probabilities.argmax(1), expected)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(expected)))


def test_images_by_file_and_by_folder(photos):
    folder, done = photos
    result = run("predict", done, folder / "new")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == [str(folder / "new" / f"{name}.png") for name in sorted(COLOURS)]
    assert [row[1] for row in rows] == sorted(COLOURS)
    assert all(0 < float(row[2]) <= 1 for row in rows)
    single = run("predict", done, folder / "new" / "red.png", folder / "new" / "blue.png")
    assert [line.split("\t")[1] for line in single.stdout.splitlines()] == ["red", "blue"]


def test_test_images_are_prepared_as_in_the_run(photos):
    folder, done = photos
    data = load(str(folder / "data"), size=32)
    expected = Predictions.load(done / "predictions.safetensors").test.logits.softmax(1)
    got = torch.cat(list(restore(done).of_images(list(data.test.inputs))))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_images_for_a_run_on_images_in_memory(photos, tmp_path):
    """As on CIFAR: a file of the right size is taken as it is, any other is resized as a whole."""
    from PIL import Image

    folder, done = photos
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    split = json.loads((copy / "split.json").read_text())
    split["input"]["kind"] = "images"
    (copy / "split.json").write_text(json.dumps(split))
    restored = restore(copy)
    exact = tmp_path / "exact.png"
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(exact)
    mean, std = (torch.tensor(split["input"][k]).view(1, 3, 1, 1) for k in ("mean", "std"))
    x = (torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255 - mean) / std
    (got,) = restored.of_images([exact])
    torch.testing.assert_close(got, restored.probabilities(x), atol=1e-5, rtol=0)
    rows = run("predict", copy, folder / "new").stdout.splitlines()
    assert [row.split("\t")[1] for row in rows] == sorted(COLOURS)


def test_mistakes_are_one_sentence(digits, photos, tmp_path):
    folder, done = photos
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"no image")
    np.savez(tmp_path / "narrow.npz", features=np.zeros((2, 3)))
    np.savez(tmp_path / "two.npz", a=np.zeros((2, 64)), b=np.zeros((2, 64)))
    np.savez(tmp_path / "objects.npz", features=np.array([{}, None], dtype=object))
    (tmp_path / "words.csv").write_text("1,2\n3,four\n")
    assert "there is no run folder" in fails("predict", tmp_path / "none", "x.png")
    assert "it is not a run (no config.json)" in fails("predict", tmp_path / "empty", "x.png")
    assert "there is no image or folder" in fails("predict", done, tmp_path / "none.png")
    assert "has no image (.jpg" in fails("predict", done, tmp_path / "empty")
    assert "broken.png is no readable image" in fails("predict", done, tmp_path / "broken.png")
    assert "trained on images, and" in fails("predict", done, tmp_path / "narrow.npz")
    assert "unknown format 'xml'" in fails("predict", done, folder / "new", "--format", "xml")
    assert "there is no such file" in fails("predict", digits, tmp_path / "none.npz")
    assert "must end in .npz" in fails("predict", digits, tmp_path / "broken.png")
    assert "trained on 64 features a sample, got shape (2, 3)" in fails("predict", digits, tmp_path / "narrow.npz")
    assert "2 matrices: name the one to classify 'features'" in fails("predict", digits, tmp_path / "two.npz")
    assert "cannot be read" in fails("predict", digits, tmp_path / "objects.npz")
    assert "line 2: column '1' holds 'four'" in fails("predict", digits, tmp_path / "words.csv")


def test_unfinished_and_damaged_runs(digits, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(digits, copy)
    (copy / "model.safetensors").write_bytes(b"\x01\x02")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        restore(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        restore(copy)
    (copy / "summary.json").unlink()
    with pytest.raises(InputError, match="it is not finished"):
        restore(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        restore(copy)


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A run of a model and a method of one's own, as somebody finds it who has never named them."""
    (tmp_path / "own_code.py").write_text(
        "import pathlib, torch\n"
        "from longtail import Objective\n"
        "from longtail.losses import MarginCrossEntropy\n"
        "pathlib.Path('imported').touch()\n"
        "def loss(counts):\n    return Objective((1.0, MarginCrossEntropy(counts)))\n"
        "def model(num_classes):\n    return torch.nn.Sequential(torch.nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_given", set())
    done = train(tmp_path, "own_code:loss", model="own_code:model", epochs=1)
    (tmp_path / "imported").unlink()
    sys.modules.pop("own_code")
    monkeypatch.setattr(plugins, "_given", set())
    yield done
    sys.modules.pop("own_code", None)


def test_code_that_a_run_folder_names_is_imported_only_if_trusted(own_code, tmp_path):
    data = load("digits-lt")
    np.savez(tmp_path / "new.npz", features=data.test.inputs.numpy()[:3])
    for command in (["predict", own_code, tmp_path / "new.npz"], ["export", own_code]):
        assert "names the method 'own_code:loss', which is code: --trust-code" in fails(*command)
    config = json.loads((own_code / "config.json").read_text())
    (own_code / "config.json").write_text(json.dumps(config | {"method": "ce", "knobs": {}}))
    assert "names the model 'own_code:model'" in fails("predict", own_code, tmp_path / "new.npz")
    (own_code / "config.json").write_text(json.dumps(config))
    assert read(own_code).knobs == config["knobs"]  # what a report asks for
    plain = config | {"model": "mlp", "recipe": config["recipe"] | {"model": "mlp"}}
    (own_code / "config.json").write_text(json.dumps(plain))
    with pytest.raises(InputError, match="own_code:loss', which is code: it is not imported"):
        train(tmp_path / "later", "ce", epochs=1, begin_with=str(own_code))
    (own_code / "config.json").write_text(json.dumps(config))
    assert not (tmp_path / "imported").exists()
    assert len(run("predict", own_code, tmp_path / "new.npz", "--trust-code").stdout.splitlines()) == 3
    assert (tmp_path / "imported").exists()
