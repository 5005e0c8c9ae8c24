"""Anything may be typed: whatever it is, the command ends with 0, 1 or 2, in a moment, and never in a traceback.

`LONGTAIL_FUZZ=2000 pytest tests/cli/test_arguments.py` tries more. What was found so far stands in FOUND.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail.cli import app, main

SECONDS = 20
LONG, DEEP = "a" * 5000, "[" * 100_000
FOUND = [
    [],
    ["data"],
    ["train", ""],
    ["train", "elm", "--data", LONG],
    ["train", "elm", "--data", "\0"],
    ["train", "elm", "--data", "\ud800"],
    ["train", "elm", "--root", LONG, "--data", "cifar10-lt"],
    ["train", "elm", "--data", "tiny.npz", "--out", LONG],
    ["train", "elm", "--begin-with", LONG, "--data", "tiny.npz", "--epochs", "1"],
    ["train", "elm", "--model", LONG, "--data", "tiny.npz"],
    ["train", "elm", "--data", "moons", "--option", f"n={DEEP}"],
    ["train", "elm", "--data", "moons", "--option", "n=1000000000000"],
    ["train", "elm", "--data", "tiny.npz", "--set", f"alpha={DEEP}"],
    ["train", "elm", "--data", "tiny.npz", "--set", "memory=1000000000000", "--epochs", "1"],
    ["train", "elm", "--data", "tiny.npz", "--lr", "1e300", "--epochs", "1"],
    ["train", "elm", "--data", "tiny.npz", "--lr", "nan"],
    ["train", "elm", "--data", "tiny.npz", "--epochs", str(10**30)],
    ["train", "elm", "--data", "tiny.npz", "--threads", "1000000000", "--epochs", "1"],
    ["train", "elm", "--data", "tiny.npz", "--batch-size", str(10**30)],
    ["train", "elm", "--data", "tiny.npz", "--seed", str(10**30)],
    ["compare", "--methods", ","],
    ["compare", "--methods", ":"],
    ["compare", "--data", LONG, "--jobs", "1", "--seeds", "1", "--methods", "ce"],
    ["sweep", "elm", "--grid", "lam="],
    ["sweep", "elm", "--grid", f"lam={DEEP}"],
    ["sweep", "elm", *(f"--grid={knob}={','.join(map(str, range(99)))}" for knob in ("lam", "lr", "tau", "clip"))],
    ["report", LONG],
    ["report", "tiny.npz", "--groups", "²,1"],
    ["report", "tiny.npz", "--groups", f"{'9' * 5000},1"],
    ["report", "tiny.npz", "--out", LONG],
    ["evaluate", LONG],
    ["evaluate", "tiny.npz", "--counts", LONG],
    ["posthoc", LONG, "--method", "knn"],
    ["posthoc", "tiny.npz", "--method", "knn", "--out", f"{LONG}.npz"],
    ["predict", LONG, LONG],
    ["export", LONG],
    ["data", "fetch", "cifar10-lt", "--from", LONG],
    ["data", "fetch", "cifar10-lt", "--root", LONG, "--from", "tiny.npz"],
    ["data", "check", LONG],
    ["data", "check", "cifar10-lt", "--root", LONG],
    ["methods", "\x1b[31m"],
    ["embed", "", "--cache", "", "--batch-size", "8"],
    ["embed", ".", "--views", "1000000000"],
    ["embed", ".", "--workers", "1000000000"],
    ["train", "elm", "--data", "tiny.npz", "--set-recipe", "weight_decay=1e300", "--epochs", "1"],
]
WORDS = st.one_of(
    st.sampled_from(["", "-", "--", "0", "-1", "1e300", "nan", str(10**30), "a=b", "a=[", LONG, "/dev/null", "\udce9"]),
    st.text(max_size=12),
)  # fmt: skip
# Small and quick where it is right; wrong in every way where it is not
RIGHT = {
    "data": ["tiny.npz"], "name": ["digits-lt", "elm", "tiny.npz"], "source": ["tiny.npz"], "root": ["."],
    "out": ["out"],
    "method": ["elm", "ce", "logadj", "crt", "knn", "ncm"], "methods": ["ce"], "grid": ["lam=0.1"], "value": ["1"],
    "epochs": ["1"], "seeds": ["1"], "jobs": ["1"], "seed": ["0", "7"], "batch_size": ["8"], "lr": ["0.1"],
    "clip": ["1"],
    "ema": ["0.5"], "precision": ["fp32", "bf16"], "device": ["cpu"], "threads": ["1"], "workers": ["0"],
    "validate_every": ["1"],
    "option": ["holdout=0.2"], "options": ["holdout=0.2"], "knobs": ["lam=0.1", "memory=4"],
    "recipe": ["features"], "model": ["mlp"],
    "augment": ["none"], "track": ["tensorboard"], "begin_with": ["out"], "save_every": ["1"], "counts": ["20,8,3"],
    "format": ["csv", "json"], "to": ["torch", "onnx"], "run": ["out"], "runs": ["out"], "inputs": ["tiny.npz"],
    "docs": ["results.md"],
}  # fmt: skip
# Without these a mistake elsewhere would be paid for with a run of its full length, or with one in processes of its own
ALWAYS = {"train": ["data", "epochs"], "compare": ["epochs", "seeds", "jobs"], "sweep": ["epochs", "seeds", "jobs"]}
# --compile is left out: a compiler of C++ takes a minute
AT_MOST_WRONG = {"compare": ["data", "methods"], "sweep": ["grid"]}  # one of these is always wrong: nothing is trained


class TookTooLongError(BaseException):
    """Not an Exception: the command must not turn it into a sentence."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, each right or wrong, and sometimes a word too many."""
    path = draw(st.sampled_from(sorted(COMMANDS)))
    name = path[-1]
    wrong = draw(st.sampled_from(AT_MOST_WRONG[name])) if name in AT_MOST_WRONG else None
    words = list(path)
    for parameter in draw(st.permutations(COMMANDS[path].params)):
        option = parameter.opts[0] if parameter.opts[0].startswith("-") else None
        needed = option is None or parameter.required or parameter.name in (*ALWAYS.get(name, []), wrong)
        if parameter.name in ("help", "compile") or not (needed or draw(st.integers(0, 5)) == 0):
            continue
        if getattr(parameter, "is_flag", False):
            words.append(option)
            continue
        right = parameter.name in RIGHT and parameter.name != wrong and draw(st.integers(0, 9)) > 0
        value = draw(st.sampled_from(RIGHT[parameter.name])) if right else draw(WORDS)
        words += [value] if option is None else [option, value]
    return words + draw(st.lists(WORDS, max_size=1)) * (draw(st.integers(0, 19)) == 0)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Of processor time, since the machine may be busy; waiting for ever is noticed too, later."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}
    before = {number: signal.signal(number, stop) for number in clocks}
    for timer, limit in clocks.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in clocks.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features that take no time to learn."""
    folder = tmp_path_factory.mktemp("arguments")
    random, train, test = np.random.default_rng(0), np.repeat([0, 1, 2], [20, 8, 3]), np.repeat([0, 1, 2], 4)
    np.savez(
        folder / "tiny.npz", train_labels=train, test_labels=test, train_features=random.normal(size=(31, 4)),
        test_features=random.normal(size=(12, 4)),
    )  # fmt: skip
    return folder


def end(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and what was said, in this process: importing torch for each would take longer than all the rest."""
    # Streams of bytes, as a process has them: a file's name need not be UTF-8, and pytest's own capture needs that
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(folder),
        at_most(SECONDS),
        pytest.raises(SystemExit) as ended,
    ):
        main(words)
    return int(ended.value.code or 0), err.buffer.getvalue().decode("utf-8", "replace")


def check(words: list[str], folder: Path) -> None:
    code, said = end(words, folder)
    assert code in (0, 1, 2), said
    assert "Traceback" not in said
    assert "longtail: unexpected " not in said  # what nobody foresaw begins so
    if code:
        assert len(said.splitlines()[-1]) < 1500 if said else not words or words == ["data"]


@pytest.mark.parametrize("words", FOUND, ids=lambda words: " ".join(words)[:40].encode("ascii", "replace").decode())
def test_what_was_found_is_one_sentence(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGTAIL_TRACEBACK", raising=False)
    check(words, place)


@settings(
    max_examples=int(os.environ.get("LONGTAIL_FUZZ", "60")),
    derandomize="LONGTAIL_FUZZ" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=lines())
def test_whatever_is_typed_ends_well(words: list[str], place: Path, no_figures: None) -> None:
    check(words, place)


def test_as_a_process_of_its_own_too(place: Path) -> None:
    for words in (["report", LONG], ["train", "elm", "--data", "moons", "--option", f"n={'[' * 50_000}"]):
        done = subprocess.run(
            [sys.executable, "-m", "longtail", *words], capture_output=True, text=True, cwd=place, timeout=120
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("longtail: ")
        assert done.stderr.count("\n") == 1
