"""The two large files of a run: its trained weights, and what they say of the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from ..evaluate.predictions import Predictions

MODEL, PREDICTIONS = "model.safetensors", "predictions.safetensors"


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
    from ..evaluate.predictions import Predictions
    from .read import read_json

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
