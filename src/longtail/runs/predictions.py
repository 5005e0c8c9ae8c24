"""The two large files of a run: its trained weights, and what they say of the data; predictions of models that were
trained elsewhere, as runs, for the same tables and the same comparisons."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..counts import ClassCounts
from ..errors import InputError
from ..evaluate.predictions import Predictions
from ..summary import summarise
from .folder import MODEL, PREDICTIONS
from .read import FORMAT, Run, from_data, read_json

if TYPE_CHECKING:
    from torch import Tensor

ENDINGS = (".npz", ".safetensors")


def weights(path: Path) -> dict[str, Tensor]:
    """A run's trained weights by name."""
    return _tensors(path / MODEL, "the weights of committed results are not kept")


def training_embeddings(path: Path) -> tuple[Tensor, Tensor]:
    """A run's embeddings of its training data (N, K) and their labels (N,), which k-NN needs."""
    kept = _tensors(path / PREDICTIONS, "it ended in k-NN, which needs the training embeddings in it")
    try:
        return kept["train_embeddings"].float(), kept["train_labels"].long()
    except KeyError as error:
        raise InputError(f"{path / PREDICTIONS} does not hold {error}, which k-NN needs") from None


def predictions(source: Path, counts: Any = None) -> Predictions:
    """The predictions of a run folder, or of anybody's file; ``counts``, if given, replace those they come with."""
    if not source.is_dir():
        return Predictions.load(source, counts)
    file = source / PREDICTIONS
    if not file.is_file():
        raise InputError(f"{source} holds no {PREDICTIONS}: give a finished run's folder or a file of predictions")
    if counts is None and (source / "split.json").is_file():
        counts = read_json(source / "split.json").get("counts")
        if counts is None:
            raise InputError(f"{source / 'split.json'} is not a run's: it has no 'counts'")
    return Predictions.load(file, counts)


def _tensors(file: Path, absent: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not file.is_file():
        raise InputError(f"{file.parent} has no {file.name}: {absent}")
    try:
        return load_file(file)
    except Exception as error:  # safetensors has an exception of its own
        raise InputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None


def from_predictions(
    paths: Sequence[Path], counts: ClassCounts | None, known: Sequence[Run], warn: Callable[[str], None]
) -> list[Run]:
    """One run a file. ``NAME-s0.npz``, ``NAME-s1.npz`` are seeds of one model.

    Files with the training counts and test labels of one of the ``known`` runs are on its data, so that they are
    compared with it in pairs of test samples; files that agree among themselves likewise.

    Raises:
        InputError: a file cannot be read, or has no training counts.
    """
    stems = [path.stem for path in paths]
    runs = []
    for path in paths:
        name = path.stem if stems.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}"
        seeded = re.fullmatch(r"(.+)-s(\d{1,9})", name)
        found = Predictions.load(path, counts)
        if found.counts is None:
            raise InputError(
                f"{path} has no training counts, which define head, torso and tail: store 'counts' or 'train_labels' "
                "in it, or give --counts"
            )
        if doubts := found.doubts():
            warn(f"{path}: {doubts}")
        try:
            summary = summarise(found, found.counts)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        config: dict[str, Any] = {"format": FORMAT, "method": seeded[1] if seeded else name, "changed": {}}
        config["seed"] = int(seeded[2]) if seeded else None
        sizes, labels = found.counts.n.tolist(), summary["test"]["labels"]
        split: dict[str, Any] = {"counts": sizes, "notes": [f"Predictions from {path.name}, trained elsewhere."]}
        same = next((r for r in known if (r.split.counts, r.summary.test.labels) == (sizes, labels)), None)
        if same is not None:
            config["data"] = {"name": same.data, "options": same.options, "root": same.config.data.root}
            split |= {"fingerprint": same.fingerprint, "class_names": same.split.class_names}
        else:
            config["data"] = {"name": path.name if len(paths) == 1 else "predictions"}
            split["fingerprint"] = hashlib.sha256(repr((sizes, labels)).encode()).hexdigest()[:16]
        raw = {"config": config, "split": split, "summary": summary, "missing": ["predictions from elsewhere"]}
        runs.append(from_data(path, raw))
    return runs
