"""Files that are made to hurt: each ends in one sentence, soon."""

import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from longtail.data import Files, Loader, load
from longtail.data.catalogue import check
from longtail.errors import InputError
from small_images import save_image


def folder(path):
    for name in "ab":
        for k in range(5):
            save_image(path / name / f"{k}.png")
    return path


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(side=60_000):
    """A few bytes that claim 3,600,000,000 pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def jpeg_bomb():
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 60_000, 60_000)
    return bytes(data)


@pytest.mark.parametrize("bomb", [png_bomb(), png_bomb(13_000), jpeg_bomb()], ids=["png", "smaller png", "jpeg"])
def test_an_image_that_claims_too_many_pixels(bomb, tmp_path):
    path = folder(tmp_path / "d")
    for k in range(5):
        (path / "a" / f"{k}.png").write_bytes(bomb)
    with pytest.raises(InputError, match=r"test images cannot be read, such as .*it claims .* pixels"):
        load(path)
    found = check(str(path))
    assert len(found.bad) == 5
    with pytest.raises(InputError, match=r"is no readable image: it claims"):
        list(Loader(load_unchecked(path).train, 4).epoch(0))


def load_unchecked(path):
    from longtail.data.catalogue import read

    return read(path)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "too long", "nul", "surrogate"])
def test_a_csv_that_names_what_is_no_file(kind, tmp_path):
    if kind == "fifo":
        os.mkfifo(tmp_path / "pipe.png")
    name = {
        "fifo": "pipe.png", "device": "/dev/zero", "folder": ".", "too long": "x" * 5000, "nul": "a\0b.png",
        "surrogate": "\udcff.png",
    }[kind]  # fmt: skip
    rows = "".join(f"{name},{label}\n" for label in "aabb")
    path = tmp_path / "d.csv"
    path.write_text("image,label\n" + rows, "utf-8", "surrogateescape")
    with pytest.raises(InputError, match=r"(there is no image .{1,300}line 2|cannot be read as CSV)") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        list(Loader(load_unchecked(path).train, 2).epoch(0))


def test_a_pipe_later_in_the_list_does_not_hang(tmp_path):
    path = folder(tmp_path / "d")
    os.mkfifo(path / "pipe.png")
    files = Files(["a/0.png", "pipe.png"], path)
    with pytest.raises(InputError, match="a device or a pipe, not a file"):
        files.read(1)


def test_a_csv_that_is_a_device_or_pipe(tmp_path):
    os.mkfifo(tmp_path / "p.csv")
    (tmp_path / "z.npz").symlink_to("/dev/zero")
    for name in ("p.csv", "z.npz"):
        with pytest.raises(InputError, match="is neither a folder of class folders nor"):
            load(tmp_path / name)


@pytest.mark.parametrize("how", ["cut", "empty", "text"])
def test_a_broken_test_image_is_found_before_training(how, tmp_path):
    path = folder(tmp_path / "d" / "train").parent
    test = folder(tmp_path / "d" / "test")
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (99, 99, 3)).astype(np.uint8)).save(test / "a" / "0.jpg")
    whole = (test / "a" / "0.jpg").read_bytes()
    (test / "a" / "0.jpg").write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello"}[how])
    with pytest.raises(InputError, match=r"1 of 11 test images cannot be read, such as .*0\.jpg: .*data check"):
        load(path)


def test_a_good_image_with_something_behind_its_end_is_fine(tmp_path):
    """Cameras append things; the image decodes, and that decides."""
    path = folder(tmp_path / "d")
    for file in path.rglob("*.png"):
        file.write_bytes(file.read_bytes() + b"trailer")
    assert len(load(path).test) == 2


@pytest.mark.parametrize("name", ["moons"])
def test_sizes_that_do_not_fit_into_memory_are_refused_before_they_are_allocated(name):
    with pytest.raises(InputError, match=r"moons of n = 1,000,000,000,000 points would need .* GB of memory"):
        load(name, n=10**12)
    with pytest.raises(InputError, match="must be a whole number"):
        load(name, n=1e9)


def test_an_endless_side_is_refused(tmp_path):
    with pytest.raises(
        InputError, match="size must be a whole number of at least 1 and of at most 4096, got 1000000000"
    ):
        load(folder(tmp_path / "d"), size=10**9)


def test_an_npz_that_claims_more_than_there_is(tmp_path):
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 4)})
    for stored in (header.getvalue(), header.getvalue() + bytes(64)):
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.writestr("x.npy", stored)
            archive.writestr("y.npy", stored)
        with pytest.raises(InputError, match=r"f\.npz: it cannot be read: "):
            load(tmp_path / "f.npz")


def test_names_that_are_no_utf8_in_a_c_locale(tmp_path):
    path = folder(tmp_path / "d")
    raw = os.fsencode(path / "a") + b"/\xff\xfe.png"
    with open(raw, "wb") as file:
        file.write((path / "a" / "0.png").read_bytes())
    os.rename(os.fsencode(path / "b"), os.fsencode(path) + b"/caf\xe9")
    script = (
        "from longtail.data import load, Loader; d = load('d', size=16); "
        "print(d.class_names, sum(len(b.ids) for s in (d.train, d.test) for b in Loader(s, 3, train=False).epoch(0)))"
    )
    for environment in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        run = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert run.stdout.strip() == r"['a', 'caf\\xe9'] 11", run.stderr
