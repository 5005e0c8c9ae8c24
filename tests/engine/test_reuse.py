"""A run that begins with another's training ends in the bits of one that trained it all itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from longtail import ClassCounts, methods, models
from longtail.engine.job import Job, execute
from longtail.errors import InputError


def run(method: str, out: Path, *, epochs: int = 4, **settings: object) -> Path:
    return execute(Job(method, epochs=epochs, out=str(out), **settings), say=lambda text: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("ce", tmp_path_factory.mktemp("begin") / "ce", ema=0.9)


@pytest.mark.parametrize("method", ["tau-norm", "crt", "lws", "dro-lt-multistage"])
def test_it_ends_in_the_same_bits(method: str, ce: Path, tmp_path: Path) -> None:
    whole = run(method, tmp_path / "whole", ema=0.9)
    begun = run(method, tmp_path / "begun", ema=0.9, begin_with=str(ce))
    for name in ("model.safetensors", "predictions.safetensors", "config.json"):
        assert (whole / name).read_bytes() == (begun / name).read_bytes(), name
    rows = [[json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()] for r in (whole, begun)]
    assert [r["loss"] for r in rows[0]] == [r["loss"] for r in rows[1]]
    assert [sorted(r) for r in rows[0]] == [sorted(r) for r in rows[1]]
    told = json.loads((begun / "environment.json").read_text())
    assert told["begun_with"] == "ce"
    assert "begun_with" not in json.loads((whole / "environment.json").read_text())


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("elm", {}, "the stages of elm do not begin with ce's"),
        ("crt", {"seed": 1}, r"trained otherwise: seed \(0, now 1\)"),
        ("crt", {"epochs": 5}, r"epochs \(4, now 5\)"),
        ("crt", {"options": {"ratio": 10}}, "fingerprint"),
    ],
)
def test_only_with_what_it_begins_with(
    method: str, settings: dict[str, object], message: str, ce: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run(method, tmp_path / "out", ema=0.9, begin_with=str(ce), **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "config.json").exists()


def test_only_with_a_whole_run(ce: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is not a run"):
        run("crt", tmp_path / "out", ema=0.9, begin_with=str(tmp_path / "nothing"))
    broken = tmp_path / "broken"
    shutil.copytree(ce, broken)
    shutil.rmtree(broken / "checkpoints")
    with pytest.raises(InputError, match="the checkpoint of its last step is not there"):
        run("crt", tmp_path / "out", ema=0.9, begin_with=str(broken))
    (broken / "summary.json").unlink()
    with pytest.raises(InputError, match="it is not finished"):
        run("crt", tmp_path / "out", ema=0.9, begin_with=str(broken))


def test_a_head_of_another_kind_is_no_beginning() -> None:
    """On features ce has scaled cosines, and what works on a linear head's bias or norm trains one from the start."""
    counts = ClassCounts([9, 3, 1])
    plans = {name: methods.build(name, counts) for name in ("ce", "crt", "lws", "tau-norm")}
    for model, same in {"mlp": ["crt", "lws", "tau-norm"], "mlp-features": ["crt"]}.items():
        own = models.own_head(model)
        assert [n for n, plan in plans.items() if n != "ce" and plan.begins_with(plans["ce"], own)] == same
