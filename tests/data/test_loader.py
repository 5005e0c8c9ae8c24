"""The loader: a pure function of (seed, epoch, batch), however it is cut."""

import pytest
import torch

from longtail.data import Loader, Split, load
from longtail.errors import InputError


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (300, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 5, (300,), generator=generator)
    return Split(x, y, torch.arange(300) + 1000, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def batches(split, size, epoch=0, start=0, **options):
    return list(Loader(split, size, **options).epoch(epoch, start))


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3]))


STRONG = {"augment": "autoaugment+cutout", "views": 2}


def test_same_seed_same_epoch_same_bits(images):
    loader = Loader(images, 64, seed=7, **STRONG)
    first = list(loader.epoch(3))
    list(loader.epoch(4))
    assert_same(first, list(loader.epoch(3)))
    assert_same(first, batches(images, 64, 3, seed=7, workers=2, **STRONG))


@pytest.mark.parametrize("change", [{"epoch": 4}, {"seed": 8}])
def test_other_epochs_and_seeds_differ(change, images):
    first = batches(images, 64, **{"epoch": 3, "seed": 7})
    other = batches(images, 64, **{"epoch": 3, "seed": 7} | change)
    assert not torch.equal(first[0].ids, other[0].ids)
    assert not torch.equal(first[0].inputs, other[0].inputs)


def test_augmentation_differs_between_epochs_even_for_the_same_sample(images):
    loader = Loader(images.take(torch.tensor([0])), 1)
    shown = {tuple(next(loader.epoch(e)).inputs.flatten().tolist()) for e in range(6)}
    assert len(shown) > 3


def test_start_skips_batches(images):
    whole = batches(images, 64, 2, seed=1, **STRONG)
    for start in range(len(whole) + 1):
        assert_same(whole[start:], batches(images, 64, 2, start, seed=1, **STRONG))


@pytest.mark.parametrize("sampler", ["instance", "balanced", "pairs"])
def test_two_ranks_see_what_one_process_sees(sampler, images):
    options = {"seed": 5, "sampler": sampler, **STRONG}
    one = batches(images, 64, 1, **options)
    ranks = [batches(images, 32, 1, rank=r, world_size=2, **options) for r in range(2)]
    assert len(one) == len(ranks[0]) == len(ranks[1])
    for whole, *parts in zip(one, *ranks):
        for view in range(2):
            together = torch.cat([part.inputs.view(2, 32, 3, 32, 32)[view] for part in parts])
            assert torch.equal(whole.inputs.view(2, 64, 3, 32, 32)[view], together)
        assert torch.equal(whole.ids[:64], torch.cat([part.ids[:32] for part in parts]))
        assert torch.equal(whole.labels[:64], torch.cat([part.labels[:32] for part in parts]))


def test_training_drops_an_incomplete_batch_unless_it_is_the_only_one(images):
    assert [len(b.ids) for b in batches(images, 128)] == [128, 128]
    assert [len(b.ids) for b in batches(images, 128, drop_last=False)] == [128, 128, 44]
    assert [len(b.ids) for b in batches(images, 1000)] == [300]
    both = [batches(images, 500, rank=r, world_size=2)[0].ids for r in range(2)]
    assert sorted(torch.cat(both).tolist()) == list(range(300))
    assert len(both[0]) == len(both[1]) == 150


def test_evaluation_is_in_order_whole_and_plain(images):
    loader = Loader(images, 128, train=False, views=2, rank=1, world_size=2)
    got = list(loader.epoch(0))
    assert len(loader) == 3
    assert torch.equal(torch.cat([b.ids for b in got]), torch.arange(300))
    assert torch.equal(torch.cat([b.labels for b in got]), images.labels)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (images.mean, images.std))
    expected = (images.inputs.float() / 255 - mean) / std
    torch.testing.assert_close(torch.cat([b.inputs for b in got]), expected, rtol=0, atol=1e-5)


def test_views_are_stacked_and_differ(images):
    batch = batches(images, 64, views=2)[0]
    assert batch.inputs.shape == (128, 3, 32, 32)
    assert torch.equal(batch.ids[:64], batch.ids[64:])
    assert torch.equal(batch.labels, images.labels[batch.ids])
    assert not torch.equal(batch.inputs[:64], batch.inputs[64:])


def test_ids_labels_and_inputs_belong_together(images):
    for batch in batches(images, 64, augment="none"):
        assert batch.inputs.dtype == torch.float32
        assert torch.equal(batch.labels, images.labels[batch.ids])
        first = images.inputs[batch.ids].float() / 255
        torch.testing.assert_close(batch.inputs[:, 0] * 0.2 + 0.5, first[:, 0], rtol=0, atol=1e-5)


def test_channels_last(images):
    batch = batches(images, 64, channels_last=True)[0]
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.inputs, batches(images, 64)[0].inputs)


def test_features_stay_as_they_are_in_one_view_and_get_noise_in_two():
    split = load("digits-lt").train
    for batch in batches(split, 32):
        assert torch.equal(batch.inputs, split.inputs[batch.ids])
    noisy = batches(split, 32, views=2)[0]
    assert not torch.equal(noisy.inputs[:32], noisy.inputs[32:])
    assert float((noisy.inputs[:32] - split.inputs[noisy.ids[:32]]).abs().max()) < 0.5


def test_batches_are_the_callers_own(images):
    before = images.inputs.clone()
    split = Split(torch.rand(10, 3), torch.zeros(10, dtype=torch.long), torch.arange(10))
    kept = split.inputs.clone()
    for data in (images, split):
        for batch in batches(data, 5, train=False):
            batch.inputs.zero_()
    assert torch.equal(images.inputs, before)
    assert torch.equal(split.inputs, kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 8, "views": 0}, "views must be"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"batch_size": 8, "augment": "corp"}, "unknown augmentation of images 'corp': did you mean 'crop'"),
        ({"batch_size": 8, "world_size": 301}, "300 samples cannot be cut over 301 ranks"),
    ],
)
def test_mistakes(options, message, images):
    with pytest.raises(InputError, match=message):
        Loader(images, **options)
