"""CutMix: its pixels against a plain loop, its statistics, and that bits depend on (seed, epoch, batch) alone."""

import numpy as np
import pytest
import torch
from PIL import Image

from longtail import ClassCounts
from longtail.data import Loader, Split, cutmix, load
from longtail.data.samplers import ByClass
from longtail.errors import InputError

SIZES = (120, 30, 6)


def split(kind=3):
    """Long-tailed images whose every pixel is the number of the image."""
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, kind, 8, 8).contiguous()
    return Split(images, labels, torch.arange(len(labels)))


def test_a_mixed_sample_is_two_images_and_their_shares():
    data = split()
    mixed = 0
    for batch in Loader(data, 39, augment="none+cutmix", seed=3, epochs=2).epoch(0):
        numbers = (batch.inputs * 255).round().long()[:, 0]
        for k, image in enumerate(numbers):
            target = torch.zeros(3)
            for number in image.flatten():
                target[data.labels[number]] += 1 / 64
            assert torch.allclose(batch.targets[k], target, atol=1e-6)
            inside = image != batch.ids[k]
            if not inside.any():
                assert float(batch.targets[k].max()) == 1
                continue
            mixed += 1
            rows, columns = inside.any(1), inside.any(0)
            assert torch.equal(inside, rows[:, None] & columns)  # a rectangle
            assert len(image[inside].unique()) == 1
            assert float(batch.targets[k].max()) < 1
            assert data.labels[image[inside][0]] != batch.labels[k]
    assert 30 < mixed < 90


def test_foregrounds_are_drawn_evenly_over_classes_and_half_of_the_samples_are_mixed():
    data = split()
    by_class = ByClass(data.labels, 3)
    background = torch.zeros(30_000, dtype=torch.long)
    drawn = cutmix.draw(background, by_class, torch.Generator().manual_seed(0))
    shares = torch.bincount(data.labels[drawn["foreground"]]) / 30_000
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    # Of the other two thirds, half
    assert float(drawn["mixed"].float().mean()) == pytest.approx(1 / 3, abs=0.01)
    assert float(drawn["share"].mean()) == pytest.approx(0.5, abs=0.01)
    assert not (data.labels[drawn["foreground"][drawn["mixed"]]] == 0).any()


def test_it_ends_before_training_does():
    def mixes(epochs, name):
        loader = Loader(split(), 52, augment=name, epochs=epochs)
        return [next(loader.epoch(e)).targets is not None for e in range(epochs)]

    assert mixes(10, "crop+cutmix") == [True] * 9 + [False]
    assert mixes(10, "crop+cutmix:0.5") == [True] * 5 + [False] * 5
    assert mixes(2, "crop+cutmix:1") == [True, True]
    assert next(Loader(split(), 52, train=False).epoch(0)).targets is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos")
    for k in range(24):
        target = path / "abc"[k % 3] / f"{k}.png"
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.RandomState(k).randint(0, 256, (20, 24, 3)).astype(np.uint8)).save(target)
    return path


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_ranks_workers_and_a_later_start_see_the_same(kind, folder):
    data = split() if kind == "memory" else load(folder, size=16).train
    options = {"augment": "crop-flip+autoaugment+cutmix", "seed": 5, "epochs": 4}
    whole = list(Loader(data, 6, **options).epoch(1))
    assert all(torch.equal(a.targets, b.targets) and torch.equal(a.inputs, b.inputs)
               for a, b in zip(whole[1:], Loader(data, 6, **options).epoch(1, start=1), strict=True))  # fmt: skip
    ranks = [list(Loader(data, 3, rank=r, world_size=2, **options).epoch(1)) for r in (0, 1)]
    for one, *parts in zip(whole, *ranks, strict=True):
        for field in ("inputs", "labels", "ids", "targets"):
            assert torch.equal(getattr(one, field), torch.cat([getattr(part, field) for part in parts]))
    if kind == "files":
        for a, b in zip(whole, Loader(data, 6, workers=2, **options).epoch(1), strict=True):
            assert torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.targets, b.targets)


def test_classes_that_the_split_lacks_have_a_column(folder):
    batch = next(Loader(split(), 10, augment="none+cutmix", counts=ClassCounts([120, 30, 6, 0, 0])).epoch(0))
    assert batch.targets.shape == (10, 5)


def test_views_and_features_know_no_cutmix():
    with pytest.raises(InputError, match="cutmix mixes labels, which a method with 2 views"):
        Loader(split(), 10, augment="crop+cutmix", views=2)
    with pytest.raises(InputError, match=r"unknown augmentation of images 'cutmix:0\.5'"):
        Loader(split(), 10, augment="cutmix:0.5+cutout")
    with pytest.raises(InputError, match="unknown augmentation of features 'cutmix'"):
        Loader(load("moons").train, 10, augment="cutmix")
