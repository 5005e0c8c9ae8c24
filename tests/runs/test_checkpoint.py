"""Checkpoints: what was saved comes back, what was damaged is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as save_tensors

from longtail.errors import InputError, RunError
from longtail.runs import checkpoint, files

TENSORS = {
    "model.w": torch.randn(3, 4),
    "memory.ids": torch.arange(5),
    "scalar": torch.tensor(2.0, dtype=torch.float64),
}


def save(folder: Path, step: int) -> bytes:
    data = checkpoint.encode(
        {**TENSORS, "step": torch.tensor(step)}, {"at": {"done": step}, "sums": {"loss": 0.1 + 0.2}}
    )
    checkpoint.save(folder, step, data)
    return data


def test_everything_comes_back_to_the_bit() -> None:
    back = checkpoint.decode(checkpoint.encode(TENSORS, {"sums": {"loss": 0.1 + 0.2}, "at": [1, None]}))
    assert set(back.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)
    assert back.meta == {"sums": {"loss": 0.1 + 0.2}, "at": [1, None]}


def test_the_same_state_gives_the_same_bytes() -> None:
    meta = {"b": 1, "a": {"d": 2, "c": 3}}
    assert checkpoint.encode(TENSORS, meta) == checkpoint.encode(
        dict(reversed(TENSORS.items())), dict(reversed(meta.items()))
    )


def test_the_last_two_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    for step in (5, 10, 1000, 15):
        last = save(tmp_path, step)
    # 1000 was of a life that ended before 15 was made again: nobody may go on from it
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == ["000000010.safetensors", "000000015.safetensors"]
    found = checkpoint.latest(tmp_path, pytest.fail)
    assert found is not None
    assert found[0] == last


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def _unseal(path: Path) -> None:
    path.with_suffix(".json").unlink()


def _spoil_seal(path: Path) -> None:
    path.with_suffix(".json").write_text('{"sha256": 3')


def _nest_seal(path: Path) -> None:
    path.with_suffix(".json").write_text("[" * 100_000)


def _seal_again(path: Path, data: bytes) -> None:
    """As somebody does who edits a checkpoint and knows of the checksum."""
    path.write_bytes(data)
    seal = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    path.with_suffix(".json").write_text(json.dumps(seal))


def _nest_header(path: Path) -> None:
    _seal_again(path, save_tensors(TENSORS, {"longtail": "[" * 100_000}))


def _drop_header(path: Path) -> None:
    _seal_again(path, save_tensors(TENSORS))


def _spoil_format(path: Path) -> None:
    _seal_again(path, checkpoint.encode(TENSORS, {"format": "two", "at": {"done": 10}}))


def _empty(path: Path) -> None:
    _seal_again(path, b"")


def _forge_seal(path: Path) -> None:
    path.with_suffix(".json").write_text(json.dumps({"sha256": "0" * 64, "bytes": path.stat().st_size}))


DAMAGE = [
    _truncate, _flip_a_bit, _unseal, _spoil_seal, _forge_seal, _nest_seal, _nest_header, _drop_header, _spoil_format,
    _empty,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_passed_over_with_a_warning(damage: object, tmp_path: Path) -> None:
    before = save(tmp_path, 5)
    save(tmp_path, 10)
    damage(tmp_path / "000000010.safetensors")
    warnings: list[str] = []
    found = checkpoint.latest(tmp_path, warnings.append)
    assert found is not None
    assert found[0] == before
    assert len(warnings) == 1
    assert "000000010.safetensors is not usable" in warnings[0]


def test_a_newer_format_is_refused_by_name_and_nothing_older_is_taken(tmp_path: Path) -> None:
    save(tmp_path, 5)
    checkpoint.save(tmp_path, 10, checkpoint.encode(TENSORS, {"format": 2}))
    with pytest.raises(InputError, match=r"000000010.safetensors cannot be used: it has format 2 .* newer longtail"):
        checkpoint.latest(tmp_path, pytest.fail)


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        ((99, 0, 0, 0), "stage 99 of 2"),
        ((-1, 0, 0, 0), "stage -1 of 2"),
        ((0, 999, 0, 0), "epoch 999 of 3 in stage 0"),
        ((1, 0, -5, 15), "step -5 of 4 in stage 1"),
        ((0, 1, 5, 10), "step 5 of 5 in stage 0"),
        ((1, 1, 2, 20), "20 steps where 21 lie behind"),
        ((2, 0, 1, 23), "step 1 of 1 in stage 2"),
    ],
)
def test_a_position_where_no_run_can_be_is_named(at: tuple[int, int, int, int], problem: str) -> None:
    lengths = [(3, 5), (2, 4)]
    assert problem in (checkpoint.Position(*at).problem(lengths) or "")
    for good in ((0, 0, 0, 0), (0, 2, 4, 14), (1, 0, 0, 15), (1, 1, 3, 22), (2, 0, 0, 23)):
        assert checkpoint.Position(*good).problem(lengths) is None


def test_none_usable_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "absent", pytest.fail) is None
    save(tmp_path, 5)
    _truncate(tmp_path / "000000005.safetensors")
    assert checkpoint.latest(tmp_path, lambda text: None) is None


def test_a_full_disk_is_one_sentence_and_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = save(tmp_path, 5)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"the disk of .* is full: 000000010.safetensors was not written"):
        save(tmp_path, 10)
    monkeypatch.undo()
    found = checkpoint.latest(tmp_path, pytest.fail)
    assert found is not None
    assert found[0] == before
    assert not list(tmp_path.glob(".*"))


def test_json_refuses_what_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
