import builtins
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail import export as exporting
from longtail.cli import app
from longtail.data import load
from longtail.engine.job import Job, execute
from longtail.errors import InputError, RunError
from longtail.inference import restore


def train(folder, method, **settings):
    return execute(Job(method, out=str(folder / method), threads=1, epochs=2, **settings), say=lambda text: None)


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module", params=["logadj", "ldam-drw", "cb-focal"])
def digits(request, tmp_path_factory):
    return train(tmp_path_factory.mktemp("export"), request.param)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Real digits as image files, so that a convolutional network with its normalisation is exported."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    data = load("digits-lt").train
    for i, (x, y) in enumerate(zip(data.inputs, data.labels.tolist())):
        if y < 4:
            path = folder / "data" / str(y) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((x.view(8, 8) * 255).byte().numpy()).resize((24, 24)).save(path)
    path = str(folder / "data")
    return train(folder, "elm", data=path, options={"size": 24}, model="resnet20", batch_size=32)


def test_torch_file_runs_without_the_package(digits, tmp_path):
    out = tmp_path / "net.pt2"
    result = run("export", digits, "--to", "torch", "--out", out)
    assert result.exit_code == 0, result.output
    assert str(out) in result.output
    x = load("digits-lt").test.inputs[:7]
    extra = {"longtail.json": ""}
    program = torch.export.load(out, extra_files=extra).module()
    torch.testing.assert_close(program(x), restore(digits).probabilities(x), atol=1e-5, rtol=0)
    facts = json.loads(extra["longtail.json"])
    assert facts["class_names"] == [str(i) for i in range(10)]
    assert facts["input"] == {"shape": [64], "dtype": "float32"}


def test_images_are_resized_cut_and_normalised_inside(images, tmp_path):
    path = exporting.export(images, "torch")
    assert path == images / "model.pt2"
    restored = restore(images)
    pixels = torch.randint(0, 256, (3, 27, 27, 3), dtype=torch.uint8)  # the middle 24 of 27 are what the network gets
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (restored.mean, restored.std))
    expected = restored.probabilities((pixels[:, 1:25, 1:25].permute(0, 3, 1, 2) / 255 - mean) / std)
    got = torch.export.load(path).module()(pixels)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


def test_onnx_file_agrees(images, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'longtail[export]')")
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = exporting.export(images, "onnx", tmp_path / "net.onnx")
    x = torch.randint(0, 256, (5, 30, 41, 3), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"inputs": x.numpy()})
    expected = exporting.Exported(restore(images))(x)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-4)
    stored = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert json.loads(stored["longtail"])["class_names"] == ["0", "1", "2", "3"]


def test_onnx_without_its_packages_names_the_extra(digits, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name in ("onnx", "onnxscript"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"needs onnx and onnxscript: pip install 'longtail\[export\]'"):
        exporting.export(digits, "onnx")


def test_a_file_that_disagrees_is_not_written(digits, tmp_path, monkeypatch):
    out = tmp_path / "net.pt2"
    out.write_bytes(b"the old one")
    monkeypatch.setattr(exporting, "_runner", lambda path, to: lambda x: torch.full((len(x), 10), 0.1))
    with pytest.raises(RunError, match="disagrees with the original"):
        exporting.export(digits, "torch", out)
    assert out.read_bytes() == b"the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]


def test_mistakes(digits, tmp_path):
    for args, message in (
        (("tflite", None), "unknown format 'tflite'"),
        (("torch", tmp_path / "net.onnx"), r"for torch must end in \.pt2"),
        (("torch", tmp_path / "no" / "net.pt2"), "there is no folder"),
    ):
        with pytest.raises(InputError, match=message):
            exporting.export(digits, *args)
    with pytest.raises(InputError, match="there is no run folder"):
        exporting.export(tmp_path / "none", "torch")


def test_k_nearest_neighbours_are_refused(tmp_path):
    done = train(tmp_path, "supcon")
    with pytest.raises(InputError, match="ended in k-NN"):
        exporting.export(done, "torch")
