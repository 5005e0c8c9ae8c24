"""The run folder: what starts, goes on, is refused or found finished."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longtail import methods
from longtail.engine import finish
from longtail.engine.job import Job, execute, prepare
from longtail.errors import InputError, RunError
from longtail.runs import checkpoint
from longtail.runs import folder as runs
from longtail.runs.predictions import predictions

JOB = Job("ce", data="moons", epochs=2, save_steps=2)


def do(job: Job, **options: Any) -> tuple[Path, str]:
    said: list[str] = []
    path = execute(job, say=said.append, **options)
    return path, "\n".join(said)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run for all tests that only look at it."""
    return do(replace(JOB, out=str(tmp_path_factory.mktemp("runs") / "run")))[0]


class Bomb:
    """Breaks a run off after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, now: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("broken off")

    def epoch(self, row: object) -> None:
        pass


def broken(job: Job, steps: int) -> None:
    with pytest.raises(RuntimeError, match="broken off"):
        do(job, watchers=[Bomb(steps)])


def test_a_finished_run_holds_what_was_promised(finished: Path) -> None:
    config, environment, split, summary = (
        json.loads((finished / f"{name}.json").read_text()) for name in ("config", "environment", "split", "summary")
    )
    assert (config["method"], config["seed"], config["epochs"], config["format"]) == ("ce", 0, 2, 1)
    assert config["recipe"]["momentum"] == 0.9
    assert any("momentum" in sentence for sentence in config["decisions"])
    assert environment["finished"] >= environment["started"]
    assert environment["resumed"] == 0
    assert split["counts"] == [950, 50]
    assert (split["train"], split["val"], split["test"]) == (1000, 500, 2000)
    assert summary["test"]["n"] == 2000
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[-1]["test"]["balanced"] == summary["test"]["balanced"]
    assert "test" not in rows[0]
    predictions = load_file(finished / "predictions.safetensors")
    assert predictions["train_logits"].shape == (1000, 2)
    assert predictions["val_embeddings"].shape == (500, 2)
    assert predictions["test_labels"].shape == (2000,)
    assert not list(finished.glob(".*"))


def test_the_same_settings_give_the_same_bits_wherever_and_whenever(finished: Path, tmp_path: Path) -> None:
    again, _ = do(replace(JOB, out=str(tmp_path / "again"), save_steps=None))
    for name in ("model.safetensors", "predictions.safetensors", "summary.json", "config.json"):
        assert (again / name).read_bytes() == (finished / name).read_bytes()
    other, _ = do(replace(JOB, out=str(tmp_path / "other"), seed=1))
    assert (other / "model.safetensors").read_bytes() != (finished / "model.safetensors").read_bytes()


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_run_is_not_run_again(resume: bool, finished: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in finished.iterdir() if p.name != "lock"}
    _, said = do(replace(JOB, out=str(finished), resume=resume))
    assert "is finished: nothing to do" in said
    assert {p.name: p.stat().st_mtime_ns for p in finished.iterdir() if p.name != "lock"} == before


def test_force_runs_it_again_and_removes_nothing_else(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    path, _ = do(replace(JOB, out=str(tmp_path / "run"), force=True, epochs=1))
    assert json.loads((path / "config.json").read_text())["epochs"] == 1
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 1
    assert (path / "notes.txt").read_text() == "mine"


def test_a_config_says_all_knobs_and_which_are_not_default(tmp_path: Path) -> None:
    job = Job("elm", data="moons", knobs={"lam": "0.5", "tau": "1"}, epochs=1, save_steps=1, out=str(tmp_path / "run"))
    config = prepare(job).config
    assert config["changed"] == {"lam": 0.5}
    # Knobs that came later are listed only where they are on, so that runs keep their names
    assert {"alpha", "lam", "tau", "memory"} <= set(config["knobs"]) <= set(methods.knobs("elm"))
    # A run begun before there was the field goes on
    broken(job, 2)
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps({k: v for k, v in config.items() if k != "changed"}))
    assert "going on from" in do(replace(job, resume=True))[1]


def test_another_config_is_refused_with_the_keys_that_differ(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"recipe.lr \(0.1, now 0.2\).*another --out"):
        do(replace(JOB, out=str(finished), lr=0.2, resume=True))
    job = replace(JOB, out=str(tmp_path / "run"))
    broken(job, 3)
    with pytest.raises(InputError, match=r"seed \(0, now 1\)"):
        do(replace(job, seed=1, resume=True))


def test_an_unfinished_run_needs_resume(tmp_path: Path, finished: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"))
    broken(job, 10)
    with pytest.raises(InputError, match="holds an unfinished run: add --resume"):
        do(job)
    path, said = do(replace(job, resume=True))
    assert "going on from" in said
    assert (path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert json.loads((path / "environment.json").read_text())["resumed"] == 1


def test_resume_without_a_usable_checkpoint_starts_afresh_and_says_so(tmp_path: Path, finished: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 10)
    for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    path, said = do(job)
    assert "warning: checkpoint" in said
    assert "has no usable checkpoint: starting afresh" in said
    assert (path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert [json.loads(x)["epoch"] for x in (path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_a_tampered_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, finished: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 11)
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 255
    newest.write_bytes(data)
    path, said = do(job)
    assert f"warning: checkpoint {newest.name} is not usable" in said
    assert "going on from" in said
    assert (path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_a_half_written_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 10)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"stage": "train", "epo')
    path, _ = do(job)
    assert [json.loads(x)["epoch"] for x in (path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_changed_data_is_refused(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 10)
    with pytest.raises(InputError, match=r"data\.fingerprint"):
        do(replace(job, options={"seed": 1}))


def test_a_folder_in_use_is_refused_and_its_lock_dies_with_its_holder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with open(folder / "lock", "w") as other:
        other.write("process 1 on elsewhere")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"is being written by another process \(process 1 on elsewhere\)"):
            do(replace(JOB, out=str(folder)))
    # The file is still there, and its holder is gone
    assert do(replace(JOB, out=str(folder)))[0] == folder


def test_what_cannot_be_written_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write the run folder .*it is not a folder"):
        do(replace(JOB, out=str(tmp_path / "file")))
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"is not empty and no run folder \(it holds thesis.tex\)"):
        do(replace(JOB, out=str(tmp_path / "papers")))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(InputError, match=r"the run needs about \d+ MB, but the disk of .* has 0 MB left"):
        do(replace(JOB, out=str(tmp_path / "run")))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), lr=1000, set_recipe={"weight_decay": 1000}, save_steps=1)
    with pytest.raises(RunError, match=r"not finite"):
        do(job)
    assert not (tmp_path / "run" / "summary.json").exists()
    _, state = runs.last_checkpoint(tmp_path / "run")
    assert all(bool(t.isfinite().all()) for t in state.tensors.values())


def test_default_folders_differ_with_the_settings_and_not_with_circumstances() -> None:
    config = {"method": "elm", "seed": 3, "threads": 1, "data": {"name": "a/my.images", "root": "x", "options": {}}}
    path = runs.default_folder(config)
    assert path.parent == Path("runs")
    assert path.name.startswith("my-images-elm-s3-")
    assert runs.default_folder({**config, "threads": 8, "longtail": "9"}) == path
    assert runs.default_folder({**config, "changed": {"lam": 1}}) == path
    assert runs.default_folder({**config, "data": {**config["data"], "root": "y"}}) == path
    assert runs.default_folder({**config, "data": {**config["data"], "options": {"ratio": 10}}}) != path
    assert runs.default_folder({**config, "lr": 1}) != path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot write the run folder .*Permission denied"):
        do(replace(JOB, out=str(tmp_path / "run")))


def test_a_mistake_that_shows_late_leaves_no_run_behind(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"))
    with pytest.raises(InputError, match="augment"):
        do(replace(job, augment="crop-flop"))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"lock"}
    assert (do(job)[0] / "summary.json").exists()


def test_resume_of_nothing_starts_afresh_and_says_so(tmp_path: Path) -> None:
    path, said = do(replace(JOB, out=str(tmp_path / "run"), resume=True, epochs=1))
    assert "has no usable checkpoint: starting afresh" in said
    command = json.loads((path / "environment.json").read_text())["command"]
    assert command == ["longtail", "train", "ce", "--data", "moons", "--epochs", "1", "--out", str(path)]


def test_of_too_many_training_logits_only_margins_and_classes_are_kept(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longtail.evaluate import diagnostics

    monkeypatch.setattr(finish, "MOST_LOGITS", 1999)
    path, _ = do(replace(JOB, out=str(tmp_path / "run")))
    all_of_it, kept = (load_file(p / "predictions.safetensors") for p in (finished, path))
    assert "train_logits" not in kept
    assert bool((kept["train_predicted"] == all_of_it["train_logits"].argmax(1)).all())
    expected = diagnostics.margins(all_of_it["train_logits"], all_of_it["train_labels"])
    assert kept["train_margins"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    before, after = (json.loads((p / "summary.json").read_text()) for p in (finished, path))
    assert after["train"] == pytest.approx(before["train"], rel=1e-5)
    assert after["test"] == before["test"]
    assert predictions(path).train is None
    with pytest.raises(InputError, match="moons is too large for k-NN"):
        do(replace(JOB, method="supcon", out=str(tmp_path / "other")))


def test_a_mistake_with_force_does_not_cost_the_finished_run(finished: Path, tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), force=True)
    shutil.copytree(finished, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file() and p.name != "lock"}
    saved = sorted(os.listdir(tmp_path / "run" / "checkpoints"))

    def unharmed() -> bool:
        now = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file() and p.name != "lock"}
        return now == before and sorted(os.listdir(tmp_path / "run" / "checkpoints")) == saved

    with pytest.raises(InputError, match="augment"):
        do(replace(job, augment="crop-flop"))
    assert unharmed()
    broken(job, 0)  # an accident before the first checkpoint
    assert unharmed()
    assert not (tmp_path / "run" / ".replaced").exists()
    broken(job, 3)  # and after it, when the new run is under way
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / ".replaced").exists()


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"is not empty and no run folder"):
        do(replace(JOB, out=str(tmp_path)))
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """Workers that read images are forked and outlive a killed run by some seconds."""
    reading, writing = os.pipe()
    with runs.RunFolder(tmp_path, {}):
        child = os.fork()
        if child == 0:
            os.write(writing, b"here")
            time.sleep(60)
            os._exit(0)
        os.read(reading, 4)
    try:
        with runs.RunFolder(tmp_path, {}):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_damaged_records_do_not_stop_a_resumed_run(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 10)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"no": "epoch"}\n\xff\n')
    (tmp_path / "run" / "environment.json").write_text("[1]")
    assert (do(job)[0] / "summary.json").exists()


def test_checkpoints_of_another_run_and_no_place_for_them_are_one_sentence(finished: Path, tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True, model="linear")
    broken(job, 10)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(finished / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match="the checkpoint does not fit the model, it is of another run"):
        do(job)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        do(job)
    assert (do(replace(job, resume=False, force=True))[0] / "summary.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2**32}, r"seed must be a whole number in \[0, 2\^32\)"),
        ({"device": "meta"}, "device must be cpu, cuda"),
        ({"device": "mps"}, "device must be cpu, cuda"),
    ],
)
def test_mistakes_show_before_there_is_a_folder(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        do(replace(JOB, out=str(tmp_path / "run"), **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["images", "features", "moons", "cifar"])
def test_the_name_of_somebodys_file_does_not_choose_the_recipe(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.npz"
    np.savez(path, features=np.eye(20, 8, dtype=np.float32), labels=np.arange(20) % 2)
    assert prepare(Job("ce", data=str(path))).recipe.name == "features"
    assert prepare(Job("ce", data="moons")).recipe.name == "moons"


def _edit_checkpoint(file: Path, at: Any = None, tensors: Any = None, **meta: Any) -> None:
    """As somebody does who edits a checkpoint and knows of the checksum."""
    state = checkpoint.decode(file.read_bytes())
    meta = {**state.meta, **meta}
    meta["at"] = {**meta["at"], **(at or {})} if isinstance(meta["at"], dict) else meta["at"]
    data = checkpoint.encode({**state.tensors, **(tensors or {})}, meta)
    file.write_bytes(data)
    seal = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    file.with_suffix(".json").write_text(json.dumps(seal))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"at": {"stage": 99}}, "it says stage 99 of 1"),
        ({"at": {"epoch": 999}}, "it says epoch 999 of 2"),
        ({"at": {"step": -5}}, "it says step -5"),
        ({"at": {"done": 3}}, "it says 3 steps where"),
        ({"at": {"done": "3"}}, "it does not say where the run was"),
        ({"at": {"where": 3}}, "it does not say where the run was"),
        ({"sums": {"loss": "much"}}, "its sums of the epoch are damaged"),
        ({"sums": None}, "its sums of the epoch are damaged"),
        ({"processes": "two"}, "it says that 'two' processes wrote it"),
    ],
)
def test_a_checkpoint_of_nowhere_is_passed_over_for_the_one_before(
    edit: dict[str, Any], problem: str, finished: Path, tmp_path: Path
) -> None:
    job = replace(JOB, out=str(tmp_path / "run"))
    broken(job, 5)
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    _edit_checkpoint(newest, **edit)
    path, said = do(replace(job, resume=True))
    assert f"warning: checkpoint {newest.name} is not usable ({problem}" in said
    assert "going on from" in said
    assert (path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_a_checkpoint_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"))
    broken(job, 5)
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    _edit_checkpoint(newest, format=2)
    before = newest.read_bytes()
    with pytest.raises(InputError, match=rf"{newest.name} cannot be used: it has format 2 .* newer longtail"):
        do(replace(job, resume=True))
    assert newest.read_bytes() == before


def test_tensors_of_another_shape_are_one_sentence(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), ema=0.9)
    broken(job, 5)
    files = sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    name = next(n for n in checkpoint.decode(files[-1].read_bytes()).tensors if n.startswith("ema."))
    _edit_checkpoint(files[-1], tensors={name: torch.zeros(3, 3)})
    with pytest.raises(RunError, match=r"does not fit this run: .* it holds float32 of shape \(3, 3\)"):
        do(replace(job, resume=True))
    weights = checkpoint.decode(files[0].read_bytes()).tensors["model.head.weight"]
    _edit_checkpoint(files[-1], tensors={"model.head.weight": weights.to(torch.int64)})
    with pytest.raises(RunError, match=r"head.weight is float32 of shape .* and it holds int64 of shape"):
        do(replace(job, resume=True))


def test_a_pipe_or_a_device_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"), resume=True)
    broken(job, 5)
    run = tmp_path / "run"
    (run / "environment.json").unlink()
    (run / "environment.json").symlink_to("/dev/zero")
    newest = max((run / "checkpoints").glob("*.safetensors"))
    newest.unlink()
    os.mkfifo(newest)
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics.jsonl is not a regular file"):
        do(job)
    (run / "metrics.jsonl").unlink()
    (run / "config.json").rename(tmp_path / "config")
    os.mkfifo(run / "config.json")
    with pytest.raises(InputError, match=r"config.json is not a run's config"):
        do(job)
    (tmp_path / "config").replace(run / "config.json")
    assert f"checkpoint {newest.name} is not usable (it is not a regular file)" in do(job)[1]


@pytest.mark.parametrize("name", ["config.json", "environment.json", "split.json", "metrics.jsonl"])
@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"resumed": "often", "epoch": 1e999, "format": 7}', "\x00"])
def test_no_damaged_file_ends_in_a_traceback(name: str, text: str, tmp_path: Path) -> None:
    job = replace(JOB, out=str(tmp_path / "run"))
    broken(job, 5)
    (tmp_path / "run" / name).write_text(text)
    if name == "config.json":
        with pytest.raises(InputError, match=r"config\.json"):
            do(replace(job, resume=True))
    else:
        path, _ = do(replace(job, resume=True))
        assert len((path / "metrics.jsonl").read_text().splitlines()) == 2
