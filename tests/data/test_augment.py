"""Augmentation against plain loops and against Pillow."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from longtail.data import Files, Split, policy
from longtail.data.augment import (
    Augmentation,
    Cutout,
    Noise,
    ResizedCrop,
    TensorCrop,
    of_images,
    parse,
    steps_for_features,
    steps_for_images,
    stored_name,
)
from longtail.data.feeds import Job, TensorFeed
from longtail.errors import InputError


@pytest.fixture
def images():
    """Smooth and noisy, dark and flat ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (24, 3, 32, 32), generator=generator, dtype=torch.uint8)
    ramp = torch.arange(32, dtype=torch.uint8) * 8
    x[:6] = ramp.view(1, 1, 1, 32)
    x[6:12] = x[6:12] // 4 + ramp.view(1, 1, 32, 1) // 4 + 20
    x[12] = 77
    return x


def test_crop_flip_is_what_a_loop_does(images):
    step = TensorCrop(images)
    ids = torch.arange(24).flip(0)
    draw = step.draw(24, torch.Generator().manual_seed(1))
    got = step.take(ids, draw)
    for i, image in enumerate(images[ids].numpy()):
        padded = np.zeros((3, 40, 40), np.uint8)
        padded[:, 4:36, 4:36] = image[:, :, ::-1] if draw["flip"][i] else image
        top, left = draw["shift"][i].tolist()
        assert np.array_equal(got[i], padded[:, top : top + 32, left : left + 32])


def test_crop_flip_draws_every_window_and_both_sides(images):
    draw = TensorCrop(images).draw(20_000, torch.Generator().manual_seed(2))
    windows = torch.bincount(draw["shift"][:, 0] * 9 + draw["shift"][:, 1], minlength=81)
    assert len(windows) == 81
    assert bool(((windows - 247).abs() < 80).all())
    assert abs(float(draw["flip"].float().mean()) - 0.5) < 0.02


def test_crop_flip_of_images_that_are_not_square():
    x = torch.arange(2 * 1 * 5 * 9, dtype=torch.uint8).view(2, 1, 5, 9)
    still = {"shift": torch.full((2, 2), 4), "flip": torch.tensor([0, 1])}
    got = TensorCrop(x).take(torch.arange(2), still)
    assert torch.equal(got[0], x[0])
    assert torch.equal(got[1], x[1].flip(2))


def test_cutout_covers_a_clipped_square(images):
    step = Cutout(16, (1, 2, 3))
    draw = {"centre": torch.rand((24, 2), generator=torch.Generator().manual_seed(0))}
    draw["centre"][0] = torch.tensor([0.5, 0.0])
    got = step.apply(images, draw)
    for i in range(24):
        expected = images[i].clone()
        y, x = (int(c * 32) for c in draw["centre"][i])
        for row in range(max(y - 8, 0), min(y + 8, 32)):
            for column in range(max(x - 8, 0), min(x + 8, 32)):
                expected[:, row, column] = torch.tensor([1, 2, 3])
        assert torch.equal(got[i], expected)


def test_noise_scales_with_each_feature():
    inputs = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 50.0])
    (step,) = steps_for_features("auto", inputs, views=2)
    assert isinstance(step, Noise)
    added = step.apply(inputs, step.draw(4000, torch.Generator().manual_seed(0))) - inputs
    assert added.std(0).tolist() == pytest.approx([0.1, 5.0], rel=0.05)
    assert steps_for_features("auto", inputs, views=1) == []


def to_pil(x):
    return Image.fromarray(x.permute(1, 2, 0).numpy())


# What each operation means in Pillow at level l and sign s.
IN_PILLOW = {
    "brightness": lambda im, v, s: ImageEnhance.Brightness(im).enhance(1 + 0.9 * v * s),
    "color": lambda im, v, s: ImageEnhance.Color(im).enhance(1 + 0.9 * v * s),
    "contrast": lambda im, v, s: ImageEnhance.Contrast(im).enhance(1 + 0.9 * v * s),
    "sharpness": lambda im, v, s: ImageEnhance.Sharpness(im).enhance(1 + 0.9 * v * s),
    "posterize": lambda im, v, s: ImageOps.posterize(im, 8 - round(4 * v)),
    "solarize": lambda im, v, s: ImageOps.solarize(im, 256 * (1 - v)),
    "invert": lambda im, v, s: ImageOps.invert(im),
    "autocontrast": lambda im, v, s: ImageOps.autocontrast(im),
    "equalize": lambda im, v, s: ImageOps.equalize(im),
}


@pytest.mark.parametrize("name", IN_PILLOW)
def test_colour_operations_are_pillows(name, images):
    level = torch.linspace(0, 1, 24)
    sign = torch.tensor([1, -1] * 12)
    got = getattr(policy, name)(images, level, sign)
    for i in range(24):
        expected = np.asarray(IN_PILLOW[name](to_pil(images[i]), float(level[i]), int(sign[i])))
        difference = np.abs(got[i].permute(1, 2, 0).numpy().astype(int) - expected.astype(int))
        # float32 against double can tip a value over to the next level; nothing else may differ
        assert difference.max() <= 1, (i, difference.max())
        assert (difference > 0).mean() < 0.02


GEOMETRY = {
    "shear_x": lambda v, s: (1, 0.3 * v * s, 0, 0, 1, 0),
    "shear_y": lambda v, s: (1, 0, 0, 0.3 * v * s, 1, 0),
    "translate_x": lambda v, s: (1, 0, 150 / 331 * 32 * v * s, 0, 1, 0),
    "translate_y": lambda v, s: (1, 0, 0, 0, 1, 150 / 331 * 32 * v * s),
}


@pytest.mark.parametrize("name", [*GEOMETRY, "rotate"])
def test_geometry_is_pillows(name, images):
    level = torch.linspace(0, 1, 24)
    sign = torch.tensor([1, -1] * 12)
    got = getattr(policy, name)(images, level, sign)
    for i in range(24):
        v, s, grey = float(level[i]), int(sign[i]), (128,) * 3
        if name == "rotate":
            expected = to_pil(images[i]).rotate(30 * v * s, Image.Resampling.NEAREST, fillcolor=grey)
        else:
            how = Image.Transform.AFFINE, GEOMETRY[name](v, s), Image.Resampling.NEAREST
            expected = to_pil(images[i]).transform((32, 32), *how, fillcolor=grey)
        same = (got[i].permute(1, 2, 0).numpy() == np.asarray(expected)).all(2).mean()
        assert same > 0.95, (i, same)  # the rest sits on a pixel border, a line of 32 at some angles


@pytest.mark.parametrize("kind", [policy.AutoAugment, policy.RandAugment])
def test_policies_apply_each_drawn_operation_to_its_own_sample(kind, images):
    step = kind()
    draw = step.draw(24, torch.Generator().manual_seed(5))
    before = images.clone()
    got = step.apply(images, draw)
    assert torch.equal(images, before)
    for i in range(24):
        one = images[i : i + 1]
        for slot in range(2):
            code = int(draw["operation"][i, slot])
            if code != policy.NOTHING:
                one = policy.OPERATIONS[code](one, draw["level"][i : i + 1, slot], draw["sign"][i : i + 1, slot])
        assert torch.equal(got[i], one[0])
    assert not torch.equal(got, images)


def test_auto_augment_keeps_the_probabilities():
    draw = policy.AutoAugment().draw(50_000, torch.Generator().manual_seed(0))
    happened = float((draw["operation"] != policy.NOTHING).float().mean())
    chances = [step[1] for pair in policy.CIFAR_POLICY for step in pair]
    assert len(policy.CIFAR_POLICY) == 25
    assert happened == pytest.approx(sum(chances) / len(chances), abs=0.01)


def test_names():
    assert str(parse("autoaugment+cutout")) == "crop-flip+autoaugment+cutout"
    assert str(parse("none")) == "none"
    assert str(parse("crop+randaugment")) == "crop+randaugment"
    assert parse("resized-crop-flip:0.5") == Augmentation("resized-crop-flip", (), 0.5)
    kinds = [type(step).__name__ for step in steps_for_images(("autoaugment", "cutout"), (3, 32, 32), (0.5, 0.5, 0.5))]
    assert kinds == ["AutoAugment", "Cutout"]
    with pytest.raises(InputError, match="did you mean 'cutout'"):
        parse("cutuot")
    for wrong in ("resized-crop:0", "resized-crop:1.5", "resized-crop:", "resized-crop:nan", "crop:0.5"):
        with pytest.raises(
            InputError, match=r"resized-crop and cutmix take a number, a share in \(0, 1\], others none"
        ):
            parse(wrong)
    grey = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4).long(), torch.arange(4))
    with pytest.raises(InputError, match="needs images of 3 channels"):
        of_images("randaugment", grey)
    with pytest.raises(InputError, match="unknown augmentation of features 'cutout'"):
        steps_for_features("cutout", torch.zeros(2, 2), 1)


def test_a_sentence_says_what_is_done():
    assert "shifted by up to an eighth of its side, not mirrored (augment crop)" in parse("crop").sentence()
    assert (
        "50% to 100% of the area, resized, mirrored half of the time, then cutout"
        in parse("resized-crop-flip:0.5+cutout").sentence()
    )


def test_the_name_in_a_config_keeps_what_old_configs_say_and_spells_out_what_changed(images):
    memory = Split(images, torch.arange(24) % 2, torch.arange(24))
    listed = Split(Files(["a.png"], "."), torch.zeros(1).long(), torch.arange(1))
    own = replace(listed, augment="crop")
    assert [stored_name("auto", split) for split in (memory, listed, own)] == ["auto", "auto", "crop"]
    assert stored_name("autoaugment+cutout", memory) == "autoaugment+cutout"
    assert stored_name("autoaugment+cutmix", memory) == "crop-flip+autoaugment+cutmix:0.9"
    # It once mirrored: an unfinished run of then must not go on in silence
    assert stored_name("resized-crop", listed) == "resized-crop:0.08"


def test_a_crop_without_mirror_is_the_shifted_window(images):
    step = TensorCrop(images, 3, flip=False)
    draw = step.draw(24, torch.Generator().manual_seed(1))
    assert set(draw) == {"shift"}
    got = step.take(torch.arange(24), draw)
    padded = np.zeros((24, 3, 38, 38), np.uint8)
    padded[:, :, 3:35, 3:35] = images
    for i, (top, left) in enumerate(draw["shift"].tolist()):
        assert np.array_equal(got[i], padded[i, :, top : top + 32, left : left + 32])


@pytest.mark.parametrize("name", ["resized-crop:0.3", "resized-crop-flip:0.3"])
def test_resized_crops_in_memory_are_pillows(name, images):
    split = Split(images, torch.arange(24), torch.arange(24))
    feed = TensorFeed(split, name, 1, None, torch.device("cpu"))
    (draw,) = feed.draw(24, torch.Generator().manual_seed(5))
    assert float(draw["area"].min()) >= 0.3
    assert ("flip" in draw) == ("flip" in name)
    ids = torch.arange(24).flip(0)
    ((_, pixels),) = feed.batches(iter([Job(ids, ([draw],))]))
    for k, i in enumerate(ids):
        box = ResizedCrop.box(32, 32, *(draw[key][k].numpy() for key in ("area", "ratio", "place")))
        expected = to_pil(images[i]).crop(box).resize((32, 32), Image.Resampling.BILINEAR)
        if "flip" in draw and draw["flip"][k]:
            expected = ImageOps.mirror(expected)
        ours = pixels[k].permute(1, 2, 0).numpy()
        assert np.abs(ours - np.asarray(expected)).max() <= 1.01
