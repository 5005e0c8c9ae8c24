"""Predictions of models that were trained elsewhere, as runs: for the same tables and the same comparisons."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..counts import ClassCounts
from ..errors import InputError
from ..evaluate.predictions import Predictions
from ..summary import summarise
from .read import FORMAT, Run, from_data

ENDINGS = (".npz", ".safetensors")


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
        predictions = Predictions.load(path, counts)
        if predictions.counts is None:
            raise InputError(
                f"{path} has no training counts, which define head, torso and tail: store 'counts' or 'train_labels' "
                "in it, or give --counts"
            )
        if doubts := predictions.doubts():
            warn(f"{path}: {doubts}")
        try:
            summary = summarise(predictions, predictions.counts)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        config: dict[str, Any] = {"format": FORMAT, "method": seeded[1] if seeded else name, "changed": {}}
        config["seed"] = int(seeded[2]) if seeded else None
        sizes = predictions.counts.n.tolist()
        split: dict[str, Any] = {"counts": sizes, "notes": [f"Predictions from {path.name}, trained elsewhere."]}
        same = next((r for r in known if _tested(r) == (sizes, summary["test"]["labels"])), None)
        if same is not None:
            config["data"] = {"name": same.data, "options": same.options, "root": same.config.data.root}
            split |= {"fingerprint": same.fingerprint, "class_names": same.split.class_names}
        else:
            config["data"] = {"name": path.name if len(paths) == 1 else "predictions"}
            split["fingerprint"] = hashlib.sha256(repr((sizes, summary["test"]["labels"])).encode()).hexdigest()[:16]
        raw = {"config": config, "split": split, "summary": summary, "missing": ["predictions from elsewhere"]}
        runs.append(from_data(path, raw))
    return runs


def _tested(run: Run) -> tuple[list[int], str | None]:
    return run.split.counts, run.summary.test.labels
