"""CIFAR-LT: the real files in both layouts, the field's subset, and files that are wrong."""

import os
import pickle

import numpy as np
import pytest
import torch

from cifar_files import dump, make_cifar, write_python_layout
from longtail.data import cifar, load
from longtail.errors import InputError

EXP_10 = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def naive_subset(labels, counts):
    """The rule of the field, word for word: the global generator, seeded with 0, class by class."""
    state = np.random.get_state()
    np.random.seed(0)
    chosen = []
    for label, n in enumerate(counts):
        index = np.where(np.asarray(labels) == label)[0]
        np.random.shuffle(index)
        chosen.extend(index[:n])
    np.random.set_state(state)
    return chosen


def check_cifar(root, name, counts, groups, per_class):
    data = load(name, root=root)
    layout = cifar.LAYOUTS[name]
    whole = cifar.read(layout, root)
    assert data.counts.n.tolist() == counts
    assert [len(index) for index in data.counts.groups().values()] == groups
    assert data.train.indices.tolist() == naive_subset(whole.train.labels, counts)
    assert torch.equal(data.train.inputs, whole.train.inputs[data.train.indices])
    assert torch.equal(data.train.labels, whole.train.labels[data.train.indices])
    assert torch.bincount(data.val.labels, minlength=len(counts)).tolist() == [0] + [per_class] * (len(counts) - 1)
    assert not set(data.val.indices.tolist()) & set(data.train.indices.tolist())
    assert torch.equal(data.val.inputs, whole.train.inputs[data.val.indices])
    assert torch.bincount(data.test.labels).tolist() == [10_000 // len(counts)] * len(counts)
    assert data.test.inputs.shape == (10_000, 3, 32, 32)
    for channel in range(3):  # mean and deviation from the histogram, which is quicker than from floats
        histogram = np.bincount(whole.train.inputs[:, channel].numpy().ravel(), minlength=256)
        values = np.arange(256) / 255
        mean = np.average(values, weights=histogram)
        assert mean == pytest.approx(layout.mean[channel], abs=6e-5)
        assert np.average((values - mean) ** 2, weights=histogram) ** 0.5 == pytest.approx(
            layout.std[channel], abs=6e-5
        )
    return data


def check_layouts_agree(root, name, classes, tmp_path):
    layout = cifar.LAYOUTS[name]
    write_python_layout(root / layout.binary.folder, tmp_path / layout.python.folder, classes)
    binary, python = load(name, root=root), load(name, root=tmp_path)
    assert python.fingerprint == binary.fingerprint
    assert python.class_names == binary.class_names
    for key in ("train", "val", "test"):
        ours, theirs = getattr(binary, key), getattr(python, key)
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.indices, theirs.indices)


def test_cifar100(cifar100):
    counts = [int(500 * 0.01 ** (i / 99)) for i in range(100)]
    data = check_cifar(cifar100, "cifar100-lt", counts, [35, 35, 30], 20)
    assert data.counts.total == 10_847
    assert [counts[label] for label in (10, 50, 90)] == [314, 48, 7]
    assert data.class_names[:3] + data.class_names[-2:] == ["apple", "aquarium_fish", "baby", "woman", "worm"]


def test_cifar100_layouts_agree(cifar100, tmp_path):
    check_layouts_agree(cifar100, "cifar100-lt", 100, tmp_path)


@pytest.mark.skipif(os.environ.get("LONGTAIL_TEST_CIFAR10") != "1", reason="LONGTAIL_TEST_CIFAR10=1: a 139 MB download")
def test_cifar10(tmp_path_factory, tmp_path):
    root = make_cifar("cifar10", tmp_path_factory.mktemp("cifar"))
    data = check_cifar(root, "cifar10-lt", EXP_10, [8, 2, 0], 500)
    assert data.counts.total == 12_406
    assert data.class_names == [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    check_layouts_agree(root, "cifar10-lt", 10, tmp_path)


def test_other_seeds_ratios_and_holdout(cifar100):
    data = load("cifar100-lt", root=cifar100)
    other = load("cifar100-lt", root=cifar100, seed=1)
    assert load("cifar100-lt", root=cifar100, seed=0).fingerprint == data.fingerprint
    assert other.fingerprint != data.fingerprint
    assert other.counts == data.counts
    assert torch.equal(other.test.indices, data.test.indices)
    tuning = load("cifar100-lt", root=cifar100, holdout=0.1)
    assert tuning.fingerprint != data.fingerprint
    assert int((tuning.val.labels == 0).sum()) == 50
    together = torch.cat((tuning.train.indices, tuning.val.indices)).sort().values
    assert torch.equal(together, data.train.indices.sort().values)
    assert bool((tuning.counts.n > 0).all())
    step = load("cifar100-lt", root=cifar100, profile="step", ratio=10)
    assert step.counts.n.tolist() == [500] * 50 + [50] * 50
    full = load("cifar100-lt", root=cifar100, ratio=1)
    assert full.counts.total == 50_000
    assert full.val is None


# Files that are wrong. The small ones need no real data.


def test_more_validation_from_what_the_profile_discards(cifar100):
    usual, more = load("cifar100-lt", root=cifar100), load("cifar100-lt", root=cifar100, val_per_class=200)
    assert more.fingerprint != usual.fingerprint
    for a, b in ((usual.train, more.train), (usual.test, more.test)):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.labels, b.labels)
    # Each class gives what it has left, at most 200: none of the largest, which keeps all of its 500
    left = (500 - usual.counts.n).clamp(max=200)
    assert torch.equal(torch.bincount(more.val.labels, minlength=100), left)
    assert int(left[0]) == 0
    assert int(left[-1]) == 200
    taken = torch.cat((more.train.indices, more.val.indices))
    assert len(taken.unique()) == len(taken)
    assert any("validation: 200 a class" in note and "fewer, or none, of classes 0, 1" in note for note in more.notes)
    with pytest.raises(InputError, match="val_per_class must be a whole number of at least 0, got -1"):
        load("cifar100-lt", root=cifar100, val_per_class=-1)
    assert load("cifar100-lt", root=cifar100, val_per_class=0).val is None


def test_small_long_tailed_sets_are_canonical_by_seed(cifar100):
    small = load("cifar100-lt", root=cifar100, n_max=60, ratio=20)
    assert (int(small.counts.n.max()), int(small.counts.n.min())) == (60, 3)
    whole = load("cifar100-lt", root=cifar100)
    # Classes' first samples in the same shuffled order: of a class that both keep enough of, the same images
    for label in range(5):
        mine, theirs = (d.train.indices[d.train.labels == label] for d in (small, whole))
        assert torch.equal(mine, theirs[: len(mine)])
    assert torch.equal(small.test.indices, whole.test.indices)
    again, other = (load("cifar100-lt", root=cifar100, n_max=60, ratio=20, seed=seed) for seed in (0, 1))
    assert again.fingerprint == small.fingerprint
    assert other.fingerprint != small.fingerprint


@pytest.fixture
def wrong(tmp_path):
    """A folder with a binary layout whose train.bin the test writes."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    names = "\n".join(f"class {i}" for i in range(100))
    (folder / "fine_label_names.txt").write_text(names)
    (folder / "test.bin").write_bytes(bytes(3074) * 10_000)

    def write(content: bytes):
        (folder / "train.bin").write_bytes(content)
        return tmp_path

    return write


def test_truncated_binary(wrong):
    with pytest.raises(InputError, match=r"train\.bin has 30,739,999 bytes.*3,074-byte records: truncated"):
        load("cifar100-lt", root=wrong(bytes(3074 * 10_000 - 1)))


def test_wrong_record_size(wrong):
    with pytest.raises(InputError, match=r"no whole number of 3,074-byte records.*not cifar100"):
        load("cifar100-lt", root=wrong(bytes(3073) * 100))


def test_too_few_records(wrong):
    with pytest.raises(InputError, match=r"the train files hold 100 images where 50,000 belong"):
        load("cifar100-lt", root=wrong(bytes(3074) * 100))


def test_label_byte_out_of_range(wrong):
    record = bytearray(3074)
    record[1] = 100
    with pytest.raises(InputError, match=r"train\.bin: image 2 has label 100, outside \[0, 100\)"):
        load("cifar100-lt", root=wrong(bytes(3074) * 2 + bytes(record)))


def test_empty_binary(wrong):
    with pytest.raises(InputError, match="has 0 bytes"):
        load("cifar100-lt", root=wrong(b""))


def test_missing_file_and_missing_folder(wrong, tmp_path):
    root = wrong(b"")
    (root / "cifar-100-binary" / "train.bin").unlink()
    with pytest.raises(InputError, match=r"train\.bin cannot be read: No such file"):
        load("cifar100-lt", root=root)
    with pytest.raises(InputError, match="longtail data fetch cifar10-lt"):
        load("cifar10-lt", root=root)


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.fixture
def python_folder(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    return folder


def test_pickle_that_imports_something(python_folder, tmp_path):
    dump({b"data": Evil(tmp_path / "evil"), b"fine_labels": []}, python_folder / "train")
    with pytest.raises(InputError, match=r"train is no CIFAR file: refused (posix|nt)\.system"):
        load("cifar100-lt", root=tmp_path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.core.multiarray.scalar", "functools.partial"])
def test_pickle_globals_are_refused_by_name(name, python_folder, tmp_path):
    module, _, attribute = name.rpartition(".")
    (python_folder / "train").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(InputError, match=f"refused {name}"):
        load("cifar100-lt", root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0]}, "no list 'fine_labels'"),
        ({b"data": np.zeros((2, 3000), np.uint8), b"fine_labels": [0, 0]}, "no 'data' array"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 100]}, "image 1 has label 100"),
    ],
)
def test_python_content_is_checked(content, message, python_folder, tmp_path):
    dump(content, python_folder / "train")
    with pytest.raises(InputError, match=message):
        load("cifar100-lt", root=tmp_path)


def test_truncated_pickle(python_folder, tmp_path):
    whole = pickle.dumps({b"data": np.zeros((20, 3072), np.uint8)}, protocol=2)
    (python_folder / "train").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="train is no CIFAR file, or truncated"):
        load("cifar100-lt", root=tmp_path)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickles_of_every_age_are_read(protocol, tmp_path):
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"names": [b"a"], "n": 3}
    (tmp_path / "p").write_bytes(pickle.dumps(content, protocol=protocol))
    found = cifar.load_pickle(tmp_path / "p")
    assert np.array_equal(found["data"], content[b"data"])
    assert (found["names"], found["n"]) == ([b"a"], 3)


def test_pickle_as_python_2_wrote_it(tmp_path):
    """The official files: protocol 2, and every string of the kind that is now bytes."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array = empty + b"(K\x01K\x02K\x03\x86" + dtype + b"\x89" + text(b"abcdef") + b"tb"
    (tmp_path / "p").write_bytes(b"\x80\x02}" + text(b"data") + array + b"s.")
    found = cifar.load_pickle(tmp_path / "p")
    assert found["data"].tolist() == [[97, 98, 99], [100, 101, 102]]
