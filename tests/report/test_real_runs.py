"""The report of runs that were really trained: the paper's Figure 1, from the command to the picture."""

import json

import pytest

from longtail.cli import main
from longtail.report import document, page
from longtail.runs.read import find


def test_two_trained_runs_give_figure_1_and_a_page(tmp_path, monkeypatch, capsys, no_figures):
    monkeypatch.chdir(tmp_path)
    for method in ("logadj", "elm"):
        with pytest.raises(SystemExit) as stopped:
            main(["train", method, "--data", "moons", "--epochs", "2", "--out", f"runs/{method}"])
        assert stopped.value.code == 0
    for run in ("logadj", "elm"):  # what is committed: five small files; and few figures, for speed
        for name in ("model.safetensors", "predictions.safetensors"):
            (tmp_path / "runs" / run / name).unlink()
        path = tmp_path / "runs" / run / "summary.json"
        summary = json.loads(path.read_text())
        kept = {"embeddings2d": summary["diagnostics"]["embeddings2d"], "knn": summary["diagnostics"]["knn"]}
        path.write_text(json.dumps({**summary, "diagnostics": kept}))
    found = find(["runs"])
    assert sorted(run.method for run in found.runs) == ["elm", "logadj"]
    assert found.skipped == []
    assert all(run.missing == () and len(run.metrics) == 2 for run in found.runs)
    made = page.make(found, paper_claims=True)
    first = next(picture for picture in made.pictures if picture.name.startswith("figure1"))
    assert first.caption.startswith("Figure 1. Training data and two-dimensional training embeddings")
    assert first.make().axes[0].get_title() == "Training data"  # the very training data, made again
    assert "longtail train elm --data moons" in document.write(made, "report").read_text()
    tables = {table.slug: table for table in made.tables}
    assert [row[0] for row in tables["alive-moons"].rows] == ["ELM"]
    row = dict(zip(tables["claims-moons"].columns, tables["claims-moons"].rows[0]))
    assert (row["Verdict"], row["Remark"]) == ("one seed: undecided", "paired over test samples")
