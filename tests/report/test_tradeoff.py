"""Head against tail: curves are read where the head is as accurate as LogAdj's as trained."""

import json

import numpy as np
import pytest

from fake_runs import edit, make_run
from longtail.report import claims, comparison, gallery, tables
from longtail.report.grouping import datasets
from longtail.runs.read import find

TAUS = [-1.0, 0.0, 1.0]


def read(path):
    (data,) = datasets(find([path]).runs)
    return data


def set_curve(run, head, tail, torso=(0.3, 0.3, 0.3)):
    edit(run, "summary.json", tradeoff={"tau": TAUS, "head": list(head), "torso": list(torso), "tail": list(tail)})


def set_head(run, value):
    summary = json.loads((run / "summary.json").read_text())
    summary["test"]["groups"]["head"]["accuracy"] = value
    (run / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def two(tmp_path):
    """LogAdj and ELM, two seeds: as trained ELM is lower on the tail, at equal heads it is higher."""
    for seed in range(2):
        logadj = make_run(tmp_path / f"logadj-{seed}", "logadj", seed=seed)
        elm = make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
        set_curve(logadj, (0.8, 0.6, 0.4), (0.0, 0.2, 0.4))
        set_curve(elm, (0.9, 0.7, 0.5), (0.0, 0.18, 0.5))
        set_head(logadj, 0.6)
    return tmp_path


def test_a_curve_is_read_between_its_points(two):
    elm = next(g for g in read(two).groups if g.method == "elm").first
    assert comparison.at_head(elm, 0.6, "tail") == pytest.approx(0.18 + 0.5 * (0.5 - 0.18))
    assert comparison.at_head(elm, 0.9, "tail") == pytest.approx(0.0)
    assert comparison.at_head(elm, 0.95, "tail") is None  # its head is never that accurate
    assert comparison.at_head(elm, 0.5, "tail") is None  # it is at both ends or beyond: nothing says where it would go


def test_a_head_that_stays_as_it_is_gives_the_largest_tau(tmp_path):
    run = make_run(tmp_path / "ce", "ce")
    set_curve(run, (1.0, 1.0, 0.9), (0.1, 0.5, 0.6))
    assert comparison.at_head(read(tmp_path).first, 1.0, "tail") == pytest.approx(0.5)


def test_the_table_and_the_claim_are_at_logadj_s_head(two):
    data = read(two)
    rows = {row[0]: row for row in tables.equal_head(data).rows}
    assert rows["LogAdj"][2].mean == pytest.approx(0.2)
    assert rows["ELM"][2].mean == pytest.approx(0.34)
    assert "60.00" in tables.equal_head(data).note
    (claim,) = [c for c in claims.check(data) if "equal accuracy" in c.text]
    half = 196 * np.sqrt((0.34 * 0.66 + 0.2 * 0.8) / 80)  # two classes of the tail, 40 test samples each
    assert claim.number == f"+14.00 points [{14 - half:+.2f}, {14 + half:+.2f}], by seed +14.00, +14.00"
    assert claim.where == claims.OURS


def test_runs_without_curves_or_without_logadj_have_no_table(two, tmp_path_factory):
    for seed in range(2):
        edit(two / f"elm-{seed}", "summary.json", tradeoff=None)
    data = read(two)
    assert [row[0] for row in tables.equal_head(data).rows] == ["LogAdj"]
    assert not [c for c in claims.check(data) if "equal accuracy" in c.text]
    alone = tmp_path_factory.mktemp("alone")
    make_run(alone / "ce", "ce")
    assert tables.equal_head(read(alone)) is None


@pytest.mark.parametrize("broken", [{"tau": [0.0]}, {"tau": TAUS, "head": [1, None, 0.2], "tail": TAUS}])
def test_a_curve_with_gaps_is_none(tmp_path, broken):
    edit(make_run(tmp_path / "ce", "ce"), "summary.json", tradeoff=broken)
    assert comparison.curve(read(tmp_path).first) is None


def test_the_figure_is_the_mean_over_seeds(two):
    set_curve(two / "elm-1", (0.7, 0.5, 0.3), (0.2, 0.2, 0.7))
    data = read(two)
    elm = next(g for g in data.groups if g.method == "elm")
    mean = comparison.mean_curve(elm, "tail")
    assert mean["head"] == pytest.approx([0.8, 0.6, 0.4])
    assert mean["tail"] == pytest.approx([0.1, 0.19, 0.6])
    (own,) = [p for p in gallery.pictures(data, gallery.looks_for([data])) if p.name.startswith("tradeoff")]
    assert own.make().axes
    assert "Not in the paper" in own.caption
