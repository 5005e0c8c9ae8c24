"""Embedding with a cache: real image files, real processes, a real kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import load
from longtail.embed import cache_folder, embed
from longtail.errors import InputError
from longtail.models import pretrained

FACTORY = """
import os, time, torch
from torch import nn

class Net(nn.Module):
    preprocessing = {"size": 8, "short": 9}
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(192, 5)
    def forward(self, x):
        time.sleep(float(os.environ.get("TEST_SLOW", 0)))
        return self.linear(x.flatten(1))

def make():
    return Net(0)

def other():
    return Net(1)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a backbone of our own, and a cache of its own."""
    (tmp_path / "embed_backbone_module.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def photos(root, sizes, val=0):
    """Class folders of noise with a colour for each class, as PNG, of several sizes."""
    rng = np.random.default_rng(0)
    for part, counts in {"train": sizes, "val": [val] * len(sizes) * bool(val), "test": [3] * len(sizes)}.items():
        for c, n in enumerate(counts):
            folder = root / part / f"class {c}"
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 200, (10 + i % 3, 12, 3), dtype=np.uint8)
                pixels[:, :, c % 3] += 50
                Image.fromarray(pixels).save(folder / f"{i}é.png")
    return root


def backbone(name="make"):
    return pretrained.load(f"embed_backbone_module:{name}")


def test_embeddings_are_the_backbones_in_the_order_of_the_splits(here):
    data = load(photos(here / "photos", [20, 6, 3], val=2))
    net = backbone()
    result = embed(data, net, batch_size=4)
    assert result.computed == 29 + 6 + 9
    for old, new in ((data.train, result.data.train), (data.val, result.data.val), (data.test, result.data.test)):
        x = torch.stack([net.preprocessing.pixels(np.array(Image.open(path))) for path in old.inputs])
        with torch.no_grad():
            torch.testing.assert_close(new.inputs, net(net.preprocessing.normalise(x)), rtol=0, atol=1e-6)
        assert torch.equal(new.labels, old.labels)
        assert torch.equal(new.indices, old.indices)
    assert result.data.kind == "features"
    assert result.data.counts.n.tolist() == [20, 6, 3]


def test_images_in_parquet_are_embedded_as_files_are(here):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    plain = load(photos(here / "photos", [5, 4, 3]))
    (here / "hub").mkdir()
    for split in (plain.train, plain.test):
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in split.inputs]
        name = "train-0" if split is plain.train else "test-0"
        table = pa.table({"image": images, "label": split.labels.tolist()})
        pq.write_table(table, here / "hub" / f"{name}.parquet", row_group_size=4)
    ours = embed(load(here / "hub"), backbone())
    theirs = embed(plain, backbone())
    for ours_of, theirs_of in ((ours.data.train, theirs.data.train), (ours.data.test, theirs.data.test)):
        torch.testing.assert_close(ours_of.inputs, theirs_of.inputs, rtol=0, atol=1e-6)
    assert embed(load(here / "hub"), backbone()).computed == 0
    os.utime(here / "hub" / "train-0.parquet", (1, 1))
    assert embed(load(here / "hub"), backbone()).computed == 21


def test_the_file_reads_back_as_the_same_splits(here):
    data = load(photos(here / "photos", [20, 6, 3], val=2))
    result = embed(data, backbone())
    result.save(here / "deep" / "features.npz")
    back = load(here / "deep" / "features.npz")
    for name in ("train", "val", "test"):
        old, new = getattr(result.data, name), getattr(back, name)
        assert torch.equal(old.inputs, new.inputs)
        assert torch.equal(old.labels, new.labels)
    assert back.class_names == data.class_names == ["class 0", "class 1", "class 2"]
    with np.load(here / "deep" / "features.npz") as content:
        assert [p.decode() for p in content["paths_test"]] == data.test.inputs.names()
        assert "embed_backbone_module:make" in str(content["backbone"])


def test_what_was_embedded_once_is_not_embedded_again(here):
    where = photos(here / "photos", [20, 6, 4])
    data = load(where)
    first = embed(data, backbone())
    assert embed(data, backbone()).computed == 0
    # Nor where the same images are split otherwise
    other = embed(load(where, holdout=0.25), backbone())
    assert (other.computed, len(other.data.val)) == (0, 8)
    found = {row: i for i, row in enumerate(data.train.inputs.names())}
    same = [found[name] for name in other.paths["val"]]
    assert torch.equal(other.data.val.inputs, first.data.train.inputs[same])


def test_other_weights_other_pixels_and_other_preprocessing_are_other_embeddings(here):
    where = photos(here / "photos", [5, 4])
    data = load(where)
    first = embed(data, backbone())
    assert embed(data, backbone("other")).computed == 15
    changed = backbone()
    changed.preprocessing = pretrained.Preprocessing(8, 8)
    assert embed(data, changed).computed == 15
    file = data.train.inputs[0]
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(file)
    again = embed(data, backbone())
    assert again.computed == 15
    assert not torch.equal(again.data.train.inputs[0], first.data.train.inputs[0])
    assert torch.equal(again.data.train.inputs[1:], first.data.train.inputs[1:])


def test_a_broken_file_of_the_cache_is_made_again(here):
    data = load(photos(here / "photos", [5, 4]))
    first = embed(data, backbone())
    [shard] = first.folder.glob("*.npy")
    whole = shard.read_bytes()
    for damage in (
        lambda: shard.write_bytes(whole[:-8]),
        lambda: np.save(shard, np.full_like(np.load(shard), np.nan)),
        lambda: (shard.unlink(), os.mkfifo(shard)),
        lambda: (shard.unlink(), shard.symlink_to("/dev/zero")),
        lambda: shard.write_bytes(whole.replace(b"(15, 5)", b"(10**12, 5)"[:7])),
    ):
        damage()
        again = embed(data, backbone())
        assert again.computed == 15
        assert torch.equal(again.data.test.inputs, first.data.test.inputs)
        assert shard.is_file()
        assert not shard.is_symlink()


def test_workers_change_nothing(here):
    data = load(photos(here / "photos", [20, 6]))
    here_only = embed(data, backbone(), workers=0, cache=here / "a", batch_size=4)
    with_two = embed(data, backbone(), workers=2, cache=here / "b", batch_size=4)
    assert torch.equal(here_only.data.train.inputs, with_two.data.train.inputs)


def test_views_are_other_crops_of_the_training_images_and_the_same_each_time(here):
    data = load(photos(here / "photos", [6, 4]))
    plain = embed(data, backbone())
    seen = embed(data, backbone(), views=2)
    assert seen.computed == 2 * 10
    assert seen.views.shape == (10, 2, 5)
    assert torch.equal(seen.data.train.inputs, plain.data.train.inputs)
    assert not torch.equal(seen.views[:, 0], seen.views[:, 1])
    assert torch.equal(embed(data, backbone(), views=2, cache=here / "fresh").views, seen.views)
    assert embed(data, backbone(), views=1).computed == 0
    straight = embed(data, backbone(), views=1, flip=False)
    assert straight.computed == 10
    mirrored = (straight.views[:, 0] - seen.views[:, 0]).abs().amax(1) > 1e-6
    assert 0 < int(mirrored.sum()) < 10


def test_data_in_memory_is_embedded_too(here):
    from longtail.data.dataset import Dataset, Split

    def split(n):
        return Split(torch.randint(0, 256, (n, 1, 12, 12), dtype=torch.uint8), torch.arange(n) % 2, torch.arange(n))

    data = Dataset("grey", split(6), None, split(4), ["a", "b"], "f")
    result = embed(data, backbone())
    assert result.data.train.inputs.shape == (6, 5)
    assert result.paths == {}
    assert embed(data, backbone()).computed == 0


def test_mistakes_are_one_sentence(here):
    with pytest.raises(InputError, match="holds features already"):
        embed(load("moons"), backbone())
    data = load(photos(here / "photos", [5, 4]))
    data.test.inputs[0].write_bytes(b"no image")
    with pytest.raises(InputError, match="is no readable image"):
        embed(data, backbone())
    data.test.inputs[0].unlink()
    with pytest.raises(InputError, match="there is no image"):
        embed(data, backbone())


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", "/mine")
    assert cache_folder() == Path("/mine")
    monkeypatch.delenv("LONGTAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/longtail")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "longtail"


def command(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "longtail", "embed", "photos", "--backbone", "embed_backbone_module:make", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_killed_command_goes_on_where_it_was(here, longtail):
    photos(here / "photos", [500, 40])
    killed = command("--batch-size", "8", "--workers", "0", TEST_SLOW="0.02")
    deadline = time.monotonic() + 120
    while not list(here.glob("cache/embeddings/*/all-00000.npy")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (here / "features.npz").exists()
    code, out, err = longtail("embed", "photos", "--backbone", "embed_backbone_module:make")
    assert code == 0, err
    assert "546 × 5 features of 2 classes by embed_backbone_module:make" in out
    assert "34 images in" in out  # of 546, 512 were kept
    _, out, _ = longtail("embed", "photos", "--backbone", "embed_backbone_module:make", "--out", "again.npz")
    assert "all from the cache" in out
    with np.load("features.npz") as one, np.load("again.npz") as two:
        assert all(np.array_equal(one[key], two[key]) for key in one.files)


def test_the_command_says_a_mistake_in_one_sentence(here, longtail):
    photos(here / "photos", [3, 3])
    code, _, err = longtail("embed", "photos", "--backbone", "embed_backbone_module:make", "--out", "features.csv")
    assert (code, err.strip()) == (2, "longtail: a file of embeddings must end in .npz, got 'features.csv'")
