"""From balanced to long-tailed: how many samples a class keeps, which ones, and what the rest is good for."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, real, unknown, whole
from .dataset import Dataset, Files, Split, fingerprint
from .limits import shown

Profile = Literal["exp", "step"] | Sequence[int] | None


@dataclass(frozen=True)
class Source:
    """What a reader hands over: everything it found, before any profile."""

    name: str
    class_names: list[str]
    train: Split
    val: Split | None = None
    test: Split | None = None
    notes: tuple[str, ...] = ()
    identity: str = ""  # what the fingerprint must know beyond indices and labels

    @classmethod
    def of(
        cls,
        name: str,
        class_names: list[str],
        parts: Mapping[str, tuple[Tensor | Files, Tensor]],
        notes: Sequence[str] = (),
        identity: str = "",
        **about: Any,
    ) -> Source:
        """From the inputs and labels of train and perhaps val and test, which are numbered through in their order;
        ``about`` is what the splits share (``mean``, ``columns``, …)."""
        splits: dict[str, Split] = {}
        start = 0
        for key, (inputs, labels) in parts.items():
            splits[key] = Split(inputs, labels, torch.arange(start, start + len(labels)), **about)
            start += len(labels)
        return cls(name, class_names, splits["train"], splits.get("val"), splits.get("test"), tuple(notes), identity)


def encode(path: Path, labels: Mapping[str, Sequence[int | str]], names: Sequence[str]) -> dict[str, Tensor]:
    """Labels of each split as places in the list of class names, which whole numbers already are."""
    place = {name: i for i, name in enumerate(names)}
    found = {}
    for split, given in labels.items():
        numbers = [place.get(y, -1) if isinstance(y, str) else y for y in given]
        for row, number in enumerate(numbers):
            if not 0 <= number < len(names):
                raise InputError(
                    f"{path}: label {given[row]!r} of {split}, row {row}, is none of the {len(names)} classes"
                )
        found[split] = torch.tensor(numbers, dtype=torch.int64)
    return found


def exp_profile(n_max: int, num_classes: int, ratio: float) -> list[int]:
    """``int(n_max · ratio^(−i/(C−1)))`` for class i: truncated, as the field does it.

    >>> exp_profile(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    _check_shape(n_max, num_classes, ratio)
    return [_truncate(n_max * (1 / ratio) ** (i / max(num_classes - 1, 1))) for i in range(num_classes)]


def step_profile(n_max: int, num_classes: int, ratio: float) -> list[int]:
    """The first half of the classes keeps ``n_max``, the other half ``int(n_max / ratio)``.

    >>> step_profile(500, 5, 100)
    [500, 500, 5, 5, 5]
    """
    _check_shape(n_max, num_classes, ratio)
    half = num_classes // 2
    return [n_max] * half + [_truncate(n_max / ratio)] * (num_classes - half)


def _truncate(value: float) -> int:
    return int(value * (1 + 1e-12))  # 49 · (1/49) is 0.999…9 in floating point, and means 1


def _check_shape(n_max: int, num_classes: int, ratio: float) -> None:
    real("ratio (largest over smallest class)", ratio, at_least=1)
    whole("n_max (samples of the largest class)", n_max, at_least=1)
    if _truncate(n_max / ratio) < 1 and num_classes > 1:
        raise InputError(f"ratio {ratio} leaves the rarest class without samples: at most n_max = {n_max} is possible")


def profile_counts(profile: Profile, available: Sequence[int], ratio: float, n_max: int | None = None) -> list[int]:
    """Samples that each class keeps out of ``available``; ``n_max`` is the smallest available count by default.

    The smallest, because then every class can play every role: on balanced data it is simply the class size.
    """
    if profile is None:
        return list(available)
    if isinstance(profile, str):
        makers = {"exp": exp_profile, "step": step_profile}
        if profile not in makers:
            raise unknown("profile", profile, [*makers, "or a list of counts"])
        counts = makers[profile](min(available) if n_max is None else n_max, len(available), ratio)
    else:
        try:
            counts = [operator.index(n) for n in profile]
        except TypeError:
            raise InputError(f"profile must be 'exp', 'step' or whole numbers, got {profile!r}") from None
        if len(counts) != len(available):
            raise InputError(f"profile has {len(counts)} counts, but there are {len(available)} classes")
    for label, (wanted, there) in enumerate(zip(counts, available)):
        if not 0 <= wanted <= there:
            raise InputError(f"the profile wants {wanted} samples of class {label}, which has {there}")
    return counts


def shuffled_by_class(labels: Tensor, num_classes: int, seed: int) -> list[Tensor]:
    """Each class's positions, shuffled class by class with NumPy's legacy generator.

    With seed 0 the first n_i of each class are the subset of CIFAR that the field trains on (LDAM-DRW's).
    """
    rng = np.random.RandomState(seed)
    order = []
    for label in range(num_classes):
        positions = np.flatnonzero(labels.numpy() == label)
        rng.shuffle(positions)
        order.append(torch.from_numpy(positions))
    return order


def assemble(
    source: Source,
    *,
    profile: Profile = None,
    ratio: float = 100,
    n_max: int | None = None,
    seed: int | None = None,
    val_per_class: int = 20,
    holdout: float = 0.0,
    test_share: float = 0.2,
    test_seed: int = 0,
) -> Dataset:
    """Cut the splits.

    1. Without a test split, a stratified ``test_share`` of the training data becomes one: the same one whatever the
       seed, another for another ``test_seed``. A class of two or more keeps a test sample and a training sample.
    2. The profile keeps n_i samples of class i; of those it discards, up to ``val_per_class`` a class are validation
       data, unless the source brings its own.
    3. ``holdout`` > 0 moves that share of every class of the *training* data to validation instead: for tuning
       where every class matters. It changes the fingerprint.
    """
    seed = check_seed(seed)
    for what, share in (("holdout", holdout), ("test_share", test_share)):
        real(what, share, at_least=0, below=1)
    whole("val_per_class", val_per_class, at_least=0)
    train, val, test = source.train, source.val, source.test
    classes, notes = len(source.class_names), list(source.notes)
    if test is None:
        if test_share == 0:
            raise InputError("there is no test split, and test_share = 0 makes none: give one or a share above 0")
        keep, cut = stratified(train.labels, classes, test_share, check_seed(test_seed))
        train, test = train.take(keep), train.take(cut)
        if len(test) == 0:
            raise InputError(f"{source.name}: there is no test split, and none can be made: every class has one sample")
        trained, tested = (torch.bincount(part.labels, minlength=classes) for part in (train, test))
        without = [source.class_names[c] for c in ((trained > 0) & (tested == 0)).nonzero().flatten().tolist()]
        notes.append(
            f"no test split given: {test_share:.0%} of each class held out ({len(test)} samples)"
            + (
                f"; too few samples for a test one of {len(without)} classes: {shown(_five(without))}"
                if without
                else ""
            )
        )
    if profile is not None:
        order = shuffled_by_class(train.labels, classes, seed)
        counts = profile_counts(profile, [len(positions) for positions in order], ratio, n_max)
        discards = [positions[n:][:val_per_class] for positions, n in zip(order, counts)]
        everything, train = train, train.take(torch.cat([positions[:n] for positions, n in zip(order, counts)]))
        rest = torch.cat(discards)
        if val is None and len(rest):
            val = everything.take(rest)
            short = [label for label, positions in enumerate(discards) if len(positions) < val_per_class]
            few = f" (fewer, or none, of {'class' if len(short) == 1 else 'classes'} {_five(short)})" if short else ""
            notes.append(f"validation: {val_per_class} a class of the samples that the profile discards{few}")
    if holdout:
        keep, cut = stratified(train.labels, classes, holdout, seed)
        if len(cut) == 0:
            raise InputError(f"holdout {holdout} takes no sample: no class has two, or the share is too small")
        train, val = train.take(keep), train.take(cut)
        notes.append(f"holdout: {holdout:.0%} of each class moved from training to validation, for tuning only")
    for what, split in (("training", train), ("validation", val), ("test", test)):
        if split is not None and len(split) == 0:
            raise InputError(f"{source.name}: there is no {what} sample")
    if len(present := train.labels.unique()) < 2:
        only = shown(source.class_names[int(present[0])])
        raise InputError(f"{source.name}: all training samples are of one class, {only!r}: a classifier needs two")
    return Dataset(
        name=source.name,
        train=train,
        val=val,
        test=test,
        class_names=list(source.class_names),
        fingerprint=fingerprint(f"{source.name} {source.identity}", (train, val, test)),
        notes=notes,
    )


def stratified(labels: Tensor, num_classes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions kept and cut, in order: ``share`` of each class is cut, at least 1 where there are 2, never all."""
    cut = []
    for positions in shuffled_by_class(labels, num_classes, seed):
        n = len(positions)
        cut.append(positions[: min(max(round(share * n), 1), n - 1) if n > 1 else 0])
    gone = torch.cat(cut).sort().values
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[gone] = False
    return mask.nonzero().flatten(), gone


def check_seed(seed: int | None) -> int:
    """None is the canonical subset, which is seed 0's."""
    if seed is None:
        return 0
    return whole("seed", seed, at_least=0, at_most=2**32 - 1)


def _five(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:5])) + (", …" if len(names) > 5 else "")
