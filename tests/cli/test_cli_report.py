"""`longtail report` and `longtail evaluate`, as a user types them."""

import json
import re

import numpy as np
import pytest

from fake_runs import SMALL, edit, make_run, predictions

pytestmark = pytest.mark.usefixtures("no_figures")


def bare(run):
    """Keep accuracy only, so that few figures are drawn."""
    edit(run, "summary.json", diagnostics={}, theory={})
    return run


def test_report_prints_the_page_last_and_warns_of_what_it_skips(tmp_path, longtail):
    bare(make_run(tmp_path / "runs" / "ce", "ce"))
    make_run(tmp_path / "runs" / "torn", "elm").joinpath("summary.json").unlink()
    edit(make_run(tmp_path / "runs" / "new", "elm"), "config.json", format=7)
    code, out, err = longtail("report", tmp_path / "runs", "--out", tmp_path / "report")
    assert code == 0
    assert out.splitlines()[-1] == str(tmp_path / "report" / "index.html")
    warnings = err.splitlines()
    assert len(warnings) == 2
    assert f"{tmp_path / 'runs' / 'torn'} was skipped: it is not finished" in err
    assert "newer longtail" in err
    assert (tmp_path / "report" / "tables" / "results-digits-lt.csv").is_file()


@pytest.mark.parametrize(
    "argv", [["report", "nowhere"], ["report", "empty"], ["report"], ["report", "empty", "nowhere"]]
)
def test_report_refuses_in_one_sentence(argv, tmp_path, longtail, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, err = longtail(*argv)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert not (tmp_path / "report").exists()


def test_report_brings_a_page_of_documentation_up_to_date(tmp_path, longtail):
    for method in ("ce", "logadj"):
        bare(make_run(tmp_path / "runs" / method, method))
    docs = tmp_path / "docs" / "results.md"
    docs.parent.mkdir()
    some = '{"columns": ["Method", "Balanced accuracy"], "rows": ["CE"]}'
    docs.write_text(
        f"# Mine\n\n<!-- table:results-digits-lt {some} -->\nold\n<!-- /table -->\n\n"
        "![bars](figures/figure2-groups-digits-lt.png)\n"
    )
    code, out, _ = longtail("report", tmp_path / "runs", "--out", tmp_path / "report", "--docs", docs)
    assert code == 0
    assert str(docs) in out
    text = docs.read_text()
    balanced = json.loads((tmp_path / "runs" / "ce" / "summary.json").read_text())["test"]["balanced"]
    table = f"| Method | Balanced accuracy |\n| --- | --- |\n| CE | {100 * balanced:.2f} |"
    assert text.startswith(f"# Mine\n\n<!-- table:results-digits-lt {some} -->\n{table}\n<!-- /table -->\n\n![bars]")
    assert [p.name for p in (docs.parent / "figures").iterdir()] == ["figure2-groups-digits-lt.png"]
    docs.write_text("<!-- table:no-such -->\n<!-- /table -->")
    code, _, err = longtail("report", tmp_path / "runs", "--out", tmp_path / "report", "--docs", docs)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "'no-such'" in err
    docs.write_bytes(b"\xff\xfe")
    code, _, err = longtail("report", tmp_path / "runs", "--out", tmp_path / "report", "--docs", docs)
    assert (code, "is no Markdown page" in err) == (2, True)


def test_a_bundle_is_read_as_the_folders_it_was_made_of(tmp_path, longtail):
    for method in ("ce", "logadj"):
        bare(make_run(tmp_path / "runs" / method, method))
    bundle = tmp_path / "all.jsonl"
    code, out, _ = longtail("report", tmp_path / "runs", "--out", tmp_path / "one", "--bundle", bundle)
    assert (code, len(bundle.read_text().splitlines())) == (0, 2)
    assert str(bundle) in out
    assert longtail("report", bundle, "--out", tmp_path / "two")[0] == 0
    for name in ("results-digits-lt.csv", "per-class-digits-lt.csv", "reproduce.csv"):
        one, two = ((tmp_path / out / "tables" / name).read_text() for out in ("one", "two"))
        assert one == two
    code, _, err = longtail("report", tmp_path / "runs", "--bundle", tmp_path / "all.zip", "--out", tmp_path / "three")
    assert (code, "must name a file that ends in .jsonl" in err) == (2, True)


def test_evaluate_a_run_prints_its_tables(tmp_path, longtail):
    run = make_run(tmp_path / "run", "elm")
    code, out, err = longtail("evaluate", run)
    assert (code, err) == (0, "")
    balanced = json.loads((run / "summary.json").read_text())["test"]["balanced"]
    assert f"{100 * balanced:.2f}" in out
    for title in ("Breakdown by head, torso and tail", "Embeddings and margins", "Anchors with a positive", "Theory"):
        assert title in out


def foreign(path, **arrays):
    made = predictions("logadj")
    given = {
        "logits": made.test.logits.numpy(), "labels": made.test.labels.numpy(),
        "embeddings": made.test.embeddings.numpy(), "train_logits": made.train.logits.numpy(),
        "train_labels": made.train.labels.numpy(), "train_embeddings": made.train.embeddings.numpy(), **arrays,
    }  # fmt: skip
    np.savez(path, **{k: v for k, v in given.items() if v is not None})
    return path


def test_evaluate_predictions_of_a_model_trained_elsewhere(tmp_path, longtail):
    path = foreign(tmp_path / "theirs.npz")
    code, out, err = longtail("evaluate", path)
    assert (code, err) == (0, "")
    made = predictions("logadj").test
    right = (made.logits.argmax(1) == made.labels).double()
    balanced = np.mean([right[made.labels == c].mean() for c in range(len(SMALL))])
    assert f"{100 * balanced:.2f}" in out
    assert "theirs" in out
    assert "Theory check" in out


def test_evaluate_predictions_writes_the_same_page(tmp_path, longtail):
    none = dict.fromkeys(("embeddings", "train_logits", "train_labels", "train_embeddings"))
    path = foreign(tmp_path / "theirs.npz", **none)
    counts = tmp_path / "counts.txt"
    counts.write_text("\n".join(map(str, SMALL)))
    code, out, _ = longtail("evaluate", path, "--counts", counts, "--out", tmp_path / "page")
    assert code == 0
    assert out.splitlines()[-1] == str(tmp_path / "page" / "index.html")
    assert "Predictions from theirs.npz, trained elsewhere." in (tmp_path / "page" / "index.html").read_text()
    assert "--counts" not in (tmp_path / "page" / "index.html").read_text()
    assert list((tmp_path / "page" / "figures").glob("figure2-*.png"))
    assert list((tmp_path / "page" / "figures").glob("figure3-margins-test-*.png"))
    assert not list((tmp_path / "page" / "figures").glob("figure4-*.png"))


def test_evaluate_prints_no_empty_columns_and_no_tables_that_are_not_there(tmp_path, longtail):
    none = dict.fromkeys(("embeddings", "train_logits", "train_labels", "train_embeddings"))
    path = foreign(tmp_path / "theirs.npz", counts=np.array(SMALL), **none)
    code, out, err = longtail("evaluate", path)
    assert (code, err) == (0, "")
    assert "Margin variance, test" in out
    assert "NC1 " not in out.replace("NC1:", "")
    assert "table of claims" not in out
    assert "first seed" not in out


def test_evaluate_warns_of_probabilities_in_place_of_logits(tmp_path, longtail):
    path = foreign(tmp_path / "theirs.npz", logits=predictions("logadj").test.logits.softmax(1).numpy())
    code, _, err = longtail("evaluate", path)
    assert code == 0
    assert "as probabilities do" in err
    assert len(err.splitlines()) == 1


def test_several_files_are_compared_with_one_another_and_with_runs_on_the_same_test_samples(tmp_path, longtail):
    runs = [bare(make_run(tmp_path / f"ce-{seed}", "ce", seed=seed)) for seed in range(2)]
    for seed in range(2):
        made = predictions("logadj", seed=seed).test
        np.savez(
            tmp_path / f"theirs-s{seed}.npz",
            logits=made.logits.numpy(),
            labels=made.labels.numpy(),
            counts=np.array(SMALL),
        )
    files = [tmp_path / f"theirs-s{seed}.npz" for seed in range(2)]
    code, out, err = longtail("evaluate", *runs, *files)
    assert (code, err) == (0, "")
    assert "points above plain cross-entropy (95 % interval" in out
    assert out.startswith("Take theirs (")
    code, out, _ = longtail("report", *runs, *files, "--out", tmp_path / "page")
    assert code == 0
    table = (tmp_path / "page" / "tables" / "results-digits-lt.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["CE", "theirs"]
    code, out, _ = longtail("evaluate", *files)
    assert (code, "2 seeds" in out or "over 2" in out) == (0, True)


def test_limits_of_the_groups_can_be_given(tmp_path, longtail):
    run = bare(make_run(tmp_path / "run", "ce"))
    code, out, _ = longtail("evaluate", run, "--groups", "60,30")
    assert code == 0
    assert "Head (3 classes)" in out
    assert "Tail (2 classes)" in out
    for wrong in ("60", "20,100", "a,b", "-5,1"):
        code, _, err = longtail("evaluate", run, "--groups", wrong)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "as 100,20" in err


def nan(logits):
    spoilt = logits.copy()
    spoilt[3, 1] = np.nan
    return spoilt


def test_evaluate_refuses_what_is_wrong(tmp_path, longtail):
    made = predictions("logadj").test
    bare_arrays = dict.fromkeys(("train_logits", "train_labels", "train_embeddings"))
    bad_labels = made.labels.numpy().copy()
    bad_labels[0] = 99
    cases = {
        "row 3 holds nan": [foreign(tmp_path / "a.npz", logits=nan(made.logits.numpy()))],
        "99": [foreign(tmp_path / "b.npz", labels=bad_labels)],
        "no training counts": [foreign(tmp_path / "c.npz", **bare_arrays)],
        "does not exist": [tmp_path / "nowhere.npz"],
        "it is not a run": [tmp_path],
        "read from .safetensors, .npz": [_text(tmp_path / "d.csv")],
        "--counts is for files": [make_run(tmp_path / "run", "ce"), "--counts", "1,2"],
        "classes": [foreign(tmp_path / "e.npz"), "--counts", "1,2"],
        "f.npz: there are no samples": [
            foreign(tmp_path / "f.npz", logits=np.zeros((0, len(SMALL))), labels=np.zeros(0, int), embeddings=None)
        ],
    }
    for words, argv in cases.items():
        code, out, err = longtail("evaluate", *argv)
        assert (code, out) == (2, ""), words
        assert words in err
        assert len(err.splitlines()) == 1


def _text(path):
    path.write_text("1,2,3")
    return path


def test_the_table_of_a_comparison_says_no_classes(capsys):
    from longtail.cli.compare import print_table
    from longtail.runs.schema import Accuracy, GroupAccuracy, Summary

    groups = {"head": GroupAccuracy(None, 0), "torso": GroupAccuracy(0.5, 2), "tail": GroupAccuracy(None, 1)}
    print_table("photos", {"ce": [Summary(1, Accuracy(0.5, groups=groups))], "failed": []})
    lines = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line[1:] for line in lines}
    assert rows["ce"] == ["1", "50.00", "no classes", "50.00", "—"]
    assert "no classes" not in rows["failed"]
