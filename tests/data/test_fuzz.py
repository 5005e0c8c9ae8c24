"""Files as no program writes them: whatever is in them, loading ends well or in an `InputError` of one line.

Each kind begins with a good file, of which hypothesis changes bytes, or with parts that are put together at random.
"""

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

from longtail.data import Loader, fetch
from longtail.data.catalogue import bad_images, read
from longtail.data.images import check_image, open_image
from longtail.data.tables import features
from longtail.errors import InputError

EXAMPLES = int(os.environ.get("FUZZ", "15"))  # FUZZ=2000 looks further
quick = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def survives(name, content, also=lambda path: None):
    """Load a file of this name and content; nothing but an `InputError` of one line may come out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        for use in (lambda: read(path), lambda: also(path)):
            said = complaint(use)
            assert said is None or (said and "\n" not in said)


def complaint(use):
    """What a mistake is said to be, or None; any other exception is a finding."""
    try:
        use()
    except InputError as error:
        return str(error)
    return None


def changed(good):
    """The good bytes with some of them replaced, cut off, or something put between."""
    place = st.integers(0, len(good) - 1)

    def change(edits, cut, extra):
        data = bytearray(good)
        for at, value in edits:
            data[at] = value
        data[extra[0] : extra[0]] = extra[1]
        return bytes(data[:cut])

    edits = st.lists(st.tuples(place, st.integers(0, 255)), max_size=8)
    return st.builds(change, edits, st.integers(1, len(good) + 8), st.tuples(place, st.binary(max_size=6)))


X, Y = np.arange(24, dtype=np.float32).reshape(12, 2), np.array([0, 1] * 6)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@quick
@given(changed(npz(X=X, y=Y)))
def test_changed_npz(content):
    survives("f.npz", content, features)


ARRAYS = st.one_of(
    st.sampled_from([X, Y, X[:0], Y[:0], X[0], np.array(3), np.array(["a", "b"] * 6), np.array([b"a", b"\xff"] * 6)]),
    st.lists(st.integers(-(2**63), 2**64 - 1), max_size=5).map(lambda v: np.array(v, dtype=object)).filter(len).map(
        lambda v: v.astype(np.uint64 if min(v) >= 0 else np.int64, casting="unsafe") if max(v) < 2**63 or min(v) >= 0
        else v.astype(float)),
    st.lists(st.floats(), max_size=6).map(np.array),
    st.sampled_from([X.astype(complex), np.zeros(3, "M8[s]"), np.zeros(2, [("a", int)]), X > 3, X.astype(np.float16)]),
)  # fmt: skip
KEYS = st.sampled_from(["X", "y", "x_train", "y_train", "X_test", "y_test", "features", "labels", "class_names", "z"])


@quick
@given(st.dictionaries(KEYS, ARRAYS, max_size=5))
@example({"X": X[:0], "y": Y[:0]})
@example({"X": X, "y": np.array([b"caf\xe9", b"tea"] * 6)})
@example({"X": X, "y": np.zeros(12, int)})
@example({"X": X, "y": np.full(12, 2**64 - 1, np.uint64)})
@example({"X": X.astype(np.float64) * 1e300, "y": Y})
def test_arrays_of_every_kind(arrays):
    survives("f.npz", npz(**arrays), features)


@quick
@given(changed(save({"features": X, "labels": Y})))
def test_changed_safetensors(content):
    survives("f.safetensors", content, features)


CELL = st.one_of(
    st.sampled_from(["", "1", "-2.5", "nan", "inf", "1e999", "a.png", "/dev/zero", "a\0b", '"', '""', "train", "é"]),
    st.text(max_size=8),
)
NAMES = ["image", "label", "x", "split", "y", "", "a b"]
HEADER = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5)


@quick
@given(HEADER, st.lists(st.lists(CELL, max_size=5), max_size=6), st.sampled_from(["utf-8", "latin-1", "utf-16"]))
@example(["image", "label"], [["x" * 9999, "a"], ["b", "b"]], "utf-8")
@example(["x", "label"], [["1", "a"], ["2", "a"]], "utf-8")
@example(["x", "label"], [["1" + "0" * 5000, "a"], ["2", "9" * 5000]], "utf-8")
def test_csv_of_any_cells(header, rows, encoding):
    text = "\n".join(",".join(row) for row in [header, *rows])
    survives("f.csv", text.encode(encoding, "replace"), features)


@quick
@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf")
@example(b'"' + b"a" * 200_000)
def test_csv_of_any_bytes(content):
    survives("f.csv", content, features)


def encoded(kind):
    buffer = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (12, 14, 3)).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
@quick
@given(data=st.data())
def test_changed_images(kind, data):
    """Whatever the decoder raises becomes one line; a file that passes the look before training may still be bad."""
    content = data.draw(changed(encoded(kind)))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a/1", "a/2", "b/1", "b/2"):
            path = Path(folder) / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        split = read(folder, size=8).train
        said = list(bad_images(split.inputs, thoroughly=True))
        assert all("\n" not in line for line in said)
        for name in ("none", "resized-crop-flip"):
            error = complaint(lambda name=name: list(Loader(split, 2, augment=name).epoch(0)))
            if error is not None:
                assert "is no readable image" in error
                assert "\n" not in error
                assert said or _reads_whole(content)


def _reads_whole(content):
    """Whether it decodes at full size, and only a part or a smaller size of it fails."""
    check_image(io.BytesIO(content))
    return open_image(content).pixels(1).size > 0


def hub():
    about = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
    images = pa.array([{"bytes": encoded("PNG"), "path": None}] * 8)
    table = pa.table({"image": images, "label": [0, 1] * 4}).replace_schema_metadata({"huggingface": json.dumps(about)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def look(path):
    for _ in bad_images(read(path, size=8).train.inputs):
        pass


@quick
@given(changed(hub()))
def test_changed_parquet(content):
    survives("f.parquet", content, look)
    survives("f.parquet", content, features)


COLUMNS = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=4, max_size=4),
    st.lists(st.one_of(st.none(), st.floats()), min_size=4, max_size=4),
    st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=4, max_size=4),
    st.lists(st.one_of(st.none(), st.binary(max_size=4)), min_size=4, max_size=4),
    st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=4, max_size=4),
    st.lists(st.fixed_dictionaries({"bytes": st.one_of(st.none(), st.binary(max_size=5))}), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
ABOUT = st.sampled_from(
    ["", "{", "[]", '{"info": 3}', '{"info": {"features": {"label": {"names": "ab"}}}}', "[" * 9999]
)


@quick
@given(st.dictionaries(st.sampled_from(["image", "label", "x", "split"]), COLUMNS, min_size=1, max_size=4), ABOUT)
def test_parquet_of_any_columns(columns, about):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata({"huggingface": about}), buffer)
    survives("f.parquet", buffer.getvalue(), features)
    survives("f.parquet", buffer.getvalue(), look)


def packed():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("cifar-100-binary/train.bin", "é" * 80):
            info = tarfile.TarInfo(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(bytes(700)))
    return buffer.getvalue()


@quick
@given(changed(packed()))
def test_changed_archives(content):
    with tempfile.TemporaryDirectory() as folder:
        path, root = Path(folder) / "a.tar", Path(folder) / "root"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            fetch.fetch("cifar100-lt", root, source=path)
        assert "\n" not in str(caught.value)
        assert not root.exists()
        assert {p.name for p in Path(folder).iterdir()} == {"a.tar"}
