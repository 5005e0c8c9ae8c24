"""`longtail sweep --trials`: a search by optuna."""

import json
import math
import sys

import numpy as np
import pytest

from longtail.cli import main
from longtail.cli.search import ROUND, Range, search
from longtail.errors import InputError

optuna = pytest.importorskip("optuna")
AXES = {"lam": Range(0.0001, 10.0), "memory": Range(1, 8), "alpha": ["n^0.5", "prior"]}


def points(trials, score, axes=AXES):
    seen = []

    def run(asked):
        seen.extend(asked)
        return [score(point) for point in asked]

    search(axes, trials, run)
    return seen


def near(point):
    return -abs(math.log10(float(point["lam"])) + 1) - (point["alpha"] == "prior")


def test_a_search_is_the_same_every_time_goes_on_and_comes_near():
    first = points(10, near)
    more = points(10 + 3 * ROUND, near)
    assert more[: len(first)] == first
    assert max(near(p) for p in more) > -0.3
    late = [near(p) for p in more[len(first) :]]
    assert np.mean(late) > np.mean([near(p) for p in first])
    assert all(p["memory"] in map(str, range(1, 9)) for p in more)  # both ends were written as whole numbers
    assert all(len(p["lam"].replace("0.", "").lstrip("0")) <= 6 for p in more)


def test_a_point_runs_once_and_one_that_fails_ends_nothing():
    axes = {"alpha": ["n^0.5", "prior"]}
    seen = points(12, lambda p: None if p["alpha"] == "prior" else 0.5, axes)
    assert sorted(p["alpha"] for p in seen) == ["n^0.5", "prior"]


@pytest.mark.parametrize("text", ["1..1", "2..1", "a..b", "..", "1..2..3", "0..inf", "nan..1", "0.1..0.2,3"])
def test_what_is_no_range(text):
    with pytest.raises(InputError, match=r"takes a range from a smaller to a larger number: 0\.001\.\.0\.1, got"):
        Range.read("lam", text)


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return (int(ended.value.code or 0), *capsys.readouterr())


def test_the_command_searches_on_validation_data_and_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    monkeypatch.setenv("COLUMNS", "200")
    command = ["sweep", "elm", "--data", "moons", "--grid", "lam=0.001..0.1", "--grid", "lr=0.01..0.2", "--seeds", 1]
    command += ["--epochs", 1, "--jobs", 1, "--threads", 1, "--out", tmp_path]
    code, _, err = call(capsys, *command, "--trials", 2)
    assert code == 0, err
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.safetensors")}
    code, out, err = call(capsys, *command, "--trials", 3)
    assert code == 0, err
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.safetensors")}
    assert len(before) == 2
    assert len(after) == 3
    assert before.items() <= after.items()  # what was finished was not trained again
    found = {}
    for path in after:
        config, summary = (json.loads((path.parent / f"{name}.json").read_text()) for name in ("config", "summary"))
        found[f"lam={config['knobs']['lam']:g}, lr={config['recipe']['lr']:g}"] = summary["val"]["balanced"]
    (chosen,) = [line.split("  ")[0].strip() for line in out.splitlines() if "chosen on val" in line]
    assert found[chosen] == max(found.values())


def test_what_cannot_be_searched_is_said_before_anything_runs(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "few.npz", x_train=np.eye(6), y_train=[0, 0, 0, 1, 1, 1], x_test=np.eye(6), y_test=[0, 1] * 3)
    without = ["sweep", "elm", "--data", tmp_path / "few.npz", "--grid", "lam=0.001..0.1"]
    assert "is a range: give --trials N to search it" in call(capsys, *without)[2]
    code, _, err = call(capsys, *without, "--trials", 3)
    assert code == 2
    assert "few.npz has none: --option holdout=0.1 takes a tenth" in err
    assert "lr must be a number above 0" in call(capsys, *without, "--grid", "lr=0..1", "--trials", 3)[2]
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call(capsys, *without, "--option", "holdout=0.5", "--trials", 3)
    assert code == 2
    assert "not installed: pip install 'longtail[tune]'" in err
