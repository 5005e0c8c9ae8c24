"""ClassCounts: from anything that has labels, with zero-count classes, and with errors that name the value."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from longtail import ClassCounts
from longtail.errors import InputError


class Pairs(Dataset):
    """A dataset of nothing but (input, label) pairs."""

    def __init__(self, labels: list) -> None:
        self.pairs = [(torch.zeros(2), y) for y in labels]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple:
        return self.pairs[i]


class Targeted(Dataset):
    """As torchvision's: `targets` and `classes`; samples must not be read."""

    classes = ("a", "b", "c", "d")

    def __init__(self, targets: list) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple:
        raise AssertionError("the labels are known: no sample need be read")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_counts_what_there_is(labels: list[int]) -> None:
    expected = [labels.count(c) for c in range(8)]
    for given_as in (labels, tuple(labels), np.array(labels), np.array(labels, dtype=np.uint8), torch.tensor(labels)):
        assert ClassCounts.from_labels(given_as, num_classes=8).n.tolist() == expected
    assert ClassCounts.from_labels(iter(labels)).n.tolist() == expected[: max(labels) + 1]


@pytest.mark.parametrize(
    "counts",
    [
        [3, 0, 1],
        (3, 0, 1),
        np.array([3, 0, 1]),
        np.array([3.0, 0, 1]),
        torch.tensor([3, 0, 1]),
        torch.tensor([3, 0, 1], dtype=torch.uint8),
        ClassCounts([3, 0, 1]),
    ],
)
def test_from_counts_of_any_kind(counts: object) -> None:
    made = ClassCounts(counts)
    assert made == ClassCounts([3, 0, 1])
    assert made.n.dtype == torch.int64
    assert made.prior.dtype == torch.float64
    assert made.prior.tolist() == [0.75, 0.0, 0.25]
    assert (made.num_classes, len(made), made.total) == (3, 3, 4)


def test_does_not_share_memory_with_what_was_given() -> None:
    n = torch.tensor([3, 1])
    counts = ClassCounts(n)
    n += 5
    assert counts.n.tolist() == [3, 1]


def test_zero_counts_are_computed_as_one_where_that_matters() -> None:
    counts = ClassCounts([6, 0, 2])
    assert counts.n.tolist() == [6, 0, 2]
    assert counts.prior.tolist() == [0.75, 0.0, 0.25]
    assert counts.safe_n.tolist() == [6.0, 1.0, 2.0]
    assert counts.safe_prior.tolist() == [0.75, 0.125, 0.25]


def test_groups_at_the_borders() -> None:
    groups = ClassCounts([100, 99, 20, 19, 0, 500]).groups()
    assert {k: v.tolist() for k, v in groups.items()} == {"head": [0, 5], "torso": [1, 2], "tail": [3, 4]}
    assert list(groups) == ["head", "torso", "tail"]
    assert ClassCounts([5000, 50]).groups()["tail"].tolist() == []
    other = ClassCounts([9, 5, 1]).groups(head=6, tail=3)
    assert {k: v.tolist() for k, v in other.items()} == {"head": [0], "torso": [1], "tail": [2]}
    with pytest.raises(InputError, match="head=3, tail=6"):
        ClassCounts([1]).groups(head=3, tail=6)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any), st.integers(0, 200), st.integers(0, 200))
def test_groups_part_the_classes(counts: list[int], a: int, b: int) -> None:
    groups = ClassCounts(counts).groups(head=max(a, b), tail=min(a, b))
    assert sorted(torch.cat(list(groups.values())).tolist()) == list(range(len(counts)))


def test_from_datasets() -> None:
    labels = [0, 2, 2, 1, 0, 0]
    assert ClassCounts.from_dataset(Pairs(labels)).n.tolist() == [3, 1, 2]
    assert ClassCounts.from_dataset(Pairs([torch.tensor(y) for y in labels])).n.tolist() == [3, 1, 2]
    assert ClassCounts.from_dataset(Pairs([np.int64(y) for y in labels]), num_classes=4).n.tolist() == [3, 1, 2, 0]
    assert ClassCounts.from_dataset(Targeted(labels)).n.tolist() == [3, 1, 2, 0]
    assert ClassCounts.from_dataset(TensorDataset(torch.zeros(6, 2), torch.tensor(labels))).n.tolist() == [3, 1, 2]
    assert ClassCounts.from_dataset(Subset(Targeted(labels), [0, 1, 1])).n.tolist() == [1, 0, 2, 0]
    assert ClassCounts.from_dataset(Subset(Subset(Pairs(labels), [1, 2, 3]), [2])).n.tolist() == [0, 1]
    joined = ConcatDataset([Targeted(labels), Subset(Targeted(labels), [3])])
    assert ClassCounts.from_dataset(joined).n.tolist() == [3, 2, 2, 0]


def test_datasets_that_cannot_be_counted() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(InputError, match="Stream has no length"):
        ClassCounts.from_dataset(Stream())
    with pytest.raises(InputError, match=r"label of sample 1 must be a whole number, got 0\.5"):
        ClassCounts.from_dataset(Pairs([0, 0.5]))
    with pytest.raises(InputError, match=r"sample 0 of list is not an \(input, label\) pair"):
        ClassCounts.from_dataset([torch.zeros(2)])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, -2], "must not be negative, got -2 for class 1"),
        ([0, 0, 0], "all zero"),
        ([], "one number a class, got shape (0,)"),
        ([[1, 2]], "one number a class, got shape (1, 2)"),
        ([1.5, 2.0], "whole numbers, got 1.5"),
        ([float("nan"), 2.0], "whole numbers, got nan"),
        ([float("inf"), 2.0], "whole numbers, got inf"),
        ([1e300, 2.0], "whole numbers, got 1e+300"),
        (["a", "b"], "whole numbers, got ['a', 'b']"),
        (torch.tensor([True]), "whole numbers, got dtype torch.bool"),
        (3, "a list, an array or a tensor, got int"),
        (Counter([2, 2, 0, 1]), "got Counter: write its values in the order of the classes"),
        ({0: 500, 1: 50}, "a list, an array or a tensor, got dict"),
        ({500, 50}, "a list, an array or a tensor, got set"),
    ],
)
def test_wrong_counts(counts: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        ClassCounts(counts)


@pytest.mark.parametrize(
    ("labels", "num_classes", "message"),
    [
        ([0, 3], 3, "label 3 is outside [0, 3)"),
        ([0, -1], None, "label -1 is outside [0, 1)"),
        ([0.0, 1.0], None, "whole numbers (class indices), got dtype torch.float64"),
        (torch.tensor([True]), None, "got dtype torch.bool"),
        ([], None, "no labels to count"),
        ([], 3, "all zero"),
        ([[0, 1]], None, "one dimension, got shape (1, 2)"),
        ([0, 1], 0, "num_classes must be a whole number of at least 1, got 0"),
        ({0: 2, 1: 1}, None, "labels must be a list, an array or a tensor, got dict"),
        ([0, 1], 2.5, "num_classes must be a whole number of at least 1, got 2.5"),
    ],
)
def test_wrong_labels(labels: object, num_classes: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        ClassCounts.from_labels(labels, num_classes)


def test_is_a_value() -> None:
    counts = ClassCounts([5, 0, 2])
    assert counts == ClassCounts([5, 0, 2]) != ClassCounts([5, 0, 3])
    assert counts != [5, 0, 2]
    assert len({counts, ClassCounts([5, 0, 2])}) == 1
    assert pickle.loads(pickle.dumps(counts)) == counts == copy.deepcopy(counts)
    assert repr(counts) == "ClassCounts([5, 0, 2])"
    assert repr(ClassCounts(range(1, 101))) == "ClassCounts(100 classes, 5050 samples, 100…1)"


def test_a_hugging_face_data_set():
    """What `datasets` has: columns, and a feature that names classes; a class nobody has counts too."""

    class ClassLabel:
        names = ("a", "b", "c")

    class Column:
        def __iter__(self):
            return iter([0, 1, 0])

    class Data(dict):
        column_names = ("text", "label")
        features = {"text": None, "label": ClassLabel()}  # noqa: RUF012

    assert ClassCounts.from_dataset(Data(label=Column())) == ClassCounts([2, 1, 0])
    assert ClassCounts.from_labels(Column()) == ClassCounts([2, 1])


@pytest.mark.heavy
def test_a_real_hugging_face_data_set():
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": ["x", "y", "z"], "label": [0, 1, 0]}, features=features)
    assert ClassCounts.from_dataset(data) == ClassCounts([2, 1, 0])
    assert ClassCounts.from_labels(data["label"], num_classes=3) == ClassCounts([2, 1, 0])
    with pytest.raises(InputError, match="no column 'label' or 'labels', but 'text'"):
        ClassCounts.from_dataset(data.remove_columns("label"))
