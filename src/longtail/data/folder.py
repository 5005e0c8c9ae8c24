"""Anybody's images: a folder of class folders, or a CSV of image paths and labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ..errors import InputError
from .dataset import Files, Split
from .lists import IMAGENET_MEAN, IMAGENET_STD
from .profiles import Source

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
# Somebody's images may be signs or text: no mirror unless it is asked for
AUGMENT = "crop"
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def class_folders(
    path: Path,
    *,
    size: int = 224,
) -> Source:
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
    found = {key: _scan(sub, path) for key, sub in parts.items()}
    names = sorted({name for classes in found.values() for name in classes})
    if len(names) < 2:
        raise InputError(f"{path} has {len(names)} class folder{'s' * (len(names) != 1)}: at least two are needed")
    rows = {key: [(file, name) for name in sorted(classes) for file in classes[name]] for key, classes in found.items()}
    return _source(path.name or str(path), path, rows, names, size, None, {})


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _scan(path: Path, root: Path) -> dict[str, list[str]]:
    """Image files of each class folder, at any depth, as paths relative to ``root``, in alphabetical order."""
    classes: dict[str, list[str]] = {}
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
        classes[os.fsencode(folder.name).decode("utf-8", "backslashreplace")] = sorted(files)
    return classes


def csv_file(
    path: Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    images: str | Path | None = None,
    size: int = 224,
) -> Source:
    """A CSV with a header, a column of image paths and one of labels, any strings.

    Args:
        image_column: "image", "path", "file", "filename" or "image_path" by default, whichever there is.
        label_column: "label", "class", "target" or "y" by default.
        split_column: "split" by default where there is one; holds train, val or test.
        images: folder that relative paths start from; the CSV's own by default.
    """
    rows: dict[str, list[tuple[str, str]]] = {}
    lines: dict[str, list[int]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            image = _column(path, columns, image_column, ("image", "path", "file", "filename", "image_path"), "image")
            label = _column(path, columns, label_column, ("label", "class", "target", "y"), "label")
            split = "split" if "split" in columns else None
            if split_column is not None:
                split = _column(path, columns, split_column, (), "split")
            for row in reader:
                key = _split_of(path, reader.line_num, row[split]) if split else "train"
                if not row[image] or not row[label]:
                    empty = image if not row[image] else label
                    raise InputError(f"{path}, line {reader.line_num}: column {empty!r} is empty")
                rows.setdefault(key, []).append((row[image], row[label]))
                lines.setdefault(key, []).append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {getattr(error, 'strerror', None) or error}") from None
    if "train" not in rows:
        raise InputError(f"{path} has no {'training ' if rows else ''}row")
    names = _sorted_labels({name for part in rows.values() for _, name in part})
    return _source(path.stem, path.parent if images is None else Path(str(images)), rows, names, size, str(path), lines)


def _column(path: Path, columns: list[str], asked: str | None, usual: Sequence[str], what: str) -> str:
    wanted = list(usual) if asked is None else [str(asked)]  # the command reads a column called 1 as a number
    for name in wanted:
        if name in columns:
            return name
    raise InputError(
        f"{path} has no {what} column {' or '.join(map(repr, wanted))}: "
        f"its columns are {', '.join(map(repr, columns)) or 'none'}; name it with {what}_column"
    )


def _split_of(path: Path, line: int, value: str | None) -> str:
    key = (value or "").strip().lower()
    if key not in SPLITS:
        raise InputError(f"{path}, line {line}: split {value!r} is none of train, val, test")
    return SPLITS[key]


def _sorted_labels(labels: set[str]) -> list[str]:
    """In numerical order if all are whole numbers, alphabetical otherwise."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))  # 1 and 01 in the same order every time
    except ValueError:
        return sorted(labels)


def _source(
    name: str,
    root: Path,
    rows: dict[str, list[tuple[str, str]]],
    names: list[str],
    size: int,
    origin: str | None,
    lines: dict[str, list[int]],
) -> Source:
    label_of = {label: i for i, label in enumerate(names)}
    splits: dict[str, Split] = {}
    start = 0
    for key in ("train", "val", "test"):
        if key in rows:
            part = rows[key]
            files = Files((file for file, _ in part), root, size, origin, lines.get(key))
            labels = torch.tensor([label_of[label] for _, label in part], dtype=torch.int64)
            indices = torch.arange(start, start + len(part))
            splits[key] = Split(files, labels, indices, IMAGENET_MEAN, IMAGENET_STD, AUGMENT)
            start += len(part)
    return Source(name, splits["train"], splits.get("test"), names, splits.get("val"))
