"""Under real torchrun: two ranks of 64 are one process of 128, and a job whose rank dies ends."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longtail.engine.process import Ranks
from longtail.errors import InputError

Command = Callable[..., tuple[int, str, str]]  # the fixture longtail
HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*command: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT, timeout=timeout)


def test_two_ranks_of_64_are_one_process_of_128(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(HERE / "sharing.py"))["main"](str(tmp_path / "alone.safetensors"))
    assert capsys.readouterr().out.strip() == "world 1"
    shared = run(*TORCHRUN, HERE / "sharing.py", tmp_path / "shared.safetensors")
    assert shared.stdout.strip() == "world 2", shared.stderr
    one, two = load_file(tmp_path / "alone.safetensors"), load_file(tmp_path / "shared.safetensors")
    assert set(one) == set(two)
    assert {name.split("/")[0] for name in one} == {"ce", "logadj", "elm", "elm-memory", "elm-memory-ema", "elm-cutmix"}
    for name, expected in one.items():
        assert expected.abs().max() > 0, name
        tolerance = 1e-9 if "/float64/" in name else 1e-5
        difference = float((two[name] - expected).abs().max() / expected.abs().max())
        assert difference <= tolerance, f"{name}: {difference}"


def test_the_command_under_torchrun_trains_and_writes_once(tmp_path: Path, longtail: Command) -> None:
    arguments = ["train", "elm", "--epochs", "4", "--set", "memory=2"]
    shared = run(*TORCHRUN, "-m", "longtail", *arguments, "--out", tmp_path / "shared")
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.splitlines()[-1] == str(tmp_path / "shared")
    assert shared.stdout.count(str(tmp_path / "shared")) == 1
    code, _, err = longtail(*arguments, "--out", tmp_path / "alone")
    assert code == 0, err
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "shared"))
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-3, atol=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "shared" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]


def test_a_dead_rank_ends_the_job_with_an_error_and_resume_goes_on(tmp_path: Path, longtail: Command) -> None:
    out = tmp_path / "run"
    arguments = ["train", "ce", "--data", "moons", "--epochs", "4000", "--out", str(out)]
    command = [*TORCHRUN, "-m", "longtail", *arguments]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                           env=ENVIRONMENT)  # fmt: skip
    try:
        wait_for(lambda: (out / "checkpoints").is_dir() and len(list((out / "checkpoints").glob("*.json"))) == 2, job)
        os.kill(children(job.pid)[-1], signal.SIGKILL)
        _, errors = job.communicate(timeout=90)
    finally:
        job.kill()
    assert job.returncode != 0
    assert not (out / "summary.json").exists()
    assert "Traceback" not in errors.split("torch/distributed")[0]
    before = len((out / "metrics.jsonl").read_text().splitlines())
    # The same settings, from where it was: stopped soon, since 4000 epochs are many
    again = subprocess.Popen([*command, "--resume"], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True, env=ENVIRONMENT)  # fmt: skip
    try:
        wait_for(lambda: len((out / "metrics.jsonl").read_text().splitlines()) > before + 5, again)
        again.send_signal(signal.SIGTERM)
        _, errors = again.communicate(timeout=90)
    finally:
        again.kill()
    assert "going on from" in errors
    assert "stopped and saved" in errors
    epochs = [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, len(epochs) + 1))
    # One process rounds otherwise than two: to go on so would be another run
    code, _, err = longtail(*arguments, "--resume")
    assert code == 2
    assert "was begun by 2 process(es) and cannot go on with 1" in err
    assert err.count("\n") == 1


def test_a_batch_that_cannot_be_shared_is_one_sentence() -> None:
    assert Ranks(0, 2).share(128) == 64
    with pytest.raises(InputError, match="a batch of 33 cannot be shared evenly among 2 processes"):
        Ranks(0, 2).share(33)


def wait_for(condition: object, job: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if job.poll() is not None or time.monotonic() > end:
            pytest.fail(f"the job did not get far enough: {job.communicate(timeout=10)[1] if job.poll() else 'slow'}")
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    """The ranks of a job, in the order they were started."""
    return [int(p) for p in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
