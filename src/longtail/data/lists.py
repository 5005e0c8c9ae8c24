"""Published list files (``path label`` a line) of ImageNet-LT, Places-LT and iNaturalist 2018."""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..models.pretrained.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from .dataset import Files
from .limits import reading, shown
from .profiles import Source


@dataclass(frozen=True)
class Listing:
    """One published data set: number of classes, the files that may hold each split's list, and where to get it."""

    classes: int
    lists: Mapping[str, tuple[str, ...]]
    help: tuple[str, str, str]


LISTINGS = {
    "imagenet-lt": Listing(
        1000, {"train": ("ImageNet_LT_train.txt",), "val": ("ImageNet_LT_val.txt",), "test": ("ImageNet_LT_test.txt",)},
        (
            "imagenet-lt needs the ILSVRC 2012 images (licence at https://image-net.org/download).",
            "Put them in {folder} as train/n01440764/….JPEG and val/n01440764/….JPEG, in class folders.",
            "Put ImageNet_LT_train.txt, _val.txt and _test.txt (OpenLongTailRecognition) in {folder} too.",
        ),
    ),
    "places-lt": Listing(
        365, {"train": ("Places_LT_train.txt",), "val": ("Places_LT_val.txt",), "test": ("Places_LT_test.txt",)},
        (
            "places-lt needs the Places365-Standard images (licence at http://places2.csail.mit.edu/download.html).",
            "Put them in {folder} as train/airfield/….jpg and val/airfield/….jpg, in class folders.",
            "Put Places_LT_train.txt, _val.txt and _test.txt (OpenLongTailRecognition) in {folder} too.",
        ),
    ),
    "inat2018": Listing(
        8142,
        {"train": ("iNaturalist18_train.txt", "train2018.json"), "test": ("iNaturalist18_val.txt", "val2018.json")},
        (
            "inat2018 needs train_val2018.tar.gz (terms at https://github.com/visipedia/inat_comp/tree/master/2018).",
            "Unpack it in {folder}, so that {folder}/train_val2018/Plantae/7291/….jpg exists.",
            "Put train2018.json and val2018.json (or iNaturalist18_train.txt and _val.txt) in {folder} too.",
        ),
    ),
}  # fmt: skip


class Listed(NamedTuple):
    """Paths and labels of one list, and what it calls the classes."""

    paths: Files
    labels: Tensor
    class_names: dict[int, str]


def read_list(path: Path, root: Path, classes: int, size: int = 224) -> Listed:
    """Read ``path label`` lines, plain or gzipped; a path may hold spaces, blank lines are skipped.

    Half a million lines take about a second: they are streamed into one buffer, never held as Python strings.
    """
    labels, lines = array("q"), array("i")
    names: dict[int, str] = {}

    def show(line: bytes) -> str:
        return shown(line.decode("utf-8", "replace"), 60)

    def stream(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line:
                continue
            name, _, tail = line.rpartition(b" ")
            try:
                label = int(tail)
            except ValueError:
                raise InputError(f"{path}, line {number}: {show(line)!r} is not 'path label'") from None
            name = name.strip()
            if not name:
                raise InputError(f"{path}, line {number}: {show(line)!r} has no path before the label")
            if not 0 <= label < classes:
                raise InputError(f"{path}, line {number}: label {label} is outside [0, {classes})")
            labels.append(label)
            lines.append(number)
            if label not in names:
                names[label] = _class_of(name.decode("utf-8", "replace"))
            yield name

    with (
        reading(path, EOFError, zlib.error),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        files = Files(stream(file), root, size, str(path))
    if not len(files):
        raise InputError(f"{path} is empty: 'path label' lines belong in it")
    files.number(lines)
    return Listed(files, torch.from_numpy(np.array(labels, dtype=np.int64)), names)


def _class_of(path: str) -> str:
    """``train/airfield/1.jpg`` → ``airfield``; ``train_val2018/Plantae/7291/a.jpg`` → ``Plantae/7291``."""
    folders = PurePosixPath(path).parts[:-1]
    return "/".join(folders[1:] or folders)


def read_inat_json(path: Path, root: Path, classes: int, size: int = 224) -> Listed:
    """iNaturalist's own file: ``images`` (id, file_name), ``annotations`` (image_id, category_id), ``categories``."""
    with reading(path):
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is no JSON: {error}") from None
    try:
        category = {a["image_id"]: a["category_id"] for a in content["annotations"]}
        images = [(image["file_name"], category[image["id"]]) for image in content["images"]]
        names = {c["id"]: str(c["name"]) for c in content.get("categories", [])}
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not as iNaturalist 2018 writes it: {error} is missing") from None
    for name, label in images:
        if type(label) is not int or not 0 <= label < classes:
            raise InputError(f"{path}: {name} has category {label!r}, outside [0, {classes})")
    if not images:
        raise InputError(f"{path} lists no image")
    labels = torch.tensor([label for _, label in images], dtype=torch.int64)
    return Listed(Files((name for name, _ in images), root, size), labels, names)


def listed(
    name: str,
    root: Path,
    *,
    lists: str | Path | None = None,
    images: str | Path | None = None,
    size: int = 224,
) -> Source:
    """One of the published long-tailed data sets.

    Args:
        lists: folder with the list files; ``root/name`` by default.
        images: folder that their paths start from; ``root/name`` by default.
        size: side of the square that the network gets.
    """
    listing = LISTINGS[name]
    folder = root / name
    # The command reads a folder called 2018 as a number
    at, image_root = (folder if given is None else Path(str(given)) for given in (lists, images))
    parts: dict[str, tuple[Files, Tensor]] = {}
    class_names: dict[int, str] = {}
    for split, files in listing.lists.items():
        found = _find(name, at, files)
        reader = read_inat_json if found.suffix == ".json" else read_list
        content = reader(found, image_root, listing.classes, size)
        parts[split] = content.paths, content.labels
        class_names = content.class_names | class_names
    names = [class_names.get(label, str(label)) for label in range(listing.classes)]
    no_third = [f"{name} has no third split: its published validation split is the test split"]
    notes = no_third if "val" not in parts else []
    return Source.of(name, names, parts, notes, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _find(name: str, at: Path, files: tuple[str, ...]) -> Path:
    first, *others = files
    candidates = [first, first + ".gz", *others]
    for candidate in candidates:
        if (at / candidate).is_file():
            return at / candidate
    raise InputError(
        f"{name}: there is no {' or '.join(candidates)} in {at}; `longtail data fetch {name}` says what to get"
    )
