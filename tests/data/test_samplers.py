"""Samplers: shares, coverage, and partners."""

import pytest
import torch

from longtail import ClassCounts
from longtail.data import Loader, Split, samplers
from longtail.errors import InputError

COUNTS = [200, 100, 0, 51, 7, 3, 2, 1, 1, 1]


def make_split(counts=COUNTS):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return Split(torch.arange(len(labels)).float()[:, None], labels, torch.arange(len(labels)))


def shares(sampler, epoch=0, epochs=None, draws=60):
    split = make_split()
    loader = Loader(split, 32, sampler=sampler, epochs=epochs)
    order = torch.cat([split.labels[Loader(split, 32, seed=s, sampler=sampler, epochs=epochs).order(epoch)]
                       for s in range(draws)])  # fmt: skip
    assert len(loader.order(0)) == len(split)
    return (torch.bincount(order, minlength=10).double() / len(order)).tolist()


def test_instance_is_a_permutation():
    split = make_split()
    for e in range(3):
        assert sorted(Loader(split, 32).order(e).tolist()) == list(range(len(split)))


def test_balanced_shares():
    assert shares("balanced") == pytest.approx([1 / 9, 1 / 9, 0, *[1 / 9] * 7], abs=0.01)


def test_square_root_shares():
    root = torch.tensor(COUNTS).sqrt()
    assert shares("sqrt") == pytest.approx((root / root.sum()).tolist(), abs=0.01)


def test_progressive_goes_from_instance_to_balanced():
    n = torch.tensor(COUNTS).double()
    instance, balanced = n / n.sum(), (n > 0).double() / 9
    for epoch, t in ((0, 0.0), (2, 0.5), (4, 1.0), (9, 1.0)):
        expected = (1 - t) * instance + t * balanced
        assert shares("progressive", epoch, epochs=5) == pytest.approx(expected.tolist(), abs=0.01)


def test_draws_reach_every_member_of_a_class():
    by_class = samplers.ByClass(torch.tensor([0, 1, 0, 1, 1]), 3)
    drawn = by_class.draw(torch.tensor([0.0, 1.0, 0.0]), 500, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {1, 3, 4}


@pytest.mark.parametrize("counts", [COUNTS, [5, 5, 5], [2, 2], [9, 1], [1, 1, 1], [64, 63, 62], [3]])
def test_pairs_have_partners_and_cover_everything(counts):
    split = make_split(counts)
    n = torch.tensor(counts)
    loader = Loader(split, 8, sampler="pairs", drop_last=False)
    for e in range(3):
        seen = []
        for batch in loader.epoch(e):
            for i, label in zip(batch.ids.tolist(), batch.labels.tolist()):
                others = batch.ids[(batch.labels == label) & (batch.ids != i)]
                assert n[label] == 1 or len(others) > 0
            seen += batch.ids.tolist()
        assert set(seen) == set(range(len(split)))
        assert len(seen) == samplers.length("pairs", samplers.ByClass(split.labels, len(counts)))
        assert len(seen) - len(split) <= int((n % 2).sum())  # one repetition for a class of odd size, at most


def test_pairs_differ_between_epochs():
    loader = Loader(make_split(), 8, sampler="pairs")
    assert not torch.equal(loader.order(0), loader.order(1))


def test_pairs_stay_together_over_ranks():
    split = make_split()
    for rank in range(2):
        for batch in Loader(split, 8, sampler="pairs", rank=rank, world_size=2).epoch(0):
            first, second = batch.labels.view(-1, 2).unbind(1)
            alone = torch.tensor(COUNTS)[first] == 1
            assert bool(((first == second) | alone).all())


def test_mistakes():
    split = make_split()
    with pytest.raises(InputError, match="even batch size, got 7"):
        Loader(split, 7, sampler="pairs")
    with pytest.raises(InputError, match="epochs of the progressive sampler must be"):
        Loader(split, 8, sampler="progressive")
    with pytest.raises(InputError, match="unknown sampler 'ballanced': did you mean 'balanced'"):
        Loader(split, 8, sampler="ballanced")


def test_counts_may_name_more_classes_than_the_split_has():
    split = make_split([3, 2])
    loader = Loader(split, 2, sampler="balanced", counts=ClassCounts([3, 2, 0, 0]))
    assert set(loader.order(0).tolist()) <= set(range(5))
