"""Run folders made from synthetic predictions through the real `summarise`: what the report is tested with.

The numbers are honest in that every one of them follows from the logits and embeddings drawn here; the methods' names
stand for how tight the classes are drawn and how far the head is biased, not for training.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail import ClassCounts, methods
from longtail.evaluate.predictions import Part, Predictions
from longtail.summary import summarise

SMALL = (200, 120, 60, 30, 12, 6)
# methods whose first stage is another's, so that their runs share training
BEGINS_AS = dict.fromkeys(("tau-norm", "crt", "lws", "dro-lt-multistage"), "ce")
# spread of a class, share of the head's bias towards frequent classes
CHARACTER = {"ce": (1.0, 1.0), "logadj": (0.95, 0.15), "elm": (0.6, 0.1), "dro-lt": (1.6, 0.9), "ldam-drw": (0.9, 0.3)}


def predictions(
    method: str, counts: tuple[int, ...] = SMALL, seed: int = 0, dim: int = 8, test_each: int = 40, tight: float = 1.0
) -> Predictions:
    """Gaussian classes around fixed centres, and the logits of nearest centres with a bias towards the head."""
    spread, bias = CHARACTER.get(method, (0.9, 0.4))
    spread *= tight
    fixed = np.random.default_rng(7)  # test noise is shared by all methods, so that comparisons are paired
    centres = fixed.normal(size=(len(counts), dim)) * 1.1
    noise_test = fixed.normal(size=(test_each * len(counts), dim))
    rng = np.random.default_rng([seed, len(method)])
    n = np.asarray(counts)

    def part(labels: np.ndarray, noise: np.ndarray) -> Part:
        x = centres[labels] + spread * noise + 0.05 * rng.normal(size=noise.shape)
        logits = -((x[:, None, :] - centres[None]) ** 2).sum(-1) / 2 + bias * np.log(np.maximum(n, 1) / max(n.sum(), 1))
        return Part(torch.from_numpy(logits).float(), torch.from_numpy(labels), torch.from_numpy(x).float())

    train = np.repeat(np.arange(len(counts)), n)
    test = fixed.permutation(np.repeat(np.arange(len(counts)), test_each))
    return Predictions(train=part(train, rng.normal(size=(len(train), dim))), test=part(test, noise_test))


@cache
def _summary(
    method: str, counts: tuple[int, ...], seed: int, dim: int, test_each: int, tight: float, tsne: bool
) -> str:
    made = predictions(method, counts, seed, dim, test_each, tight)
    return json.dumps(summarise(made, ClassCounts(counts), tsne=tsne))


def make_run(
    folder: Path,
    method: str = "ce",
    *,
    data: str = "digits-lt",
    counts: tuple[int, ...] = SMALL,
    seed: int = 0,
    epochs: int = 3,
    dim: int = 8,
    test_each: int = 40,
    tight: float = 1.0,
    tsne: bool = False,
    recipe: dict[str, Any] | None = None,
    fingerprint: str = "f00d",
    options: dict[str, Any] | None = None,
    class_names: list[str] | None = None,
    **knobs: Any,
) -> Path:
    """Write the five small files of a finished run."""
    folder.mkdir(parents=True)
    made = methods.build(method, ClassCounts(counts), data=data, **knobs)
    usual = methods.build(method, ClassCounts(counts), data=data).knobs
    fields = {"name": "digits", "model": "mlp", "epochs": epochs, "batch_size": 64, "lr": 0.1, **(recipe or {})}
    config = {
        "format": 1, "longtail": "0.1.0", "method": method, "knobs": dict(made.knobs),
        "changed": {name: value for name, value in made.knobs.items() if usual[name] != value},
        "data": {"name": data, "root": "data", "options": options or {}}, "model": fields["model"], "recipe": fields,
        "seed": seed, "epochs": epochs, "precision": "fp32", "threads": 1, "decisions": [],
    }  # fmt: skip
    environment = {
        "python": "3.11", "torch": "2.13.0", "longtail": "0.1.0", "device": "cpu", "git": None,
        "started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00", "resumed": 0,
        "command": ["longtail", "train", method, "--data", data, "--seed", str(seed)],
    }  # fmt: skip
    split = {
        "fingerprint": fingerprint, "counts": list(counts),
        "class_names": class_names or [f"class {i}" for i in range(len(counts))],
        "train": sum(counts), "val": 0, "test": test_each * len(counts), "notes": ["a synthetic split"],
    }  # fmt: skip
    pull = any(name == "pull" for stage in made.stages for name in stage.objective.part_names())
    alive = {"all": 0.8, "head": 0.95, "torso": 0.6, "tail": 0.1} if pull else None
    begun = zlib.crc32(repr((BEGINS_AS.get(method, method), knobs, fields, seed)).encode()) / 2**32
    metrics = [
        {"stage": "train", "epoch": e + 1, "stage_epoch": e + 1, "step": 10 * (e + 1), "lr": 0.1,
         "loss": 1 / (e + 1) + begun, "parts": {"logit": 1.0}, "alive": alive, "images_per_second": 1000.0,
         "seconds": 1.0}
        for e in range(epochs)
    ]  # fmt: skip
    for name, content in (("config", config), ("environment", environment), ("split", split)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    (folder / "summary.json").write_text(_summary(method, counts, seed, dim, test_each, tight, tsne))
    return folder


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Change top-level keys of one of a run's JSON files."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
