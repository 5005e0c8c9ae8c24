"""`load`: one door for every source, by name or by path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import InputError
from .dataset import Dataset, Files
from .profiles import Source, assemble

CUT = ("profile", "ratio", "n_max", "seed", "holdout", "test_share")


@dataclass(frozen=True)
class Entry:
    """A built-in data set: a line for `longtail data list`, its reader, and how it is cut by default."""

    about: str
    reader: Callable[[Path], Callable[..., Source]]
    cut: Mapping[str, Any] = field(default_factory=dict)


def _digits(root: Path) -> Callable[..., Source]:
    from .digits import digits

    return digits


def _moons(root: Path) -> Callable[..., Source]:
    from .digits import moons

    return moons


def _cifar(name: str, root: Path) -> Callable[..., Source]:
    from . import cifar

    return partial(cifar.read, cifar.LAYOUTS[name], root)


def _listed(name: str, root: Path) -> Callable[..., Source]:
    from .lists import listed

    return partial(listed, name, root)


BUILT_IN: dict[str, Entry] = {
    "digits-lt": Entry(
        "scikit-learn's handwritten digits, 10 classes, 130…2 images (ratio 50); no download",
        _digits,
        {"profile": "exp", "ratio": 50, "n_max": 130, "val_per_class": 40},
    ),
    "moons": Entry("two moons in the plane, 2 classes, 5 % tail (the paper's Figure 1); no download", _moons),
    "cifar10-lt": Entry(
        "CIFAR-10, 10 classes, 5000…50 images (ratio 100); `fetch` downloads it",
        partial(_cifar, "cifar10-lt"),
        {"profile": "exp", "ratio": 100, "val_per_class": 500},
    ),
    "cifar100-lt": Entry(
        "CIFAR-100, 100 classes, 500…5 images (ratio 100); `fetch` downloads it",
        partial(_cifar, "cifar100-lt"),
        {"profile": "exp", "ratio": 100, "val_per_class": 20},
    ),
    "imagenet-lt": Entry(
        "ImageNet-LT, 1,000 classes, 1280…5 images; `fetch` says what to get", partial(_listed, "imagenet-lt")
    ),
    "places-lt": Entry(
        "Places-LT, 365 classes, 4980…5 images; `fetch` says what to get", partial(_listed, "places-lt")
    ),
    "inat2018": Entry(
        "iNaturalist 2018, 8,142 classes, 1000…2 images; `fetch` says what to get", partial(_listed, "inat2018")
    ),
}


def names() -> list[str]:
    """The built-in data sets."""
    return list(BUILT_IN)


def load(name: str | Path, root: str | Path = "data", **options: Any) -> Dataset:
    """Read a data set and cut its splits.

    Args:
        name: a built-in name (`names()`), or the path of a folder of class folders, a CSV of image paths and labels,
            or an ``.npz`` or ``.safetensors`` of features and labels.
        root: folder that downloaded data sets lie in.
        options: an unknown one is an error that lists those there are. Of every data set:

            - ``profile``: "exp", "step", a list of counts, or None to keep everything; ``ratio``: largest over
              smallest class; ``n_max``: samples of the largest class;
            - ``seed``: which subset; None is the canonical one;
            - ``holdout``: share of the training data that becomes validation data instead, for tuning;
            - ``test_share``: of a path without a test split.

            Image files also take ``size``, `moons` takes ``n``, ``tail`` and ``noise``, the published lists
            take ``lists`` and ``images``, a CSV its columns.

    >>> load("digits-lt", ratio=10).counts.n.tolist()
    [130, 100, 77, 60, 46, 36, 28, 21, 16, 13]
    """
    data = read(name, root, **options)
    for split in (data.train, data.val, data.test):
        if split is not None and isinstance(split.inputs, Files) and not split.inputs[0].is_file():
            hint = f"; `longtail data fetch {name}` says where images belong" if str(name) in BUILT_IN else ""
            raise InputError(f"{name}: there is no image {split.inputs.where(0)}{hint}")
    return data


def read(name: str | Path, root: str | Path = "data", **options: Any) -> Dataset:
    """`load`, without a look at whether image files exist."""
    entry = BUILT_IN.get(str(name))
    reader = entry.reader(Path(root)) if entry else _from_path(Path(name))
    own = [p.name for p in inspect.signature(reader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    cut = [option for option in CUT if not (entry and option == "test_share")]
    for option in options:
        if option not in own + cut:
            raise InputError(f"{name}: {errors.unknown('option', option, dict.fromkeys(own + cut))}")
    source = reader(**{key: value for key, value in options.items() if key in own})
    defaults = dict(entry.cut) if entry else {}
    return assemble(source, **defaults | {key: value for key, value in options.items() if key in cut})


def _from_path(path: Path) -> Callable[..., Source]:
    if path.is_dir():
        from .folder import class_folders

        return partial(class_folders, path)
    if not path.exists():
        raise InputError(f"{errors.unknown('data set', path, names())}; nor is there such a file or folder")
    if path.suffix.lower() == ".csv":
        from .folder import csv_file

        return partial(csv_file, path)
    if path.suffix in (".npz", ".safetensors"):
        from .features import feature_file

        return partial(feature_file, path)
    raise InputError(f"{path} is neither a folder of class folders nor a .csv, .npz or .safetensors file")
