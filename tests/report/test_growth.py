"""What one method adds to another as the data grow: a table and a figure of amounts trained on alike."""

import shutil

import pytest

from fake_runs import make_run
from longtail.report.page import make
from longtail.runs.read import find

AMOUNTS = {"large": (80, 24, 8), "middle": (40, 12, 4), "small": (20, 6, 2)}


def made(root, amounts):
    for name, counts in amounts.items():
        for method in ("elm", "logadj"):
            for seed in range(2):
                options = {"n_max": counts[0]}
                make_run(root / f"{name}-{method}-{seed}", method, counts=counts, seed=seed, options=options)
    return make(find([root]))


def tables_of(report):
    return {table.slug: table for table in report.tables if table.slug.startswith("sizes-")}


def test_a_row_for_every_amount_the_fewest_first(tmp_path):
    report = made(tmp_path, AMOUNTS)
    table = tables_of(report)["sizes-elm-logadj-digits-lt"]
    assert [row[:2] for row in table.rows[:3]] == [[28, "20 to 2"], [56, "40 to 4"], [112, "80 to 8"]]
    accuracies = {run.path.name: run.balanced for run in find([tmp_path]).runs}
    for row, name in zip(table.rows, ("small", "middle", "large")):
        logadj, elm = (
            sum(accuracies[f"{name}-{method}-{seed}"] for seed in range(2)) / 2 for method in ("logadj", "elm")
        )
        assert (row[2].mean, row[3].mean) == pytest.approx((logadj, elm))
        assert row[4].startswith(f"{100 * (elm - logadj):+.2f} points [")
    last = table.rows[3]
    mean = sum(row[3].mean - row[2].mean for row in table.rows[:3]) / 3
    assert last[:4] == ["mean", None, None, None]
    assert last[4].startswith(f"{100 * mean:+.2f} points [")
    assert last[4].endswith("of 6 seeds")
    assert table.columns[5:] == ["in the head", "in the torso", "in the tail", "Seeds"]
    for part in (5, 6, 7):
        mean = sum(float(row[part]) for row in table.rows[:3]) / 3
        assert float(last[part].split()[0]) == pytest.approx(mean, abs=0.01)
    assert last[8] == 6
    (picture,) = (p for p in report.pictures if p.name == "sizes-elm-logadj-digits-lt")
    (axes,) = picture.make().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["28", "56", "112"]


def test_no_mean_where_an_amount_has_one_seed(tmp_path):
    made(tmp_path, AMOUNTS)
    shutil.rmtree(tmp_path / "small-elm-1")
    rows = tables_of(make(find([tmp_path])))["sizes-elm-logadj-digits-lt"].rows
    assert [row[0] for row in rows] == [28, 56, 112]


def test_two_amounts_are_no_curve(tmp_path):
    assert not tables_of(made(tmp_path, {name: AMOUNTS[name] for name in ("large", "small")}))


def test_amounts_under_other_circumstances_are_no_curve(tmp_path):
    made(tmp_path / "a", {name: AMOUNTS[name] for name in ("large", "small")})
    for method in ("elm", "logadj"):
        make_run(tmp_path / "b" / method, method, counts=AMOUNTS["middle"], epochs=99, options={"n_max": 40})
    assert not tables_of(make(find([tmp_path])))
