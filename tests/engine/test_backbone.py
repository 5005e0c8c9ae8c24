"""Runs that begin with a backbone: real photographs as JPEG files of many sizes, real weights, real exported files."""

import csv
import io
import json

import matplotlib.cbook
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images

from longtail import export as exporting
from longtail.data import load
from longtail.engine import backbone as backbones
from longtail.engine.job import Job, execute, prepare
from longtail.engine.stage import has_bf16, parameter_groups
from longtail.errors import InputError
from longtail.evaluate.predictions import Predictions
from longtail.inference import restore
from longtail.models import pretrained
from longtail.models.pretrained import Prepare, Preprocessing
from longtail.models.pretrained.backbone import Fit

# A small network with batch norm, a list of blocks and a layer after it
FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    preprocessing = {"size": 16, "short": 18, "resample": "bicubic"}
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        block = lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.last = nn.Conv2d(8, 12, 1)
    def forward(self, x):
        print("a network that talks")
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x).mean((2, 3))

def make():
    print("a factory that talks")
    return Net(0)

def other():
    return Net(1)
"""


def pieces(folder, counts, seed):
    """Parts of three photographs, a class each, of sizes from 30 to 200 pixels."""
    china, flower = load_sample_images().images
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        person = np.asarray(Image.open(file))
    rng = np.random.default_rng(seed)
    for (name, photo), n in zip({"china": china, "flower": flower, "person": person}.items(), counts):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            w, h = rng.integers(30, 200, 2)
            top, left = rng.integers(photo.shape[0] - h), rng.integers(photo.shape[1] - w)
            Image.fromarray(photo[top : top + h, left : left + w]).save(folder / name / f"{i}.jpg", quality=92)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Photographs, new ones, the module of a backbone, and a cache."""
    folder = tmp_path_factory.mktemp("desk")
    pieces(folder / "photos" / "train", (24, 10, 6), 0)
    pieces(folder / "photos" / "test", (8, 8, 8), 1)
    pieces(folder / "new", (40, 40, 40), 2)
    (folder / "backbone_desk.py").write_text(FACTORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LONGTAIL_CACHE", str(folder / "cache"))
        yield folder


def job(method="logadj", **settings):
    return Job(method, **{"data": "photos", "threads": 1, "device": "cpu", "backbone": "backbone_desk:make"} | settings)


def run(**settings):
    return execute(job(**settings), say=lambda text: None)


@pytest.fixture(scope="module")
def head(desk):
    return run(out="head", epochs=20)


@pytest.fixture(scope="module")
def norms(desk):
    return run(out="norms", train="norms", epochs=2)


@pytest.fixture(scope="module")
def scratch(desk):
    return run(out="scratch", backbone="none", options={"size": 24}, model="resnet20", epochs=2)


def test_a_folder_of_photographs_begins_with_the_default_and_says_so(desk, monkeypatch):
    name, part, line = backbones.choose(Job("ce", "photos"), "files")
    assert (name, part) == ("efficientnet-lite0", "head")
    assert "--backbone none starts from scratch" in line
    assert backbones.choose(Job("ce", "photos", train="norms"), "files")[:2] == ("efficientnet-lite0", "norms")
    for settings, kind in (
        ({"backbone": "none"}, "files"), ({"model": "resnet18"}, "files"), ({"recipe": "photos"}, "files"),
        ({"set_recipe": {"model": "mlp"}}, "files"), ({"data": "imagenet-lt"}, "files"), ({}, "images"),
    ):  # fmt: skip
        assert backbones.choose(Job("ce", **{"data": "photos"} | settings), kind) == (None, "head", "")
    monkeypatch.setattr(pretrained, "available", lambda: False)
    name, _, line = backbones.choose(Job("ce", "photos"), "files")
    assert name is None
    assert line == "training from scratch; a pretrained backbone would help: pip install 'longtail[pretrained]'"


def test_embeddings_are_computed_once_and_trained_on(desk):
    """The real weights, on small squares: what several runs share is embedded before they begin."""
    said, done = [], []
    asked = Job("logadj", "photos", options={"size": 96}, out="real", threads=1)
    settled = prepare(asked, said.append, lambda n, of: done.append(n)).job
    assert (settled.backbone, settled.train) == ("efficientnet-lite0", "head")
    assert len(said) == 1
    assert done[-1] == 64
    done.clear()
    assert prepare(settled, said.append, lambda n, of: done.append(n)).job == settled
    assert (done, len(said)) == ([], 1)
    path = execute(settled, say=lambda text: None)
    config = json.loads((path / "config.json").read_text())
    precision = "bf16" if has_bf16(torch.device("cpu")) else "fp32"
    expected = {**pretrained.load("efficientnet-lite0", 96).identity(), "train": "head", "embedded": precision}
    assert config["backbone"] == json.loads(json.dumps(expected))
    assert (config["recipe"]["name"], config["data"]["name"]) == ("embeddings", "photos")
    words = " ".join(config["decisions"])
    assert "efficientnet-lite0 starts from its weights" in words
    assert "Convolutions start" not in words
    found = Predictions.load(path / "predictions.safetensors").test
    assert (found.logits.argmax(1) == found.labels).float().mean() > 0.9


def test_another_backbone_is_another_run(desk, head):
    for settings, what in (
        ({"backbone": "backbone_desk:other"}, r"backbone\.digest.*backbone\.name"), ({"backbone": "none"}, "backbone "),
        ({"train": "all"}, r"backbone\.train \(\"head\", now \"all\"\)"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"holds a finished run with another config: .*{what}"):
            run(**{"out": "head", "epochs": 20, "resume": True} | settings)


def test_a_run_from_scratch_goes_on_from_scratch(desk, scratch):
    old = Job("logadj", "photos", out="scratch", resume=True)
    data = load("photos")
    assert backbones.settle(old, data, print)[0].backbone == "none"
    new = Job("logadj", "photos", out="norms2", resume=True)
    assert backbones.settle(new, data, print)[0].backbone == "efficientnet-lite0"


@pytest.mark.parametrize("part", ["norms", "last", "all"])
def test_what_is_asked_for_trains_and_nothing_else(desk, part):
    path = run(out=f"part-{part}", train=part, epochs=1, lr=0.5)
    start = pretrained.load("backbone_desk:make").state_dict()
    end = {k.removeprefix("module.1."): v for k, v in load_file(path / "model.safetensors").items()}
    moved = {name for name, value in start.items() if not torch.equal(value, end[name])}
    parameters = {name for name, _ in pretrained.load("backbone_desk:make").named_parameters()}
    wanted = {
        "norms": {n for n in parameters if n.endswith("bias") or ".1.weight" in n},
        "last": {n for n in parameters if "blocks.2" in n or "last" in n},
        "all": parameters,
    }[part]
    assert moved == wanted  # running statistics never


def test_the_backbone_has_a_rate_of_its_own(desk):
    ready = prepare(job(train="all", set_recipe={"backbone_lr": 0.25}))
    groups = parameter_groups(ready.model, 0.1, ready.recipe.backbone_lr)
    of_backbone = {id(p) for p in ready.model.module[1].parameters()}
    assert {(group["share"], id(p) in of_backbone) for group in groups for p in group["params"]} == {
        (0.25, True), (1.0, False)
    }  # fmt: skip
    assert prepare(job(train="all")).recipe.backbone_lr == 0.1
    assert ready.model.training
    assert not ready.model.module[1].network.training


def test_images_in_memory_are_resized_inside_the_network():
    how = Preprocessing(16, 18, "bicubic", (0.5,) * 3, (0.25,) * 3)
    image = np.asarray(load_sample_images().images[0])[:32, :40]
    inside = Fit(how)((torch.from_numpy(image / 255.0).permute(2, 0, 1)[None].float() - 0.5) / 0.25)
    expected = Prepare(how)(torch.from_numpy(image)[None])
    torch.testing.assert_close(inside, expected, rtol=0, atol=0.05)  # whole grey levels, in one of them
    assert Fit(how)(inside) is inside


def test_mistakes_are_one_sentence(desk, tmp_path):
    for settings, message in (
        ({"train": "norm"}, "unknown part of a backbone to train 'norm': did you mean 'norms'"),
        ({"backbone": "efficientnet"}, "unknown backbone 'efficientnet'"),
        ({"backbone": None, "data": "digits-lt", "train": "all"}, "--train all is about a backbone: give one"),
        ({"data": "digits-lt"}, "digits-lt holds features already"),
        ({"set_recipe": {"backbone_lr": 0.5}}, "backbone_lr is for a backbone that trains"),
        ({"backbone": "none", "set_recipe": {"backbone_lr": 0.5}}, "backbone_lr is for a backbone that trains"),
        ({"augment": "crop"}, "unknown augmentation of features 'crop'"),
        ({"backbone": "torch.nn:Flatten", "train": "all"}, "has no weights that torch could train: use --train head"),
        ({"model": "resnet20"}, "resnet20 takes images"),
    ):
        with pytest.raises(InputError, match=message):
            run(out=str(tmp_path / "run"), **settings)
    assert not (tmp_path / "run" / "config.json").exists()


def files(desk):
    return sorted((desk / "new").rglob("*.jpg"))


def opened(path, to):
    """An exported model as somebody without this package opens it."""
    if to == "torch":
        module = torch.export.load(path).module()
        return lambda x: module(x).detach()
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])


@pytest.mark.parametrize("which", ["head", "norms", "scratch"])
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_what_is_exported_is_what_predicts(desk, request, which, to):
    """Decoded by Pillow, one by one, as somebody without this package would: the same class and probability."""
    if to == "onnx":
        pytest.importorskip("onnxscript")
    done = request.getfixturevalue(which)
    path = exporting.export(done, to, trust_code=True)
    call = opened(path, to)
    ours = torch.cat(list(restore(done, trust_code=True).of_images(files(desk))))
    theirs = [call(torch.from_numpy(np.array(Image.open(file).convert("RGB")))[None]) for file in files(desk)]
    torch.testing.assert_close(torch.cat(theirs), ours, rtol=0, atol=1e-4)
    assert torch.equal(torch.cat(theirs).argmax(1), ours.argmax(1))


def test_predictions_of_files_are_those_of_the_run(desk, head, norms):
    for done in (head, norms):
        data = load("photos")
        expected = Predictions.load(done / "predictions.safetensors").test.logits.softmax(1)
        got = torch.cat(list(restore(done, trust_code=True).of_images(list(data.test.inputs))))
        # Many small images at once are decoded smaller, by the decoder's own means: hardly other images
        assert (got - expected).abs().mean() < 0.05


def test_the_file_says_what_it_takes_and_does(desk, head):
    extra = {"longtail.json": ""}
    torch.export.load(exporting.export(head, "torch", trust_code=True), extra_files=extra)
    facts = json.loads(extra["longtail.json"])
    assert facts["class_names"] == ["china", "flower", "person"]
    assert facts["backbone"] == "backbone_desk:make"
    assert (facts["input"]["shape"], facts["input"]["dtype"]) == (["height", "width", 3], "uint8")
    inside = facts["input"]["inside"]
    assert (inside["size"], inside["short"], inside["resample"], len(inside["mean"])) == (16, 18, "bicubic", 3)


def test_what_a_network_prints_is_no_row(desk, head, longtail):
    _, out, err = longtail("predict", head, "new", "--format", "csv", "--trust-code")
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["path", "class", "probability"]
    assert [row[0] for row in rows[1:]] == [str(f.relative_to(desk)) for f in files(desk)]
    assert "a factory that talks" in err


def test_weights_that_changed_are_refused_where_the_run_holds_only_its_head(desk, head, norms, tmp_path):
    for done in (head, norms):
        config = json.loads((done / "config.json").read_text())
        config["backbone"]["digest"] = "0" * 16
        copy = tmp_path / done.name
        copy.mkdir()
        for file in done.iterdir():
            if file.is_file():
                (copy / file.name).write_bytes(file.read_bytes())
        (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"is not the one that .* was trained with: digest \(\"0000"):
        restore(tmp_path / "head", trust_code=True)
    assert restore(tmp_path / "norms", trust_code=True).shape == (3, 16, 16)


def test_a_network_of_onnx_predicts_and_cannot_become_part_of_another_file(desk):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AvgPool2d(15))
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    example = (torch.zeros(2, 3, 32, 32),)
    flat = torch.nn.Sequential(network, torch.nn.Flatten()).eval()
    torch.onnx.export(flat, example, desk / "tiny.onnx", dynamic_shapes=shapes, dynamo=True, verbose=False)
    done = run(backbone="onnx:tiny.onnx", out="onnx", epochs=2)
    expected = Predictions.load(done / "predictions.safetensors").test.logits.softmax(1)
    got = torch.cat(list(restore(done).of_images(list(load("photos").test.inputs))))
    assert (got - expected).abs().mean() < 0.05
    with pytest.raises(InputError, match=r"no network of torch.*longtail predict uses it"):
        exporting.export(done, "onnx")
    with pytest.raises(InputError, match=r"no weights that torch could train: use --train head"):
        prepare(job(backbone="onnx:tiny.onnx", train="norms"))
