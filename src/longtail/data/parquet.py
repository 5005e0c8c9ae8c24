"""Parquet as the Hugging Face hub stores image data: a struct of bytes and path, a label, several files a split.

Only labels are read when a data set is loaded. Images are read as they are needed, a row group at a time; a large row
group is first laid out in a temporary file, so that memory depends neither on the number of images nor on how the file
was written.
"""

from __future__ import annotations

import io
import json
import mmap
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import InputError
from .dataset import Files
from .folder import IMAGE_COLUMNS, LARGEST, image_source
from .limits import shown
from .profiles import Source, encode
from .tables import LABEL_COLUMNS, ORDER, SPLITS, column, open_parquet, parquet_columns, parquet_table, sorted_labels

LARGE = 32 << 20  # bytes of a row group's images above which they go to a temporary file
GROUPS = 4  # row groups that are kept in memory
ROWS = 64  # of a batch in the temporary file


class ParquetImages(Files):
    """Images in Parquet files: the "path" of one is its file and row, as in ``data/train-00000.parquet#17``.

    >>> ParquetImages(["train.parquet#3"], "photos").where(0)
    'photos/train.parquet, row 3'
    """

    def __init__(
        self, paths: Iterable[str | bytes], root: str | Path, size: int = 224, image_column: str = "image"
    ) -> None:
        super().__init__(paths, root, size)
        self.image_column = image_column
        self._open: dict[str, tuple[Any, list[int]]] = {}
        self._groups: OrderedDict[tuple[str, int], _Group] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_groups": OrderedDict()}  # a worker opens the files itself

    def _place(self, i: int) -> tuple[str, int]:
        file, _, row = self.name(i).rpartition("#")
        return file, int(row)

    def where(self, i: int) -> str:
        return f"{shown(str(self.file(i)))}, row {self._place(i)[1]}"

    def open(self, i: int) -> IO[bytes]:
        return io.BytesIO(self.read(i))

    def file(self, i: int) -> Path:
        return self.root / self._place(i)[0]

    def some(self, number: int) -> Sequence[int]:
        return range(min(len(self), number))  # those of one row group, which is read as a whole

    def read(self, i: int) -> bytes:
        file, row = self._place(i)
        if file not in self._open:
            parquet = open_parquet(self.root / file)
            sizes = [parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)]
            self._open[file] = parquet, np.cumsum([0, *sizes]).tolist()
        parquet, starts = self._open[file]
        if not 0 <= row < starts[-1]:
            raise InputError(f"the file has {starts[-1]} rows")
        group = bisect_right(starts, row) - 1
        key = file, group
        if key not in self._groups:
            self._groups[key] = _Group(parquet, group, self.image_column)
            while len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        data = self._groups[key].image(row - starts[group])
        if data is None:
            raise InputError("there are no bytes in this row: images that are only named are not fetched")
        return data


class _Group:
    """The images of one row group, in memory or in a temporary file that goes with the process."""

    def __init__(self, parquet: Any, group: int, name: str) -> None:
        import pyarrow as pa

        batches = parquet.iter_batches(batch_size=ROWS, row_groups=[group], columns=[name], use_threads=False)
        meta = parquet.metadata.row_group(group)
        columns = [meta.column(k) for k in range(meta.num_columns)]
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == name)
        if size <= LARGE:
            self.reader: Any = None
            self.table: Any = pa.Table.from_batches(batches)
            return
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_file(file, pa.schema([parquet.schema_arrow.field(name)])) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            self.reader = pa.ipc.open_file(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def image(self, row: int) -> bytes | None:
        if self.reader is None:
            value = self.table.column(0)[row].as_py()
        else:
            value = self.reader.get_batch(row // ROWS).column(0)[row % ROWS].as_py()
        return value.get("bytes") if isinstance(value, dict) else value


def parquet(
    path: Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    size: int | None = None,
    columns: Sequence[str] | str | None = None,
) -> Source:
    """A Parquet file, or a folder of them: of images and labels as on the hub, or (one file) a table of numbers.

    Args:
        image_column: "image", "img" and the like by default, or the only one that holds images.
        label_column: "label" and the like by default.
        columns, split_column: of a table of numbers, as of a CSV.
    """
    files = parquet_files(path)
    first = files["train"][0]
    schema = open_parquet(first).schema_arrow
    image = _image_column(first, schema, image_column)
    if image is None:
        if path.is_dir():
            raise InputError(f"{path}: {first.name} has no column of images; a table of numbers is one Parquet file")
        if size is not None:
            raise InputError(f"{path} has no column of images, so size does not apply to it")
        return parquet_table(path, label_column=label_column, split_column=split_column, columns=columns)
    label = column(first, schema.names, label_column, (*LABEL_COLUMNS, "fine_label"), "label")
    root = path if path.is_dir() else path.parent
    given = _class_names(schema, label)
    rows: dict[str, list[str]] = {}
    labels: dict[str, list[Any]] = {}
    notes = []
    for split, of in files.items():
        for file in of:
            found = _labels(file, image, label)
            labels.setdefault(split, []).extend(found)
            name = file.relative_to(root).as_posix()
            rows.setdefault(split, []).extend(f"{name}#{row}" for row in range(len(found)))
        if split != "train" and all(y == -1 for y in labels[split]):
            notes.append(f"the {split} files carry no labels (all are -1), and are left out")
            del rows[split], labels[split]
    if given is None:
        labels = {split: [str(y) for y in part] for split, part in labels.items()}
    names = given or sorted_labels({y for part in labels.values() for y in part})
    numbers = encode(path, labels, names)
    parts = {
        split: (ParquetImages(paths, root, LARGEST if size is None else size, image), numbers[split])
        for split, paths in rows.items()
    }
    stem = path.stem if path.suffix else path.name
    identity = " ".join(f"{file.name}:{file.stat().st_size}" for of in files.values() for file in of)
    return image_source(stem, names, parts, size, notes, identity)


def parquet_files(path: Path) -> dict[str, list[Path]]:
    """Files of each split: by the beginning of a name (``train-00000-of-00002.parquet``) or its folder's name."""
    if not path.is_dir():
        return {"train": [path]}
    found: dict[str, list[Path]] = {}
    for file in sorted(_below(path)):
        words = file.stem.lower().replace("_", "-").split("-")
        key = SPLITS.get(words[0]) or SPLITS.get(file.parent.name.lower()) or ""
        found.setdefault(key, []).append(file)
    if set(found) == {""}:
        found = {"train": found[""]}
    if "" in found:
        raise InputError(f"{found[''][0]} is of no split: names begin with train, val or test")
    if "train" not in found:
        raise InputError(f"{path} has Parquet files of {', '.join(sorted(found)) or 'nothing'}, but none of train")
    return {split: found[split] for split in ORDER if split in found}


def has_parquet(path: Path) -> bool:
    return next(_below(path), None) is not None


def _below(path: Path) -> Iterator[Path]:
    """As the hub lays them out: beside each other, in ``data/``, or in ``CONFIG/train/``."""
    for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"):
        yield from (file for file in path.glob(pattern) if not file.name.startswith("."))


def _image_column(path: Path, schema: Any, asked: str | None) -> str | None:
    import pyarrow as pa

    def holds_images(field: Any) -> bool:
        kind = field.type
        if pa.types.is_struct(kind):
            return any(kind.field(k).name == "bytes" for k in range(kind.num_fields))
        named = field.name.strip().lower() in (*IMAGE_COLUMNS, "img", "bytes")
        return named and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    found = [field.name for field in schema if holds_images(field)]
    if asked is not None:
        if str(asked) not in found:
            raise InputError(f"{path}: column {asked!r} holds no images; those that do: {', '.join(found) or 'none'}")
        return str(asked)
    if len(found) > 1:
        usual = [name for name in found if name in ("image", "img")]
        if not usual:
            raise InputError(f"{path} has images in {', '.join(found)}: choose one with image_column")
        return str(usual[0])
    return str(found[0]) if found else None


def _class_names(schema: Any, label: str) -> list[str] | None:
    """What the hub's schema calls the classes."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return [str(name) for name in names] if isinstance(names, list) and names else None


def _labels(file: Path, image: str, label: str) -> list[Any]:
    content = open_parquet(file)
    for name in (image, label):
        if name not in content.schema_arrow.names:
            raise InputError(f"{file} has no column {name!r}, which the first file of train has")
    values: list[Any] = parquet_columns(file, content, [label]).column(label).to_pylist()
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise InputError(f"{file}, row {row}: label {value!r} is neither a whole number nor a string")
    return values
