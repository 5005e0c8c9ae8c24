"""Tables of numbers: a CSV or a Parquet file with numeric columns and one of labels."""

from __future__ import annotations

import csv
import difflib
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError
from .arrays import feature_source, finite, matrix
from .limits import is_regular, reading, reason, shown, text
from .profiles import Source

LABEL_COLUMNS = ("label", "class", "target", "y", "labels")
ORDER = ("train", "val", "test")
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
# What pandas calls the numbers of rows where it writes them into a file: no feature, and often in the order of labels
ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
ADVICE = "turn categories into numbers first (pandas.get_dummies, or scikit-learn's OneHotEncoder)"


def column(path: Path, columns: Sequence[str], asked: Any, usual: Sequence[str], what: str) -> str:
    """The column that was asked for, or the first of the usual ones that is there, in whatever case."""
    if asked is not None:
        usual = (str(asked),)  # the command reads a column called 1 as a number
    for name in usual:
        for there in columns:
            if there == name or (asked is None and there.strip().lower() == name):
                return there
    close = difflib.get_close_matches(str(asked), columns, n=1)
    raise InputError(
        f"{path} has no {what} column {' or '.join(map(repr, usual))}:"
        f"{f' did you mean {close[0]!r}?' if close else ''} its columns are {_listed(columns)}; name it with "
        f"{'columns' if what == 'feature' else f'{what}_column'}=NAME"
    )


def _listed(columns: Sequence[str]) -> str:
    """Names for a message: of many the first and the last ones, since labels stand at either end."""
    ends = columns if len(columns) <= 12 else [*columns[:6], "…", *columns[-3:]]
    return ", ".join(name if name == "…" else repr(shown(name, 40)) for name in ends) or "none"


def split_column_of(path: Path, header: Sequence[str], asked: Any) -> str | None:
    """The column that says which split a row is of: the one asked for, or ``split`` where there is one."""
    if asked is not None:
        return column(path, header, asked, (), "split")
    return next((name for name in header if name.strip().lower() == "split"), None)


def split_of(path: Path, line: object, value: object) -> str:
    key = str("" if value is None else value).strip().lower()
    if key not in SPLITS:
        raise InputError(f"{path}, line {line}: split {value!r} is none of train, val, test")
    return SPLITS[key]


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """In numerical order if all are whole numbers, alphabetical otherwise."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))  # 1 and 01 in the same order every time
    except ValueError:
        return sorted(labels)


def is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the rows that are not empty, the header first; all are as long as that."""
    cells = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                cells = cells or len(row)
                if len(row) != cells:
                    raise csv.Error(f"cells in line {reader.line_num}: {len(row)}, in the first: {cells}")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read as CSV: {reason(error)}") from None


def open_parquet(path: Path) -> Any:
    """``pyarrow.parquet.ParquetFile``, or one sentence."""
    try:
        import pyarrow.parquet as pq
    except (ImportError, RuntimeError, OSError):
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'longtail[hub]'") from None
    if not is_regular(path):
        raise InputError(f"there is no file {path}")
    try:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except Exception as error:  # pyarrow has exceptions of its own
        raise InputError(f"{path} is no Parquet file: {reason(error)}") from None


def parquet_columns(path: Path, file: Any, names: Sequence[str]) -> Any:
    """Some columns of an open Parquet file, as pyarrow's table."""
    with reading(path, Exception):  # pyarrow has exceptions of its own
        return file.read(columns=list(names), use_threads=False)


def csv_table(path: Path, *, label_column: Any = None, split_column: Any = None, columns: Any = None) -> Source:
    """A CSV with a header, a column of labels and numbers in all others (or in ``columns``)."""
    rows = csv_rows(path)
    _, header = next(rows, (0, []))
    label, split, used = _roles(path, header, label_column, split_column, columns)
    at_label, at_split = header.index(label), None if split is None else header.index(split)
    places = {name: header.index(name) for name in used}
    values, labels, splits = array("d"), [], []
    for line, row in rows:
        values.extend(_numbers(path, line, row, places))
        if not row[at_label]:
            raise InputError(f"{path}, line {line}: column {label!r} is empty")
        labels.append(row[at_label])
        splits.append("train" if at_split is None else split_of(path, line, row[at_split]))
    x = np.array(values).reshape(len(labels), len(used))
    return _source(path, x, labels, splits, label, used, header)


def _numbers(path: Path, line: int, row: Sequence[str], places: Mapping[str, int]) -> list[float]:
    """The cells of a CSV's row that are features, by their names and places."""
    try:
        return [float(row[k]) for k in places.values()]
    except ValueError:
        name = next(name for name, k in places.items() if not is_number(row[k]))
        raise InputError(f"{path}, line {line}: {_not_a_number(name, row[places[name]])}") from None


def parquet_table(path: Path, *, label_column: Any = None, split_column: Any = None, columns: Any = None) -> Source:
    """The same of a Parquet file."""
    file = open_parquet(path)
    header = list(file.schema_arrow.names)
    label, split, used = _roles(path, header, label_column, split_column, columns)
    table = parquet_columns(path, file, [*used, label, *([split] if split else [])])
    x, labels = _parquet_numbers(path, table, used), table.column(label).to_pylist()
    if None in labels:
        raise InputError(f"{path}, row {labels.index(None)}: column {label!r} is empty")
    splits = table.column(split).to_pylist() if split else ["train"] * len(labels)
    where = [split_of(path, row, value) for row, value in enumerate(splits)]
    return _source(path, x, [text(y) for y in labels], where, label, used, header)


def _parquet_numbers(path: Path, table: Any, names: Sequence[str]) -> np.ndarray:
    parts = []
    for name in names:
        part = table.column(name)
        if part.null_count:
            raise InputError(f"{path}: column {name!r} has {part.null_count} missing values: fill them in first")
        with reading(path, Exception):
            numbers = part.to_numpy()
        if numbers.dtype.kind not in "fiub":
            raise InputError(f"{path}: {_not_a_number(name, numbers[0] if len(numbers) else numbers.dtype)}")
        parts.append(numbers.astype(np.float64))
    return np.stack(parts, 1) if parts else np.zeros((table.num_rows, 0))


def features(path: Path, columns: Sequence[str] | None = None) -> Tensor:
    """Features (N, K) from any file that holds some, as a float32 tensor: what `longtail predict` takes.

    Of a table ``columns`` by their names, wherever they stand. Without names, and in a CSV without a header, all in
    their order, but for labels, splits and row numbers.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        return finite(path, "features", matrix(path))
    if suffix == ".parquet":
        file = open_parquet(path)
        names = _features_of(path, file.schema_arrow.names, columns)
        x = _parquet_numbers(path, parquet_columns(path, file, names), names)
    else:
        rows = csv_rows(path)
        line, first = next(rows, (0, []))
        if all(map(is_number, first)) and not (columns and set(columns) <= set(first)):
            places = {str(k): k for k in range(len(first))}
            rows = itertools.chain([(line, first)] if first else [], rows)
        else:
            places = {name: first.index(name) for name in _features_of(path, first, columns)}
        x = np.array([_numbers(path, line, row, places) for line, row in rows])
    if not len(x):
        raise InputError(f"{path} cannot be read: it has no row")
    return finite(path, "features", x)


def _features_of(path: Path, header: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        other = (*LABEL_COLUMNS, "split")
        return [n for n in header if n.strip().lower() not in other and not ROW_NUMBERS.fullmatch(n.strip())]
    for name in columns:
        if name not in header:
            raise InputError(f"{path} has no column {name!r}, which the run was trained on: it has {_listed(header)}")
    return list(columns)


def _roles(
    path: Path, header: Sequence[str], label_column: Any, split_column: Any, columns: Any
) -> tuple[str, str | None, list[str]]:
    """Which column is the label, which the split, and which are features."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{path} has two columns {twice!r}: rename one")
    label = column(path, header, label_column, LABEL_COLUMNS, "label")
    split = split_column_of(path, header, split_column)
    used = [name for name in header if name not in (label, split) and not ROW_NUMBERS.fullmatch(name.strip())]
    if columns is not None:
        wanted = [str(name) for name in (columns if isinstance(columns, (list, tuple)) else str(columns).split(","))]
        used = [column(path, header, name, (), "feature") for name in wanted]
    if not used:
        raise InputError(f"{path} has no column beside the label: there is nothing to learn from")
    return label, split, used


def _not_a_number(name: object, cell: object) -> str:
    if cell is None or str(cell) == "":
        return f"column {name!r} is empty: fill in missing values first"
    return f"column {name!r} holds {shown(str(cell), 40)!r}, which is no number: {ADVICE}, or choose columns=…"


def _source(
    path: Path, x: np.ndarray, labels: list[str], splits: list[str], label: str, used: list[str], header: Sequence[str]
) -> Source:
    pairs: dict[str, tuple[np.ndarray, list[str]]] = {}
    for split in ORDER:
        mine = [row for row, of in enumerate(splits) if of == split]
        if mine:
            pairs[split] = x[mine], [labels[row] for row in mine]
    if "train" not in pairs:
        raise InputError(f"{path} has no {'training ' if pairs else ''}row")
    note = f"{len(used)} numeric columns ({shown(', '.join(used), 60)}), labels from column {label!r}"
    if numbers := [name for name in header if ROW_NUMBERS.fullmatch(name.strip()) and name not in (*used, label)]:
        note += f", without {numbers[0]!r}, which numbers the rows"
    return feature_source(path, pairs, sorted_labels(set(labels)), (note,), tuple(used))
