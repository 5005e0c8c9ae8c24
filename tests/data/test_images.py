"""Image files: decoding, crops, workers, and what happens when one is broken or the reader stops."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import Files, Loader, Split, images, load
from longtail.data.augment import ResizedCrop
from longtail.data.catalogue import read
from longtail.data.feeds import Reader
from longtail.errors import InputError
from longtail.models.pretrained import Preprocessing
from small_images import save_image


def picture(width, height, seed=0):
    """Something with structure: a few waves of colour."""
    rng = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width] / 40
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.rand(3, 3) * 3]
    return Image.fromarray((np.stack(waves, 2) * 100 + 128).astype(np.uint8))


def encoded(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    for k in range(24):
        target = path / f"class{k % 3}" / f"{k:02}.{'png' if k % 5 == 0 else 'jpg'}"
        target.parent.mkdir(exist_ok=True)
        picture(80 + 7 * k, 120 - 2 * k, k).save(target)
    return path


def all_batches(split, epoch=0, **options):
    return list(Loader(split, 4, seed=3, **options).epoch(epoch))


def test_bits_do_not_depend_on_workers(folder):
    train = load(folder, size=32).train
    plain = all_batches(train, views=2)
    assert plain[0].inputs.shape == (8, 3, 32, 32)
    assert plain[0].inputs.is_contiguous()
    for workers in (1, 2):
        other = all_batches(train, views=2, workers=workers)
        assert len(other) == len(plain)
        for a, b in zip(plain, other):
            assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3]))
    other = all_batches(train, 1, views=2)
    assert not torch.equal(other[0].inputs, plain[0].inputs)


def test_two_ranks_see_what_one_process_sees(folder):
    train = load(folder, size=32).train
    one = list(Loader(train, 8, seed=3).epoch(2, start=1))
    ranks = [list(Loader(train, 4, seed=3, rank=r, world_size=2).epoch(2, start=1)) for r in range(2)]
    for whole, *parts in zip(one, *ranks, strict=True):
        assert torch.equal(whole.inputs, torch.cat([part.inputs for part in parts]))
        assert torch.equal(whole.ids, torch.cat([part.ids for part in parts]))


def test_evaluation_is_resize_and_centre_crop(folder):
    data = load(folder, size=64)
    got = torch.cat([b.inputs for b in Loader(data.train, 5, train=False).epoch(0)])
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.train.mean, data.train.std))
    for i, path in enumerate(data.train.inputs):
        image = Image.open(path).convert("RGB")
        width, height = (int(side * 73 / min(image.size)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - 64) // 2, (height - 64) // 2
        expected = np.asarray(image.crop((left, top, left + 64, top + 64)), dtype=float)
        ours = ((got[i] * std + mean) * 255).permute(1, 2, 0).numpy()
        assert np.abs(ours - expected).max() < 2.1  # rounding of two resizing kernels


def test_training_crop_is_the_drawn_box(tmp_path):
    image = picture(200, 150)
    image.save(tmp_path / "a.png")
    reader = Reader(Files(["a.png"], tmp_path, size=48), ResizedCrop())
    draw = {key: value[0].numpy() for key, value in ResizedCrop().draw(1, torch.Generator().manual_seed(1)).items()}
    draw["flip"] = 1
    (square,) = reader.read(0, [draw])
    box = ResizedCrop.box(200, 150, draw["area"], draw["ratio"], draw["place"])
    expected = image.crop(box).resize((48, 48), Image.Resampling.BILINEAR).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    difference = np.abs(square.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected).astype(int))
    assert difference.max() <= 2


def test_boxes_have_the_right_areas_and_shapes():
    draw = ResizedCrop().draw(3000, torch.Generator().manual_seed(0))
    area, ratio, place = (draw[key].numpy() for key in ("area", "ratio", "place"))
    shares, shapes = [], []
    for i in range(3000):
        left, top, right, bottom = ResizedCrop.box(500, 400, area[i], ratio[i], place[i])
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 400
        shares.append((right - left) * (bottom - top) / 200_000)
        shapes.append((right - left) / (bottom - top))
    assert min(shares) > 0.075
    assert max(shares) > 0.9
    assert min(shapes) == pytest.approx(3 / 4, abs=0.02)
    assert max(shapes) == pytest.approx(4 / 3, abs=0.02)
    # nothing fits into a strip: the middle of it, as large as a shape of 4:3 allows
    strip = ResizedCrop.box(1000, 30, np.ones(10), np.ones(10), np.zeros(2))
    assert strip == (480, 0, 520, 30)


def test_large_jpegs_are_decoded_small():
    opened = images.open_image(encoded(picture(1600, 1200)))
    assert opened.pixels(4).shape == (300, 400, 3)
    opened = images.open_image(encoded(picture(1600, 1200)))
    whole = images.open_image(encoded(picture(1600, 1200))).pixels(1)
    exact = images.resize(whole, (256, 341))[:, 16:240, 58:282].int()
    assert (images.centre(opened, Preprocessing(224, 256)).int() - exact).abs().float().mean() < 2
    assert [images.reduction(have, 100) for have in (50, 199, 200, 400, 799, 800, 9999)] == [1, 1, 2, 4, 4, 8, 8]


def test_simplejpeg_gives_the_pixels_that_pillow_gives():
    pytest.importorskip("simplejpeg")
    for data in (encoded(picture(333, 251)), encoded(picture(97, 401).convert("L"))):
        for reduce in (1, 2, 4):
            fast, plain = images.open_simplejpeg(data), images.open_pillow(data)
            assert (fast.width, fast.height) == (plain.width, plain.height)
            assert np.array_equal(fast.pixels(reduce), plain.pixels(reduce))
            box = (3, 5, 90, 171)
            assert np.array_equal(fast.pixels(reduce, box), plain.pixels(reduce, box))
            assert np.array_equal(fast.pixels(reduce, box), images.open_pillow(data).pixels(reduce, box))
    assert images.open_simplejpeg(encoded(picture(50, 50).convert("CMYK"))) is None


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_colour_mode_becomes_rgb(mode):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    opened = images.open_image(encoded(picture(30, 20).convert(mode), kind))
    assert opened.pixels(1).shape == (20, 30, 3)


BROKEN = {
    "nothing": b"",
    "text": b"this is a text, not an image",
    "cut off": encoded(picture(100, 80))[:900],
    "header only": encoded(picture(100, 80), "PNG")[:40],
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_does_not_decode_is_named(how, workers, tmp_path):
    for name in ("a", "b"):
        save_image(tmp_path / name / "1.png")
        save_image(tmp_path / name / "2.png")
    (tmp_path / "b" / "3.png").write_bytes(BROKEN[how])
    rows = "".join(f"{name}/{k}.png,{name}\n" for name in "ab" for k in (1, 2)) + "b/3.png,b\n"
    (tmp_path / "d.csv").write_text("image,label\n" + rows)
    data = read(tmp_path / "d.csv", profile=None, test_share=0.1, size=16)
    split = data.train if "b/3.png" in data.train.inputs.names() else data.test
    with pytest.raises(InputError, match=r"b.3\.png \(.*d\.csv, line 6\) is no readable image: ") as caught:
        list(Loader(split, 2, train=False, workers=workers).epoch(0))
    assert "\n" not in str(caught.value)
    assert wait_for_no_children()


def test_a_missing_image_is_named(tmp_path):
    split = Split(Files(["gone.jpg"], tmp_path), torch.zeros(1, dtype=torch.long), torch.arange(1))
    with pytest.raises(InputError, match=r"there is no image .*gone\.jpg"):
        list(Loader(split, 1).epoch(0))


def wait_for_no_children(seconds=10):
    deadline = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not multiprocessing.active_children()


@pytest.mark.parametrize("how", ["break", "exception", "interrupt"])
def test_workers_end_when_the_caller_stops(how, folder):
    train = load(folder, size=32).train
    problem = {"exception": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)

    def use():
        for _ in Loader(train, 2, workers=2).epoch(0):
            assert multiprocessing.active_children()
            if problem:
                raise problem
            break

    if problem:
        with pytest.raises(problem):
            use()
    else:
        use()
    assert wait_for_no_children()


def test_workers_can_be_spawned(folder, tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing
        import torch
        from longtail.data import Loader, load

        if __name__ == "__main__":
            multiprocessing.set_start_method("spawn")
            train = load({str(folder)!r}, size=32).train
            pairs = [list(Loader(train, 8, workers=w).epoch(0)) for w in (0, 1)]
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(*pairs))
            print("same")
        """)
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "same", run.stderr


def pixels_of(batch, split):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (split.mean, split.std))
    return ((batch.inputs * std + mean) * 255).round().to(torch.uint8)


def whole_batch(split, **options):
    (batch,) = Loader(split, len(split), seed=3, **options).epoch(0)
    return batch, pixels_of(batch, split)


def test_files_without_augmentation_are_as_in_evaluation(folder):
    train = load(folder, size=32).train
    batch, pixels = whole_batch(train, augment="none")
    (plain,) = Loader(train, len(train), train=False).epoch(0)
    assert torch.equal(pixels, pixels_of(plain, train)[batch.ids])


@pytest.mark.parametrize("name", ["crop", "crop-flip"])
def test_a_crop_of_a_file_is_the_middle_shifted_by_up_to_an_eighth(name, folder):
    train = load(folder, size=32).train
    batch, pixels = whole_batch(train, augment=name)
    shifts, flips = set(), 0
    for i, got in zip(batch.ids, pixels):
        image = images.open_image(train.inputs.read(int(i)))
        short = min(image.width, image.height)
        shape = (37 * image.height // short, 37 * image.width // short)
        whole = images.resize(image.pixels(images.reduction(short, 37)), shape)
        black = torch.nn.functional.pad(whole, (8, 8, 8, 8))
        top, left = ((side - 32) // 2 + 8 for side in whole.shape[1:])
        windows = {(y, x): black[:, top + y : top + y + 32, left + x : left + x + 32]
                   for y in range(-4, 5) for x in range(-4, 5)}  # fmt: skip
        found = [(at, flip) for at, w in windows.items() for flip in (0, 1)
                 if torch.equal(w.flip(2) if flip else w, got)]  # fmt: skip
        assert found, int(i)
        shifts.add(found[0][0])
        flips += found[0][1]
    assert len(shifts) > 5
    assert (flips > 0) == (name == "crop-flip")


def test_somebodys_own_images_are_cropped_and_not_mirrored_unless_asked(folder, tmp_path):
    train = load(folder, size=32).train
    assert torch.equal(whole_batch(train)[1], whole_batch(train, augment="crop")[1])
    rows = "".join(f"{name},{name.split('/')[0]}\n" for name in train.inputs.names())
    (folder / "list.csv").write_text("image,label\n" + rows)
    assert load(folder / "list.csv").train.augment == "crop"


@pytest.mark.parametrize("workers", [0, 2])
def test_policies_on_files_are_those_in_memory(workers, folder):
    """The pixels of `none`, taken as a data set in memory, get the same random numbers and become the same images."""
    train = load(folder, size=32).train
    plain = torch.cat([pixels_of(b, train) for b in Loader(train, 5, train=False).epoch(0)])
    memory = Split(plain, train.labels, train.indices, train.mean, train.std)
    for name in ("none+autoaugment+cutout", "none+randaugment"):
        pairs = zip(all_batches(train, augment=name, workers=workers), all_batches(memory, augment=name), strict=True)
        assert all(torch.equal(a.inputs, b.inputs) for a, b in pairs)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind):
    grey = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    opened = images.open_image(encoded(Image.fromarray(grey), kind))
    assert (opened.pixels(1) == (grey >> 8)[:, :, None]).all()
    assert (opened.pixels(1, (2, 3, 6, 8)) == (grey >> 8)[3:8, 2:6, None]).all()


def test_pixels_of_unknown_range_are_refused(tmp_path):
    path = tmp_path / "f.tif"
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(path)
    split = Split(Files([path.name], tmp_path, 8), torch.zeros(1).long(), torch.zeros(1).long())
    with pytest.raises(InputError, match=r"f\.tif is no readable image: its pixels have 32 bits"):
        next(Loader(split, 1, train=False).epoch(0))


def test_workers_outlive_a_signal_to_the_whole_group(tmp_path):
    """Ctrl-C and a scheduler's SIGTERM reach them too, and the main process still has a step to finish."""
    save_image(tmp_path / "a.png")
    split = Split(Files(["a.png"] * 40, tmp_path, 8), torch.zeros(40).long(), torch.arange(40))
    before = set(multiprocessing.active_children())
    seen = 0
    for batch in Loader(split, 1, workers=2).epoch(0):
        seen += len(batch.labels)
        if seen == 2:
            for child in set(multiprocessing.active_children()) - before:
                os.kill(child.pid, signal.SIGINT)
                os.kill(child.pid, signal.SIGTERM)
    assert seen == 40
