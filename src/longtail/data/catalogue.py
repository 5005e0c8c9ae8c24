"""`load`: one door for every source, by name or by path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import InputError
from . import cifar
from .arrays import array_file
from .builtin import digits, moons
from .dataset import Dataset, Files
from .folder import class_folders, csv_file
from .images import check_image
from .limits import is_regular, reason, shown
from .lists import listed
from .parquet import has_parquet, parquet
from .profiles import Source, assemble

CUT = ("profile", "ratio", "n_max", "seed", "val_per_class", "holdout", "test_share", "test_seed")


@dataclass(frozen=True)
class Entry:
    """A built-in data set: a line for `longtail data list`, its reader, and how it is cut by default."""

    about: str
    reader: Callable[[Path], Callable[..., Source]]
    cut: Mapping[str, Any] = field(default_factory=dict)


def folder_of(root: str | Path) -> Path:
    """The folder that data sets lie in, which may not be there yet."""
    try:
        if not Path(root).exists() or Path(root).is_dir():
            return Path(root)
    except (OSError, ValueError) as error:
        raise InputError(f"--root {shown(str(root))!r} cannot be a folder: {reason(error)}") from None
    raise InputError(f"--root {str(root)!r} is a file, and a folder belongs there")


def _cifar(name: str, root: Path) -> Callable[..., Source]:
    return partial(cifar.read, cifar.LAYOUTS[name], folder_of(root))


def _listed(name: str, root: Path) -> Callable[..., Source]:
    return partial(listed, name, folder_of(root))


BUILT_IN: dict[str, Entry] = {
    "digits-lt": Entry(
        "scikit-learn's handwritten digits, 10 classes, 130…2 images (ratio 50); no download",
        lambda root: digits,
        {"profile": "exp", "ratio": 50, "n_max": 130, "val_per_class": 40},
    ),
    "moons": Entry(
        "two moons in the plane, 2 classes, 5 % tail (the paper's Figure 1); no download", lambda root: moons
    ),
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
        name: a built-in name (`names()`), or a path: a folder of class folders; a CSV of image paths and labels, or of
            numbers and labels; Parquet files, of images as on the Hugging Face hub or of numbers; an ``.npz`` or
            ``.safetensors`` of features and labels.
        root: folder that downloaded data sets lie in.
        options: an unknown one is an error that lists those there are. Of every data set:

            - ``profile``: "exp", "step", a list of counts, or None to keep everything; ``ratio``: largest over
              smallest class; ``n_max``: samples of the largest class;
            - ``seed``: which subset; None is the canonical one;
            - ``val_per_class``: at most so many of the samples that the profile discards become validation data;
            - ``holdout``: share of the training data that becomes validation data instead, for tuning;
            - ``test_share``, ``test_seed``: of a path without a test split, how much is held out, and which.

            Image files also take ``size``, `moons` takes ``n``, ``tail`` and ``noise``, the published lists
            take ``lists`` and ``images``, a CSV its columns.

    >>> load("digits-lt", ratio=10).counts.n.tolist()
    [130, 100, 77, 60, 46, 36, 28, 21, 16, 13]
    """
    data = read(name, root, **options)
    for split in (data.train, data.val, data.test):
        if split is not None and isinstance(split.inputs, Files) and not split.inputs.exists(0):
            hint = f"; `longtail data fetch {name}` says where images belong" if str(name) in BUILT_IN else ""
            raise InputError(f"{name}: there is no image {split.inputs.where(0)}{hint}")
    for what, split in (("validation", data.val), ("test", data.test)):
        # Training shows its bad files in the first epoch; these would end a run only after the last
        if split is not None and isinstance(split.inputs, Files) and (bad := list(bad_images(split.inputs))):
            raise InputError(
                f"{name}: {len(bad):,} of {len(split):,} {what} images cannot be read, such as {bad[0]}; "
                "`longtail data check` lists all"
            )
    return data


def bad_images(files: Files, thoroughly: bool = False, each: Callable[[], None] = lambda: None) -> Iterator[str]:
    """A sentence for every image that cannot be read, by its header and end, or by decoding it."""
    for i in range(len(files)):
        try:
            with files.open(i) as file:
                check_image(file, thoroughly)
        except FileNotFoundError:
            yield f"{files.where(i)}: there is no such file"
        except Exception as error:  # a broken image can make a decoder raise nearly anything
            yield f"{files.where(i)}: {reason(error)}"
        each()


def read(name: str | Path, root: str | Path = "data", **options: Any) -> Dataset:
    """`load`, without a look at image files."""
    entry = BUILT_IN.get(str(name))
    reader = entry.reader(Path(root)) if entry else _from_path(Path(name))
    own = [p.name for p in inspect.signature(reader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    cut = [option for option in CUT if not (entry and option.startswith("test_"))]
    for option in options:
        if option not in own + cut:
            raise InputError(f"{name}: {errors.unknown('option', option, dict.fromkeys(own + cut))}")
    source = reader(**{key: value for key, value in options.items() if key in own})
    defaults = dict(entry.cut) if entry else {}
    return assemble(source, **defaults | {key: value for key, value in options.items() if key in cut})


def _from_path(path: Path) -> Callable[..., Source]:
    try:
        is_folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file can have
        is_folder = there = False
    if is_folder:
        return partial(parquet if has_parquet(path) else class_folders, path)
    if not there:
        raise InputError(f"{errors.unknown('data set', shown(str(path)), names())}; nor is there such a file or folder")
    suffix = path.suffix.lower()
    if is_regular(path) and suffix in (".csv", ".parquet", ".npz", ".npy", ".safetensors"):
        return partial({".csv": csv_file, ".parquet": parquet}.get(suffix, array_file), path)
    raise InputError(f"{path} is neither a folder of class folders nor a .csv, .parquet, .npz or .safetensors file")
