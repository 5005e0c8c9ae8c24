"""A run that is killed, again and again, at any moment, ends in the same bits as one that is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIMING = ("images_per_second", "seconds")


def metrics(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


CASES = {
    "one stage, a memory, an average": {
        "method": "elm",
        "knobs": {"memory": 4, "memory_ema": 0.9},
        "ema": 0.9,
        "epochs": 20,
    },
    "one schedule in two stages": {"method": "ldam-drw", "epochs": 20},
    "three stages, batch norm, dropout": {
        "method": "dro-lt-multistage",
        "epochs": 12,
        "model": "tiny_models:with_everything",
    },
    "a scale on a frozen head": {"method": "lws", "epochs": 20, "ema": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_killed_runs_end_in_the_same_bits(case: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, HERE / "killing.py", tmp_path, "3", json.dumps(CASES[case])],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert min(told["kills"].values()) >= 2
    assert "going on from" in told["log"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    assert (whole / "predictions.safetensors").read_bytes() == (broken / "predictions.safetensors").read_bytes()
    assert metrics(whole) == metrics(broken)
    epochs = [row["epoch"] for row in metrics(broken)]
    assert epochs == list(range(1, len(epochs) + 1))
    resumed = json.loads((broken / "environment.json").read_text())["resumed"]
    assert resumed >= 2
    assert len(list((broken / "checkpoints").glob("*.safetensors"))) <= 2
