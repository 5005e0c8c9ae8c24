"""`longtail train`, `compare` and `sweep` as a user meets them: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from longtail import methods
from longtail.cli import compare, main
from longtail.cli.board import LiveBoard
from longtail.engine.job import Job
from longtail.engine.pool import Outcome, run_all
from longtail.runs.schema import Accuracy, GroupAccuracy, Score, Summary

LONGTAIL = [sys.executable, "-m", "longtail"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def printed(out: str) -> dict[str, list[str]]:
    """The cells of a printed table by what is first in their row."""
    return {cells[0]: cells[1:] for line in out.splitlines() for cells in [re.split("  +", line.strip())]}


@pytest.mark.parametrize("method", methods.names())
def test_every_method_trains_two_epochs(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "train", method, "--epochs", 2, "--out", tmp_path / "run")
    assert code == 0, err
    assert out.splitlines()[-1] == str(tmp_path / "run")
    assert err.count("epoch ") >= 2
    assert "momentum 0.9" in err
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["test"]["n"] == 400
    plan = json.loads((tmp_path / "run" / "config.json").read_text())
    assert plan["method"] == method
    built = methods.build(method, json.loads((tmp_path / "run" / "split.json").read_text())["counts"])
    assert [step["kind"] for step in found["posthoc"]] == [step.kind for step in built.posthoc]
    for step in found["posthoc"]:
        # The knob is the best on validation data
        assert max(step["val"].values()) == step["val"][f"{step['value']:g}"]


def test_a_normalised_head_is_the_models_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import load_file

    call(capsys, "train", "tau-norm", "--epochs", 3, "--out", tmp_path / "run")
    model, said = (
        load_file(tmp_path / "run" / "model.safetensors"),
        load_file(tmp_path / "run" / "predictions.safetensors"),
    )
    assert torch.equal(model["head.weight"], said["head_weight"])
    assert not model["head.bias"].any()
    torch.testing.assert_close(said["test_embeddings"] @ model["head.weight"].T, said["test_logits"])
    torch.testing.assert_close(said["train_embeddings"] @ model["head.weight"].T, said["train_logits"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["elmm"], "unknown method 'elmm': did you mean 'elm'?"),
        (["elm", "--set", "lamda=1"], "unknown knob of 'elm' 'lamda': did you mean 'lam'?"),
        (["elm", "--set", "lam"], "--set takes name=value, got 'lam'"),
        (["elm", "--set", "lam=x"], "lam must be a finite number, got 'x'"),
        (["elm", "--set", "lam=1", "--set", "lam=2"], "--set lam is given twice"),
        (["ce", "--data", "digit-lt"], "digit-lt"),
        (["ce", "--option", "ratoi=3"], "ratoi"),
        (["ce", "--recipe", "cifr"], "unknown recipe 'cifr': did you mean 'cifar'?"),
        (["ce", "--model", "resnet32"], "resnet32 takes images"),
        (["ce", "--model", "no.such:thing"], "cannot be imported"),
        (["ce", "--epochs", "0"], "epochs must be a whole number of at least 1"),
        (["ce", "--lr", "-1"], "lr must be a number above 0 and of at most 1000, got -1.0"),
        (["ce", "--batch-size", "0"], "batch_size must be a whole number"),
        (["ce", "--seed", "-1"], "seed must be a whole number in [0, 2^32), got -1"),
        (["ce", "--precision", "fp8"], "precision"),
        (["ce", "--device", "gpu"], "device must be cpu, cuda"),
        (["ce", "--device", "cuda"], "sees no GPU here"),
        (["ce", "--threads", "0"], "threads must be a whole number of at least 1 and of at most 1024, got 0"),
        (["ce", "--threads", "1000000000"], "threads must be a whole number"),
        (["ce", "--workers", "1000000000"], "workers must be a whole number"),
        (["ce", "--epochs", str(10**30)], "epochs must be a whole number of at least 1 and of at most 1000000"),
        (["ce", "--lr", "1e300"], "lr must be a number above 0 and of at most 1000, got 1e+300"),
        (["ce", "--ema", "1"], "ema must be a number above 0 and below 1, got 1.0"),
        (["ce", "--set-recipe", "weight_decy=1"], "unknown recipe field 'weight_decy': did you mean 'weight_decay'?"),
        (["ce", "--set-recipe", "name=mine"], "unknown recipe field 'name'"),
        (["ce", "--set-recipe", "nesterov=maybe"], "nesterov must be True or False, got 'maybe'"),
        (["ce", "--set-recipe", "milestones=3"], "milestones must be a list of epochs"),
        (["ce", "--set-recipe", "lr=" + "[" * 100_000], "--set-recipe lr is nested too deeply"),
        (["ce", "--set-recipe", "lr=0.1", "--lr", "0.2"], "lr is given by --lr and by --set-recipe: give it once"),
        (["ce", "--resume", "--force"], "give one of them"),
        (["ce", "--track", "tensorbord"], "unknown tracker 'tensorbord': did you mean 'tensorboard'?"),
        (["ce", "--out", "/dev/null/run"], "cannot write the run folder /dev/null/run"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "train", *arguments)
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("longtail: ")
    assert said in last
    assert out == ""
    assert "Traceback" not in err


def test_a_method_that_chooses_on_validation_data_refuses_to_do_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [60, 20])
    np.savez(tmp_path / "mine.npz", features=rng.normal(size=(80, 4)).astype("f4"), labels=labels)
    code, _, err = call(capsys, "train", "tau-norm", "--data", tmp_path / "mine.npz", "--out", tmp_path / "run")
    if code == 0:
        # The reader held some out by itself, and said so
        assert json.loads((tmp_path / "run" / "split.json").read_text())["val"] > 0
    else:
        assert code == 2
        assert "chooses tau on validation data" in err


def test_other_settings_go_to_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for extra in ([], ["--lr", "0.2"], ["--seed", "1"], ["--threads", "2"]):
        code, out, _ = call(capsys, "train", "ce", "--data", "moons", "--epochs", 1, *extra)
        assert code == 0
        paths.append(out.splitlines()[-1])
    # Threads change the last digits at most: that run was found finished
    assert paths[3] == paths[0]
    assert len(set(paths)) == 3
    assert all(Path(path).parent == Path("runs") for path in paths)


def test_a_run_that_fails_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(
        capsys,
        "train",
        "ce",
        "--data",
        "moons",
        "--epochs",
        2,
        "--lr",
        1000,
        "--set-recipe",
        "weight_decay=1000",
        "--out",
        tmp_path / "run",
    )
    assert code == 1
    assert "not finite" in err.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", "ce", "--data", "moons", "--epochs", "20000", "--out", str(out)]
    process = subprocess.Popen([*LONGTAIL, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)  # fmt: skip
    wait_for(lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 1000, process)
    process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said == ""
    assert errors.splitlines()[-1] == (
        f"longtail: stopped and saved; go on with: longtail train ce --data moons --epochs 20000 --out {out} --resume"
    )
    saved = sorted((out / "checkpoints").glob("*.safetensors"))
    assert saved
    rows = (out / "metrics.jsonl").read_text().splitlines()
    assert int(saved[-1].stem) >= json.loads(rows[-1])["step"]


def test_compare_loses_nothing_to_a_run_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    parts = {"train": np.repeat([0, 1], [40, 8]), "test": np.repeat([0, 1], 20)}
    features = {f"x_{name}": rng.normal(size=(len(y), 4)).astype("float32") for name, y in parts.items()}
    np.savez(tmp_path / "noval.npz", **features, **{f"y_{name}": y for name, y in parts.items()})
    # What the data cannot serve is refused before anything is trained
    code, _, err = call(
        capsys, "compare", "--data", tmp_path / "noval.npz", "--methods", "ce,tau-norm", "--out", tmp_path
    )
    assert code == 2
    assert err.startswith("longtail: tau-norm chooses tau on validation data, and")
    assert len(err.splitlines()) == 1
    broken = "elm:lam=1e300"
    arguments = ["compare", "--data", tmp_path / "noval.npz", "--methods", f"ce,{broken},elm"]
    arguments += ["--seeds", 2, "--epochs", 2, "--jobs", 2, "--out", tmp_path]
    code, out, err = call(capsys, *arguments)
    assert code == 1
    assert "2 of 6 runs failed: the loss is not finite" in err.splitlines()[-1]
    assert err.splitlines()[0].startswith("noval: 2 classes, 48 train")
    assert sum(line.startswith("[") for line in err.splitlines()) == 6
    assert (tmp_path / "report" / "index.html").stat().st_size > 1000
    rows = printed(out)
    assert rows["ce"][0] == "2"
    assert "±" in rows["elm"][1]
    assert rows[broken][1] == "—"
    balanced = [json.loads(p.read_text())["test"]["balanced"] for p in tmp_path.glob("*-ce-*/summary.json")]
    assert f"{50 * sum(balanced):.2f}" in rows["ce"][1]
    # Finished runs are found again
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")}
    assert len(before) == 4
    reported: list[Path] = []
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: reported.extend(paths))
    assert call(capsys, *arguments)[0] == 1
    assert sorted(reported) == sorted(p.parent for p in before)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")} == before


@pytest.mark.usefixtures("no_workers")
def test_compare_takes_knobs_with_a_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    methods = ["elm", "elm:memory=4:lam=0.5", "logadj:tau=2"]
    code, out, err = call(
        capsys, "compare", "--methods", ",".join(methods), "--data", "moons", "--seeds", 2, "--epochs", 1,
        "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    rows = printed(out)
    assert [name for name in rows if name in methods] == methods
    configs = {path.parent: json.loads(path.read_text()) for path in tmp_path.glob("*/config.json")}
    wanted = {"elm": {"memory": 0}, "elm:memory=4:lam=0.5": {"memory": 4, "lam": 0.5}, "logadj:tau=2": {"tau": 2}}
    for name, knobs in wanted.items():
        found = [
            path
            for path, c in configs.items()
            if c["method"] == name.split(":")[0] and knobs.items() <= c["knobs"].items()
        ]
        tests = [json.loads((path / "summary.json").read_text())["test"]["balanced"] for path in found]
        assert rows[name][:2] == ["2", compare.spread(tests)]


def test_compare_trains_a_shared_first_stage_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    arguments = ["compare", "--methods", "crt,elm,ce", "--seeds", 2, "--epochs", 2, "--jobs", 2, "--out", tmp_path]

    def run() -> dict[str, Path]:
        code, _, err = call(capsys, *arguments)
        assert code == 0, err
        return {path.name[len("digits-lt-") :].rpartition("-")[0]: path for path in tmp_path.glob("digits-lt-*")}

    def begun(path: Path) -> str | None:
        return json.loads((path / "environment.json").read_text()).get("begun_with")

    runs = run()
    assert {name: begun(path) for name, path in runs.items()} == {
        "ce-s0": None, "ce-s1": None, "elm-s0": None, "elm-s1": None,
        "crt-s0": runs["ce-s0"].name, "crt-s1": runs["ce-s1"].name,
    }  # fmt: skip
    first = (runs["crt-s0"] / "model.safetensors").read_bytes()
    # Where the first stage has no checkpoint any more, it is trained again, to the same weights
    shutil.rmtree(runs["ce-s0"] / "checkpoints")
    shutil.rmtree(runs["crt-s0"])
    again = run()["crt-s0"]
    assert begun(again) is None
    assert (again / "model.safetensors").read_bytes() == first


@pytest.mark.usefixtures("no_workers")
def test_digits_come_with_a_word_on_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    arguments = ["compare", "--methods", "ce", "--seeds", 1, "--epochs", 1, "--out", tmp_path]
    assert "may be chance, and the report says how many" in call(capsys, *arguments)[2]


def test_a_worker_that_dies_takes_only_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suicidal.py").write_text("import os, signal\ndef model(): os.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    base = {"data": "moons", "epochs": 1, "under": str(tmp_path)}
    jobs = [Job("ce", **base), Job("ce", model="suicidal:model", **base), Job("logadj", **base)]
    ends = run_all(jobs, 1)
    assert [end.path is not None for end in ends] == [True, False, True]
    assert "its process ended with signal 9" in ends[1].error


@pytest.mark.usefixtures("no_workers")
def test_sweep_chooses_on_validation_and_only_shows_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    code, out, err = call(
        capsys, "sweep", "elm", "--grid", "lam=0,0.01", "--grid", "tau=0,1", "--seeds", 1, "--epochs", 3, "--jobs", 1,
        "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    found = {}
    for path in tmp_path.glob("digits-lt-elm-*"):
        knobs = json.loads((path / "config.json").read_text())["knobs"]
        found[f"lam={knobs['lam']:g}, tau={knobs['tau']:g}"] = json.loads((path / "summary.json").read_text())
    assert len(found) == 4
    best = max(one["val"]["balanced"] for one in found.values())
    chosen = [line for line in out.splitlines() if "chosen on val" in line]
    assert len(chosen) == 1
    assert found[re.split("  +", chosen[0])[0]]["val"]["balanced"] == best
    assert "val (chooses)" in out
    assert "test (only shown)" in out


@pytest.mark.usefixtures("no_workers")
def test_every_field_of_a_recipe_can_be_set_and_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: out)
    code, out, err = call(
        capsys, "sweep", "elm", "--data", "moons", "--grid", "weight_decay=0,2e-4", "--grid", "lam=0.1", "--seeds", 1,
        "--set-recipe", "nesterov=true", "--set-recipe", "epochs=2", "--ema", 0.9, "--clip", 1, "--jobs", 1,
        "--threads", 1, "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    assert "weight_decay=2e-4, lam=0.1" in out
    recipes = [json.loads(path.read_text())["recipe"] for path in tmp_path.glob("*/config.json")]
    assert sorted(r["weight_decay"] for r in recipes) == [0, 2e-4]
    for r in recipes:
        assert (r["nesterov"], r["ema"], r["clip"], r["epochs"], r["warmup_epochs"]) == (True, 0.9, 1.0, 2, 0.04)


def test_the_three_commands_take_the_same_options_of_training() -> None:
    shown = {}
    for command in ("train", "compare", "sweep"):
        done = subprocess.run([*LONGTAIL, command, "--help"], capture_output=True, text=True, env=ENVIRONMENT)
        shown[command] = {word for word in done.stdout.split() if word.startswith("--")}
    for option in ("clip", "ema", "augment", "workers", "compile", "track", "threads", "precision", "set-recipe"):
        assert all(f"--{option}" in words for words in shown.values()), option


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--methods", ","], "--methods needs at least one method"),
        (["compare", "--methods", "ce,ce"], "names a method twice"),
        (["compare", "--methods", "ce,nope"], "unknown method 'nope'"),
        (["compare", "--methods", "ce,elm:lamb=1"], "unknown knob of 'elm' 'lamb': did you mean 'lam'?"),
        (["compare", "--methods", "elm:memory"], "--methods takes name=value, got 'memory'"),
        (["compare", "--methods", "ce,elm:lam=much"], "lam must be a finite number, got 'much'"),
        (["sweep", "elm", "--grid", "lam=0,much"], "lam must be a finite number, got 'much'"),
        (["sweep", "nope", "--grid", "lam=1"], "unknown method 'nope'"),
        (["sweep", "elm", "--grid", "lamb=1"], "field of a recipe 'lamb': did you mean 'lam'?"),
        (["sweep", "elm", "--grid", "lam=1", "--set", "taub=2"], "unknown knob of 'elm' 'taub': did you mean 'tau'?"),
        (["sweep", "ce", "--grid", "lam=1"], "unknown knob of 'ce' or field of a recipe 'lam'"),
        (["sweep", "ce", "--grid", "lr=0.1,0"], "lr must be a number above 0"),
        (["sweep", "ce", "--grid", "lr=0.1,0.2", "--lr", "0.3"], "lr is given by --grid and by another option"),
        (["compare", "--set-recipe", "warmup=3"], "unknown recipe field 'warmup': did you mean 'warmup_epochs'?"),
        (["compare", "--lr", "1e300"], "lr must be a number above 0"),
        (["compare", "--data", "digit-lt"], "unknown data set 'digit-lt': did you mean 'digits-lt'?"),
        (["sweep", "elm", "--grid", "lam=1", "--data", "digit-lt"], "did you mean 'digits-lt'?"),
        (["compare", "--option", "ratoi=3"], "ratoi"),
        (["compare", "--track", "tensorbord"], "unknown tracker 'tensorbord'"),
        (["sweep", "elm", "--grid", "lam"], "--grid takes name=value"),
        (["sweep", "elm", "--grid", "lam=1,1"], "needs different values"),
        (["sweep", "elm", "--grid", "lam=0.1,1e-1"], "needs different values"),
        (["sweep", "elm", "--grid", "lam=1", "--set", "lam=2"], "give it once"),
    ],
)
def test_mistakes_in_comparisons(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing may run before all names are known"


def test_an_interrupted_comparison_says_what_is_saved_and_goes_on(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group of processes, as a terminal sends it."""
    command = ["compare", "--data", "moons", "--methods", "ce,elm:lam=0.1", "--seeds", "1", "--epochs", "20000"]
    command += ["--jobs", "2", "--out", "here", "--force"]
    process = subprocess.Popen([*LONGTAIL, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=ENVIRONMENT, cwd=tmp_path, start_new_session=True)  # fmt: skip
    here = tmp_path / "here"
    wait_for(lambda: sum(p.stat().st_size > 1000 for p in here.glob("*/metrics.jsonl")) == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGINT
    assert said == ""
    lines = errors.splitlines()
    assert lines[0].startswith("moons: 2 classes, 1000 train")
    assert lines[2] == "2 runs in here: 1 seed of each, 2 at a time"
    assert lines[-1].startswith("longtail: stopped: 0 of 2 runs are finished and 2 saved on the way (ce seed 0 at ")
    again = "longtail compare --data moons --methods ce,elm:lam=0.1 --seeds 1 --epochs 20000 --jobs 2 --out here"
    assert lines[-1].endswith(f"; go on with: {again}")
    for run in here.iterdir():
        saved = sorted((run / "checkpoints").glob("*.safetensors"))
        rows = (run / "metrics.jsonl").read_text().splitlines()
        assert int(saved[-1].stem) >= json.loads(rows[-1])["step"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("seeds", [1, 5, 30])
def test_the_live_table_shows_whole_names_and_what_is_known(width: int, seeds: int) -> None:
    import io

    from rich.console import Console

    names = ["ce", "dro-lt-multistage", "my_losses:ring:lam=0.05:memory=1024:something=long"]
    board = LiveBoard(names, seeds, 2)
    board.console = Console(width=width, height=40, file=io.StringIO())
    assert board.left() is None
    board.step(0, 0.0)
    board.step(1, 0.0)
    assert board.state(2) == "·"
    now = time.monotonic()
    board.share |= {0: 0.5, 1: 1.0}
    board.begun |= {0: (now - 10, 0.0), 1: (now - 40, 0.5)}
    # 20 s a run of the first, 80 s of the second, 50 / 1.0 s of one not yet seen; two at a time
    rest = 10 + 20 * (seeds - 1) + 80 * (seeds - 1) + 50 * seeds
    assert board.left() == pytest.approx(max(rest / 2, 50.0), abs=1)
    board.balanced[2], board.ends[2] = 0.8825, Outcome(Path("run"))
    board.console.print(board.picture())
    shown = board.console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    assert all(word in shown for word in ("50 %", "the end", "88.25", f"seed {seeds - 1}", "dro-lt-multistage", "1 of"))
    assert names[2] in "".join(line.split("  ")[0].strip() for line in shown.splitlines())


def test_a_report_is_opened_where_there_is_a_browser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import webbrowser

    page = tmp_path / "with space" / "index.html"
    monkeypatch.setattr("longtail.report.page.build", lambda paths, out: page)
    ends = [Outcome(tmp_path)]
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    compare.conclude(ends, tmp_path, True)
    assert "no browser" in capsys.readouterr().err
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    compare.conclude(ends, tmp_path, True)
    assert opened == [page.as_uri()]


def wait_for(condition: object, process: subprocess.Popen[str], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            pytest.fail(f"the run did not get far enough: {process.communicate()[1]}")
        time.sleep(0.02)


def test_tables_print_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in the path of somebody's data are no markup."""
    groups = {group: GroupAccuracy(0.5, 1) for group in ("head", "torso", "tail")}
    parts = Summary(1, Accuracy(0.5, groups=groups), val=Score(0.5))
    compare.print_table("a[/b]/f.npz", {"[red]": [parts]})
    compare.print_sweep("a[/b]/f.npz", {"[/x]": [parts]})
    printed = capsys.readouterr().out
    assert printed.count("a[/b]/f.npz") == 2
    assert "[red]" in printed
    assert "[/x]" in printed


def test_a_summary_that_cannot_be_read_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "ce", "--data", "moons", "--epochs", "1", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit):
        main(command)
    (tmp_path / "run" / "summary.json").write_text("{")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "summary.json cannot be read" in said
    assert "--force" in said
