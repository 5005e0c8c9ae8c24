"""Looks at the validation data while training: right, and without effect on what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from longtail.engine.job import Job, Prepared, execute, perform, prepare
from longtail.engine.progress import Watcher, describe
from longtail.errors import InputError


def silent(text: str) -> None:
    pass


class ByHand(Watcher):
    """What the network, as it is, makes of the validation data: class by class, one sample at a time."""

    def __init__(self, ready: Prepared) -> None:
        self.ready, self.rows = ready, {}

    def epoch(self, row: dict[str, Any]) -> None:
        model, val, hits = self.ready.model, self.ready.data.val, {}
        model.eval()
        with torch.no_grad():
            for x, y in zip(val.inputs, val.labels.tolist()):
                hits.setdefault(y, []).append(int(model(x[None]).logits.argmax()) == y)
        model.train()
        recall = {y: sum(right) / len(right) for y, right in hits.items()}
        groups = {
            name: sum(seen) / len(seen) if (seen := [recall[y] for y in index.tolist() if y in recall]) else None
            for name, index in self.ready.data.counts.groups().items()
        }
        self.rows[row["epoch"]] = row, {"balanced": sum(recall.values()) / len(recall), "groups": groups}


def test_a_look_is_the_accuracy_of_the_network_as_it_is(tmp_path: Path) -> None:
    ready = prepare(Job("logadj", "digits-lt", epochs=5, validate_every=2, out=str(tmp_path / "run")))
    by_hand = ByHand(ready)
    path = perform(ready, say=silent, watchers=[by_hand], stop=lambda: 0)
    for epoch, (row, expected) in by_hand.rows.items():
        if epoch % 2:
            assert row.get("val") is None
            continue
        assert row["val"]["balanced"] == pytest.approx(expected["balanced"])
        assert row["val"]["groups"] == pytest.approx(expected["groups"])
        assert "validation: head " in describe(row)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [("val" in row, "test" in row) for row in rows] == [
        (False, False), (True, False), (False, False), (True, False), (True, True)
    ]  # fmt: skip
    # The last row is the result, looked at or not
    assert rows[-1]["val"]["groups"] == pytest.approx(by_hand.rows[5][1]["groups"], abs=1e-6)


@pytest.mark.parametrize(("method", "fields"), [("elm", {"ema": 0.9}), ("crt", {}), ("ldam-drw", {})])
def test_looking_changes_nothing(method: str, fields: dict[str, Any], tmp_path: Path) -> None:
    with_looks, without = (
        execute(Job(method, "digits-lt", epochs=4, validate_every=n, out=str(tmp_path / str(n)), **fields), say=silent)
        for n in (1, 0)
    )
    for name in ("model.safetensors", "predictions.safetensors", "summary.json", "config.json"):
        assert (with_looks / name).read_bytes() == (without / name).read_bytes()


def test_without_validation_data_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"--validate-every looks at validation data, and .* has none: --option hold"):
        prepare(Job("ce", "digits-lt", validate_every=1, options={"val_per_class": 0}))
    with pytest.raises(InputError, match="validate-every must be"):
        prepare(Job("ce", "digits-lt", validate_every=-1))
