"""Output that fills up, closes, or carries ASCII only; an environment that is wrong: real processes in a real shell."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

LONGTAIL = f"{shlex.quote(sys.executable)} -m longtail"


def shell(script: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    # Buffered as it is for a user: a failure may show only when the buffer is written
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; longtail() {{ {LONGTAIL} \"$@\"; }}; {script}"],
        capture_output=True, env=inherited | environment, cwd=cwd, timeout=120,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Features that take no time to learn, under a name that is no UTF-8."""
    random, train, test = np.random.default_rng(0), np.repeat([0, 1, 2], [20, 8, 3]), np.repeat([0, 1, 2], 4)
    path = tmp_path / os.fsdecode(b"caf\xe9.npz")
    np.savez(
        path, train_labels=train, test_labels=test, train_features=random.normal(size=(31, 4)) + train[:, None],
        test_features=random.normal(size=(12, 4)) + test[:, None],
    )  # fmt: skip
    return path


@pytest.mark.parametrize(("command", "unbuffered"), [("methods", ""), ("methods --json", "1"), ("data list", "")])
def test_a_reader_that_leaves_early_ends_it_quietly(command: str, unbuffered: str) -> None:
    done = shell(f"longtail {command} | true", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("command", "unbuffered"), [("methods --json", ""), ("methods", "1"), ("--help", "")])
def test_output_that_cannot_be_written_is_one_sentence(command: str, unbuffered: str) -> None:
    done = shell(f"longtail {command} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr == b"longtail: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_without_streams_it_works_on(closed: str, data: Path, tmp_path: Path) -> None:
    done = shell(f"longtail train ce --data *.npz --epochs 1 --out run {closed}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
    assert b"\n" not in (tmp_path / "run" / "lock").read_bytes(), "a message went to a file that took its number"
    assert shell(f"longtail report no-such-folder {closed}").returncode == 2


def test_ascii_output_is_plain_and_straight() -> None:
    done = shell("longtail methods; longtail methods elm; longtail --help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    lines = text.splitlines()
    table = [line for line in lines[: lines.index("longtail methods NAME shows a method's knobs.")] if line]
    assert len({len(line) for line in table}) == 1
    assert any(line.split()[1] == "elm" and " v " in line and " x " not in line for line in table)
    assert "0.01*Pull" in text
    assert "\\x" not in text


def test_names_that_are_not_utf8_go_out_as_they_came(data: Path, tmp_path: Path) -> None:
    script = "longtail report $'caf\\xe9'; longtail train ce --data *.npz --epochs 1 --out $'caf\\xe9' && longtail report caf?"
    done = shell(script, tmp_path, LC_ALL="C", MPLBACKEND="no-such-backend")
    assert done.returncode == 0, done.stderr
    assert b"longtail: caf\xe9 does not exist" in done.stderr
    assert done.stdout.splitlines() == [b"caf\xe9", b"report/index.html"]
    assert (tmp_path / "report" / "index.html").is_file()


def test_what_is_no_mistake_of_the_user_says_how_to_report_it(tmp_path: Path) -> None:
    # A model of one's own may raise anything
    (tmp_path / "mine.py").write_text("def broken(**_):\n    raise AttributeError('first\\nsecond')\n")
    script = "longtail train ce --epochs 1 --model mine:broken"
    done = shell(script, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode in (1, 2)
    assert b"first second" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Traceback" in shell(script, tmp_path, PYTHONPATH=str(tmp_path), LONGTAIL_TRACEBACK="1").stderr
