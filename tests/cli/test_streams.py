"""Output that fills up, closes, or carries ASCII only; an environment that is wrong: real processes in a real shell."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.engine import process
from longtail.errors import InputError

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


@pytest.mark.parametrize(("command", "unbuffered"), [("methods", ""), ("data list", "1"), ("data list", "")])
def test_a_reader_that_leaves_early_ends_it_quietly(command: str, unbuffered: str) -> None:
    done = shell(f"longtail {command} | true", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("command", "unbuffered"), [("data list", ""), ("data list", "1"), ("--help", "")])
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
    assert shell(f"longtail train ce --resume --force {closed}").returncode == 2


def test_ascii_output_is_plain_and_straight() -> None:
    done = shell("longtail methods; longtail methods elm; longtail --help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    lines = text.splitlines()
    table = [line for line in lines[: lines.index("longtail methods NAME shows a method's knobs.")] if line]
    assert len({len(line) for line in table}) == 1
    assert any(line.startswith("| elm ") and " v " in line and " x " not in line for line in table)
    assert "0.01*Pull" in text
    assert "\\x" not in text


def test_names_that_are_not_utf8_go_out_as_they_came(data: Path, tmp_path: Path) -> None:
    train = "longtail train ce --data *.npz --epochs 1 --out $'caf\\xe9'"
    done = shell(f"longtail report $'caf\\xe9'; {train}", tmp_path, LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert b"longtail: caf\xe9 does not exist" in done.stderr
    assert done.stdout == b"caf\xe9\n"
    assert json.loads((tmp_path / os.fsdecode(b"caf\xe9") / "config.json").read_text())["data"]["name"] == data.name


def test_a_process_that_is_one_of_several_without_saying_which_is_one_sentence(data: Path, tmp_path: Path) -> None:
    done = shell("longtail train ce --data *.npz --epochs 1 --out run", tmp_path, WORLD_SIZE="2")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"longtail: WORLD_SIZE is 2, but RANK and MASTER_ADDR and MASTER_PORT are not set")
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, "RANK is 2, but must be less"),
        ({"RANK": "1"}, "RANK is 1, but must be less than WORLD_SIZE, which is 1"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number of at most 1000000, got 'many'"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE must be a whole number .* got '-2'"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE must be a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "x"}, "MASTER_PORT must be a whole"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "99999"}, "of at most 65535, got"),
        ({"WORLD_SIZE": "0"}, "RANK is 0, but must be less than WORLD_SIZE, which is 0"),
        ({"WORLD_SIZE": "3", "RANK": "0", "MASTER_ADDR": "here"}, "WORLD_SIZE is 3, but MASTER_PORT is not set"),
    ],
)
def test_a_place_among_processes_that_cannot_be(
    environment: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=sentence), process.ranks(torch.device("cpu")):
        pass


def test_what_nobody_foresaw_is_one_sentence_that_says_how_to_see_more(data: Path, tmp_path: Path) -> None:
    # A model of one's own may raise anything, at any time
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    embedding_size = 4\n"
        "    def __init__(self, num_classes, input_shape):\n"
        "        super().__init__()\n"
        "        self.head = torch.nn.Linear(4, num_classes)\n"
        "    def embed(self, x):\n"
        "        return x\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            raise LookupError('first\\nsecond')\n"
        "        return self.head(x)\n"
    )
    script = "longtail train ce --data *.npz --epochs 1 --model mine:Net --out"
    done = shell(f"{script} one; LONGTAIL_TRACEBACK=1 {script.replace('longtail', LONGTAIL, 1)} two", tmp_path,
                 PYTHONPATH=str(tmp_path))  # fmt: skip
    told, more = done.stderr.split(b"longtail: unexpected LookupError: first second", 1)
    assert b"Traceback" not in told
    assert b"Traceback" in more
    assert done.returncode == 1
