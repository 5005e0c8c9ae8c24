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
    """A built-in data set: a line for `longtail data list`, its reader (which takes the folder that data lie in, if any
    do), and how it is cut by default."""

    about: str
    reader: Callable[..., Source]
    on_disk: bool = True
    cut: Mapping[str, Any] = field(default_factory=dict)


def folder_of(root: str | Path) -> Path:
    """The folder that data sets lie in, which may not be there yet."""
    try:
        if not Path(root).exists() or Path(root).is_dir():
            return Path(root)
    except (OSError, ValueError) as error:
        raise InputError(f"--root {shown(str(root))!r} cannot be a folder: {reason(error)}") from None
    raise InputError(f"--root {str(root)!r} is a file, and a folder belongs there")


BUILT_IN: dict[str, Entry] = {
    "digits-lt": Entry(
        "scikit-learn's handwritten digits, 10 classes, 130…2 images (ratio 50); no download",
        digits,
        on_disk=False,
        cut={"profile": "exp", "ratio": 50, "n_max": 130, "val_per_class": 40},
    ),
    "moons": Entry(
        "two moons in the plane, 2 classes, 5 % tail (the paper's Figure 1); no download", moons, on_disk=False
    ),
    "cifar10-lt": Entry(
        "CIFAR-10, 10 classes, 5000…50 images (ratio 100); `fetch` downloads it",
        partial(cifar.read, cifar.CIFAR10),
        cut={"profile": "exp", "ratio": 100, "val_per_class": 500},
    ),
    "cifar100-lt": Entry(
        "CIFAR-100, 100 classes, 500…5 images (ratio 100); `fetch` downloads it",
        partial(cifar.read, cifar.CIFAR100),
        cut={"profile": "exp", "ratio": 100, "val_per_class": 20},
    ),
    "imagenet-lt": Entry(
        "ImageNet-LT, 1,000 classes, 1280…5 images; `fetch` says what to get", partial(listed, "imagenet-lt")
    ),
    "places-lt": Entry("Places-LT, 365 classes, 4980…5 images; `fetch` says what to get", partial(listed, "places-lt")),
    "inat2018": Entry(
        "iNaturalist 2018, 8,142 classes, 1000…2 images; `fetch` says what to get", partial(listed, "inat2018")
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
    files = {key: split.inputs for key, split in data.splits.items() if isinstance(split.inputs, Files)}
    for images in files.values():
        if not is_regular(images.file(0)):
            hint = f"; `longtail data fetch {name}` says where images belong" if str(name) in BUILT_IN else ""
            raise InputError(f"{name}: there is no image {images.where(0)}{hint}")
    for key, what in (("val", "validation"), ("test", "test")):
        # Training shows its bad files in the first epoch; these would end a run only after the last
        if key in files and (bad := list(bad_images(files[key]))):
            raise InputError(
                f"{name}: {len(bad):,} of {len(files[key]):,} {what} images cannot be read, such as {bad[0]}; "
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


@dataclass
class Checked:
    """The data set, if it could be read at all; how many files were read; a sentence for each bad one."""

    data: Dataset | None = None
    files: int = 0
    bad: list[str] = field(default_factory=list)


def check(
    name: str, root: str | Path = "data", progress: Callable[[int, int], None] | None = None, **options: Any
) -> Checked:
    """Read every file of a data set, whose ``options`` are `load`'s.

    CIFAR is also compared with the digest of the official images.
    """
    found = Checked()
    if name in cifar.LAYOUTS:
        _check_cifar(cifar.LAYOUTS[name], Path(root), found)
        if found.bad:
            return found
    found.data = read(name, root, **options)
    files = [split.inputs for split in found.data.splits.values() if isinstance(split.inputs, Files)]
    total = sum(map(len, files))

    def count() -> None:
        found.files += 1
        if progress:
            progress(found.files, total)

    for part in files:
        found.bad.extend(bad_images(part, thoroughly=True, each=count))
    return found


def _check_cifar(layout: cifar.Layout, root: Path, found: Checked) -> None:
    problem = cifar.verify(layout, root)
    for form in (layout.binary, layout.python):
        for file in (*form.train, form.test) if (root / form.folder).is_dir() else ():
            found.files += 1
            try:
                if problem:
                    cifar.read_file(root / form.folder / file, layout, form)
            except InputError as error:
                found.bad.append(str(error))
    if problem and found.files == 0:
        raise InputError(problem)
    if problem and not found.bad:
        found.bad.append(problem)


def read(name: str | Path, root: str | Path = "data", **options: Any) -> Dataset:
    """`load`, without a look at image files."""
    entry = BUILT_IN.get(str(name))
    if entry is None:
        reader = _from_path(Path(name))
    else:
        reader = partial(entry.reader, folder_of(root)) if entry.on_disk else entry.reader
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
