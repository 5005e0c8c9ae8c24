"""The files of a run as nobody wrote them: they are read and reported, or refused in one line, whatever they hold.

``FUZZ=2000`` looks further; what it found stays here as an example.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fake_runs import make_run
from longtail.errors import InputError
from longtail.report import page
from longtail.runs import checkpoint
from longtail.runs.read import Found, Run, from_data

quick = settings(
    max_examples=int(os.environ.get("FUZZ", "40")), deadline=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-1, 0, 10**18, 1e299, -1e299, "", "<b>", "$\\frac{", "a\0b", "\ud800", "../x", "os:system"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The five files of a run as plain data."""
    folder = make_run(tmp_path_factory.mktemp("fuzz") / "run", "elm", counts=(30, 8, 3), test_each=4)
    files = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("config", "split", "summary")}
    files["environment"] = json.loads((folder / "environment.json").read_text())
    return files | {"metrics": list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))}


def changed(raw: Any, data: st.DataObject) -> Any:
    """The same with one value somewhere in it replaced or removed."""
    made = copy.deepcopy(raw)
    at = made
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if not (isinstance(at[key], (dict, list)) and at[key]) or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[key]
    if data.draw(st.integers(0, 4)) == 0:
        del at[key]
    else:
        at[key] = data.draw(VALUES)
    return made


def reported(raw: Any, also: list[Run]) -> None:
    """Read it and make its report, or be refused in one line."""
    said = ""
    try:
        run = from_data(Path("run"), raw)
        page.make(Found([run, *also], []))
    except InputError as error:
        said = str(error)
    assert "\n" not in said


@quick
@given(data=st.data())
def test_changed_files_of_a_run(raw: dict[str, Any], data: st.DataObject) -> None:
    reported(changed(changed(raw, data), data), [from_data(Path("other"), raw)])


GOOD = checkpoint.encode(
    {"model.weight": torch.ones(2, 3)},
    {"format": 1, "at": {"stage": 0, "epoch": 1, "step": 2, "done": 7}, "sums": {}, "processes": 1},
)


@quick
@given(
    edits=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, len(GOOD)),
)
@example(edits=[], cut=len(GOOD))
def test_changed_checkpoints(edits: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(GOOD)
    for place, value in edits:
        content[place] = value
    said = ""
    try:
        checkpoint.decode(bytes(content[:cut])).at.problem([(3, 5)])
    except (checkpoint.DamagedError, InputError) as error:
        said = str(error)
    assert "\n" not in said
