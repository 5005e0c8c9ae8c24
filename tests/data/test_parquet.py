"""Parquet as the Hugging Face hub stores image data: real files, written with pyarrow."""

import io
import json
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from longtail.data import Loader, load
from longtail.errors import InputError


def png(seed, size=(20, 24)):
    pixels = np.random.RandomState(seed).randint(0, 256, (*size, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def hub_table(labels, names=None, start=0, **columns):
    """As `datasets` writes it: images as structs, names of classes in the schema's metadata."""
    images = pa.array([{"bytes": png(start + k), "path": f"{k}.png"} for k in range(len(labels))])
    table = pa.table({"image": images, "label": pa.array(labels), **columns})
    if names is None:
        return table
    label = {"names": names, "_type": "ClassLabel"}
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(about)})


@pytest.fixture
def hub(tmp_path):
    """Two training files and one of test, as on the hub."""
    names = ["cat", "dog", "yak"]
    folder = tmp_path / "animals" / "data"
    folder.mkdir(parents=True)
    pq.write_table(hub_table([0] * 6 + [1] * 4, names), folder / "train-00000-of-00002.parquet", row_group_size=3)
    pq.write_table(hub_table([1, 2, 2], names, 10), folder / "train-00001-of-00002.parquet")
    pq.write_table(hub_table([0, 1, 2], names, 13), folder / "test-00000-of-00001.parquet")
    return tmp_path / "animals"


def pixels(split, **options):
    batches = list(Loader(split, 4, train=False, **options).epoch(0))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (split.mean, split.std))
    return ((torch.cat([b.inputs for b in batches]) * std + mean) * 255).round()


def test_the_hubs_layout(hub):
    data = load(hub, size=16)
    assert data.class_names == ["cat", "dog", "yak"]
    assert data.counts.n.tolist() == [6, 5, 2]
    assert data.test.labels.tolist() == [0, 1, 2]
    assert data.kind == "files"
    assert data.train.augment == "crop"
    assert data.train.inputs.where(11).endswith("data/train-00001-of-00002.parquet, row 1")


@pytest.mark.parametrize("workers", [0, 2])
def test_its_images_are_those_of_files(hub, tmp_path, workers):
    data = load(hub, size=16)
    for k in range(13):
        path = tmp_path / "plain" / ("cat" if k < 6 else "dog" if k < 11 else "yak") / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(k))
    (tmp_path / "plain" / "list.csv").write_text(
        "image,label,split\n" + "".join(f"{p.parent.name}/{p.name},{p.parent.name},{part}\n"
        for part in ("train", "test") for p in sorted((tmp_path / "plain").rglob("*.png")))
    )  # fmt: skip
    plain = load(tmp_path / "plain" / "list.csv", size=16)
    assert torch.equal(pixels(data.train, workers=workers), pixels(plain.train))
    ours, theirs = (list(Loader(d.train, 4, seed=2, workers=w).epoch(1)) for d, w in ((data, workers), (plain, 0)))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(ours, theirs, strict=True))


def test_one_file_is_split_and_named(hub):
    data = load(hub / "data" / "train-00000-of-00002.parquet", size=16)
    assert data.counts.n.tolist() == [5, 3, 0]
    assert len(data.test) == 2


@pytest.mark.parametrize("layout", ["train.parquet", "default/train/0000.parquet", "all.parquet"])
def test_other_layouts(layout, tmp_path):
    path = tmp_path / "d" / layout
    path.parent.mkdir(parents=True)
    pq.write_table(hub_table(["b", "a", "b", "a", "a"]), path)
    data = load(tmp_path / "d", size=16)
    assert data.class_names == ["a", "b"]
    assert len(data.train) + len(data.test) == 5


def test_a_test_split_without_labels_is_left_out(hub):
    pq.write_table(hub_table([-1, -1], ["cat", "dog", "yak"]), hub / "data" / "test-00000-of-00001.parquet")
    data = load(hub, size=16)
    assert any("test files carry no labels" in note for note in data.notes)
    assert len(data.test) == 3


def test_mistakes_are_one_sentence(hub, tmp_path):
    with pytest.raises(InputError, match="column 'label' holds no images; those that do: image"):
        load(hub, image_column="label")
    with pytest.raises(InputError, match="no label column 'kind'"):
        load(hub, label_column="kind")
    bad = tmp_path / "bad.parquet"
    pq.write_table(hub_table([0, 3, 1], ["a", "b"]), bad)
    with pytest.raises(InputError, match="label 3 of train, row 1, is none of the 2 classes"):
        load(bad)
    pq.write_table(hub_table([0, None, 1]), bad)
    with pytest.raises(InputError, match=r"bad\.parquet, row 1: label None is neither"):
        load(bad)
    images = pa.array([{"bytes": None, "path": "http://x/1.png"}] * 4)
    pq.write_table(pa.table({"image": images, "label": [0, 0, 1, 1]}), bad)
    with pytest.raises(InputError, match=r"bad\.parquet, row \d: there are no bytes in this row"):
        load(bad)
    (hub / "data" / "more.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"more\.parquet is of no split"):
        load(hub)


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """One row group of 120 MB, as pyarrow writes by default: reading it at random stays far below that."""
    noise = np.random.RandomState(0).bytes(400_000)
    start = png(0)
    rows = [{"bytes": start + k.to_bytes(4, "big") + noise, "path": None} for k in range(300)]
    pq.write_table(pa.table({"image": pa.array(rows), "label": [k % 2 for k in range(300)]}), tmp_path / "big.parquet")
    script = textwrap.dedent(f"""
        from longtail.data.catalogue import read
        files = read({str(tmp_path / "big.parquet")!r}).train.inputs
        anonymous = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1])
        files.read(0)
        low = anonymous()
        for i in range(0, len(files), 7):
            data = files.read(len(files) - 1 - i)
            assert len(data) > 400_000
        print((anonymous() - low) // 1024)
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 40
