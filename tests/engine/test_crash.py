"""A run that is killed, again and again, at any moment, ends in the same bits as one that is left alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longtail.engine.job import Job, execute
from longtail.errors import RunError

HERE = Path(__file__).parent
TIMING = ("images_per_second", "seconds")


def metrics(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


CASES: list[dict[str, object]] = [
    # one stage, a memory, an average
    {"method": "elm", "knobs": {"memory": 4, "memory_ema": 0.9}, "ema": 0.9, "epochs": 20},
    # one schedule in two stages
    {"method": "ldam-drw", "epochs": 20},
    # three stages, batch norm, dropout
    {"method": "dro-lt-multistage", "epochs": 12, "model": "tiny_models:with_everything"},
    # a scale on a frozen head
    {"method": "lws", "epochs": 20, "ema": 0.9},
]


def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    """One process for all cases: what it imports takes longer than they do."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, HERE / "killing.py", tmp_path, "3", *map(json.dumps, CASES)],
        capture_output=True, text=True, env=environment, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for i, told in enumerate(map(json.loads, done.stdout.splitlines())):
        assert min(told["kills"].values()) >= 2
        assert "going on from" in told["log"]
        check_case(tmp_path / str(i))
    assert i + 1 == len(CASES)


def check_case(folder: Path) -> None:
    whole, broken = folder / "whole", folder / "broken"
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    assert (whole / "predictions.safetensors").read_bytes() == (broken / "predictions.safetensors").read_bytes()
    assert metrics(whole) == metrics(broken)
    epochs = [row["epoch"] for row in metrics(broken)]
    assert epochs == list(range(1, len(epochs) + 1))
    resumed = json.loads((broken / "environment.json").read_text())["resumed"]
    assert resumed >= 2
    assert len(list((broken / "checkpoints").glob("*.safetensors"))) <= 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True
    ).returncode:  # fmt: skip
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


class FullDisk:
    """A watcher that fills the disk when a run has come to a step."""

    def __init__(self, disk: Path, at: int) -> None:
        self.disk, self.left = disk, at

    def step(self, now: object) -> None:
        self.left -= 1
        if self.left == 0:
            fill(self.disk)

    def epoch(self, row: object) -> None:
        pass


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize(("at", "unwritten"), [(2, "metrics.jsonl"), (8, ".safetensors")])
def test_a_full_disk_costs_no_more_than_a_kill(
    at: int, unwritten: str, small_disk: Path, tmp_path: Path, longtail: Callable[..., tuple[int, str, str]]
) -> None:
    whole = Job("ce", epochs=3, out=str(tmp_path / "whole"))
    execute(whole, say=lambda text: None)
    broken = Job("ce", epochs=3, out=str(small_disk / "run"), resume=True)
    with pytest.raises(RunError, match=f"is full: .*{unwritten} was not written; free some space, then --resume"):
        execute(broken, say=lambda text: None, watchers=[FullDisk(small_disk, at)])
    (small_disk / "filler").unlink()
    execute(broken, say=lambda text: None)
    for name in ("model.safetensors", "predictions.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (small_disk / "run" / name).read_bytes()
    assert metrics(tmp_path / "whole") == metrics(small_disk / "run")
    fill(small_disk)
    code, _, err = longtail("report", tmp_path / "whole", "--out", small_disk / "report")
    assert code == 1
    assert "No space left on device" in err or "is full" in err
