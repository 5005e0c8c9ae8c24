"""Anybody's images: a folder of class folders, or a CSV of image paths and labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..models.pretrained.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from .dataset import Files
from .images import image_size
from .limits import reading, text
from .profiles import Source, encode
from .tables import (
    LABEL_COLUMNS,
    ORDER,
    SPLITS,
    column,
    csv_rows,
    csv_table,
    is_number,
    sorted_labels,
    split_column_of,
    split_of,
)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
TAKEN_AT = "images are taken at"  # begins a note that a backbone, which has a size of its own, makes untrue
# Sides of the square that a network gets of images of no stated size
SMALLEST, LARGEST = 32, 224
Row = tuple[str, str, int]  # a path, its label and its line
IMAGE_COLUMNS = ("image", "path", "file", "filename", "image_path")


def class_folders(path: Path, *, size: int | None = None) -> Source:
    """``path/CLASS/….jpg``, or ``path/train/CLASS/….jpg`` with ``val`` and ``test`` beside it where there are any."""
    parts: dict[str, Path] = {}
    for sub in _folders(path):
        if key := SPLITS.get(sub.name.lower()):
            if key in parts:
                raise InputError(f"{path} has {parts[key].name} and {sub.name}, which both mean {key}: leave one")
            parts[key] = sub
    if parts and "train" not in parts:
        raise InputError(f"{path} has {', '.join(sorted(parts))} but no train folder")
    if not parts:
        parts = {"train": path}
    rows = {key: _scan(sub, path) for key, sub in parts.items()}
    names = sorted({name for part in rows.values() for _, name, _ in part})
    if len(names) < 2:
        raise InputError(f"{path} has {len(names)} class folder{'s' * (len(names) != 1)}: at least two are needed")
    return image_source(path.name or str(path), names, _parts(path, rows, names, size), size)


def _folders(path: Path) -> list[Path]:
    with reading(path):
        return sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))


def _scan(path: Path, root: Path) -> list[Row]:
    """Image files of each class folder, at any depth, as paths relative to ``root``, in alphabetical order."""
    rows: list[Row] = []
    for folder in _folders(path):
        files = [
            os.path.relpath(os.path.join(where, file), root)
            for where, _, names in os.walk(folder)
            for file in names
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        ]
        if not files:
            raise InputError(f"class folder {folder} has no image ({', '.join(SUFFIXES)}): fill it or remove it")
        # A class name goes into files in UTF-8, also where the folder's own name is none
        name = text(os.fsencode(folder.name))
        rows += [(file, name, 0) for file in files]
    return sorted(rows, key=lambda row: (row[1], row[0]))


def csv_file(
    path: Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    images: str | Path | None = None,
    size: int | None = None,
    columns: Sequence[str] | str | None = None,
) -> Source:
    """A CSV with a header and a column of labels, any strings: of images, where a column holds paths, or of numbers.

    Args:
        image_column: "image", "path", "file", "filename" or "image_path" by default, whichever there is.
        label_column: "label", "class", "target" or "y" by default.
        split_column: "split" by default where there is one; holds train, val or test.
        images: folder that relative paths start from; the CSV's own by default.
        columns: of a table of numbers, those that are features; all but label and split by default.
    """
    if not _has_images(path, image_column, images):
        if size is not None:
            raise InputError(f"{path} has no column of images, so size does not apply to it")
        return csv_table(path, label_column=label_column, split_column=split_column, columns=columns)
    if columns is not None:
        raise InputError(f"{path} has a column of images, so columns does not apply to it")
    content = csv_rows(path)
    _, header = next(content, (0, []))
    label = column(path, header, label_column, LABEL_COLUMNS, "label")
    image = column(path, header, image_column, IMAGE_COLUMNS, "image")
    split = split_column_of(path, header, split_column)
    rows: dict[str, list[Row]] = {}
    for line, cells in content:
        row = dict(zip(header, cells))
        key = split_of(path, line, row[split]) if split else "train"
        if not row[image] or not row[label]:
            raise InputError(f"{path}, line {line}: column {label if row[image] else image!r} is empty")
        rows.setdefault(key, []).append((row[image], row[label], line))
    if "train" not in rows:
        raise InputError(f"{path} has no {'training ' if rows else ''}row")
    names = sorted_labels({name for part in rows.values() for _, name, _ in part})
    root = path.parent if images is None else Path(str(images))
    return image_source(path.stem, names, _parts(root, rows, names, size, str(path)), size)


def _has_images(path: Path, image_column: str | None, images: object) -> bool:
    """Whether a CSV is of images: it has the column, and what is in it is no number."""
    rows = csv_rows(path)
    _, header = next(rows, (0, []))
    _, first = next(rows, (0, []))
    if image_column is not None or images is not None or not header:
        return True
    found = [k for k, name in enumerate(header) if name.strip().lower() in IMAGE_COLUMNS]
    others = [k for k, name in enumerate(header) if name.strip().lower() not in (*LABEL_COLUMNS, "split")]
    if not found and first:
        # Neither images nor numbers: let the sentence be about the images that are missing where nothing is a number
        return not any(is_number(first[k]) for k in others)
    return not first or any(not is_number(first[k]) for k in found)


def _parts(
    root: Path, rows: Mapping[str, list[Row]], names: list[str], size: int | None, origin: str | None = None
) -> dict[str, tuple[Files, Tensor]]:
    """Files and labels of each split."""
    labels = encode(root, {key: [name for _, name, _ in part] for key, part in rows.items()}, names)
    parts = {}
    for key in ORDER:
        if key in rows:
            files, _, lines = zip(*rows[key])
            parts[key] = Files(files, root, LARGEST if size is None else size, origin, lines), labels[key]
    return parts


def image_source(
    name: str,
    class_names: list[str],
    parts: Mapping[str, tuple[Files, Tensor]],
    size: int | None,
    notes: Sequence[str] = (),
    identity: str = "",
) -> Source:
    """Somebody's images. Where no ``size`` was asked for they are as large as their files are, 32 to 224 pixels a side
    in steps of 16: to enlarge small ones costs time and gains nothing."""
    files = parts["train"][0]
    sides = [short for i in files.some(20) if (short := _short_side(files, i))] if size is None else []
    if sides:
        fitting = min(max(round(float(np.median(sides)) / 16) * 16, SMALLEST), LARGEST)
        for images, _ in parts.values():
            images.size = fitting
        if fitting < LARGEST:
            said = f"{TAKEN_AT} {fitting}×{fitting} pixels, as their files are (--option size=N for another)"
            notes = (*notes, said)
    # They may be signs or text: no mirror unless it is asked for
    about = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "augment": "crop"}
    return Source.of(name, class_names, parts, notes, identity, **about)


def _short_side(files: Files, i: int) -> int:
    """Of an image by its header; 0 where that cannot be read, which others will say."""
    try:
        with files.open(i) as file:
            return min(image_size(file))
    except Exception:  # a broken image can make a decoder raise nearly anything
        return 0
