"""Which runs figures draw where there are too many, and which would hide one another."""

import json
import shutil

import numpy as np
import pytest

from fake_runs import edit, make_run
from longtail.data import load
from longtail.report import gallery
from longtail.report.grouping import datasets
from longtail.runs.read import find


def read(path):
    (data,) = datasets(find([path]).runs)
    return data


def labels(groups):
    return [group.label for group in groups]


@pytest.fixture
def many(tmp_path):
    for method in ("ce", "cb-focal", "ldam-drw", "logadj", "dro-lt", "tau-norm", "elm", "crt", "lws"):
        make_run(tmp_path / method, method)
    make_run(tmp_path / "memory", "elm", memory=16)
    make_run(tmp_path / "vs", "vs", tau=0.5)
    return tmp_path


def test_of_too_many_runs_the_paper_s_one_stage_methods_and_variants_of_elm_are_drawn(many):
    data = read(many)
    drawn = labels(gallery.shown(data))
    assert len(drawn) == gallery.MOST_CURVES
    assert drawn == ["CE", "CB Focal", "LDAM + DRW", "LogAdj", "DRO-LT", "τ-norm", "ELM", "ELM (memory = 16)"]


def test_of_too_many_runs_those_under_other_circumstances_are_the_first_to_go(many):
    before = labels(gallery.shown(read(many)))
    make_run(many / "long", "elm", epochs=50)
    make_run(many / "fast", "ce", recipe={"lr": 9.0})
    data = read(many)
    assert {"ELM · 50 epochs", "CE · lr 9"} <= set(labels(data.groups))
    assert labels(gallery.shown(data)) == before


def test_a_new_head_on_the_same_embeddings_is_drawn_once_and_said(many):
    for method in ("tau-norm", "crt"):
        ce, own = (json.loads((many / m / "summary.json").read_text()) for m in ("ce", method))
        own["diagnostics"]["dmax"] = ce["diagnostics"]["dmax"]
        (many / method / "summary.json").write_text(json.dumps(own))
    for other in ("memory", "ldam-drw"):  # made runs of names of one length have the same embeddings
        shutil.rmtree(many / other)
    kept, said = gallery.distinct_embeddings(gallery.shown(read(many)))
    assert "τ-norm" not in labels(kept)
    assert "CE" in labels(kept)
    assert said == " τ-norm, cRT: the embeddings of CE."


def captions(data):
    made = gallery.pictures(data, gallery.looks_for([data]))
    return {int(p.name[len("figure")]): p.caption for p in made if p.name.startswith("figure")}


def test_captions_count_labels_and_what_is_not_drawn(many, tmp_path_factory):
    made = captions(read(many))
    assert "for three labels" in made[3]
    assert made[2].endswith("3 more configurations are in the tables only.")
    two = tmp_path_factory.mktemp("two")
    make_run(two / "ce", "ce", counts=(60, 10))
    assert "for two labels" in captions(read(two))[3]
    assert "tables only" not in captions(read(two))[2]


def test_the_map_of_embeddings_says_which_runs_it_leaves_out(tmp_path):
    names = ("ce", "ldam-drw", "logadj", "dro-lt", "elm", "vs", "center")  # figure 5 has six panels
    runs = [make_run(tmp_path / name, name, tsne=name == "ce", counts=(60, 40)) for name in names]
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    for run, summary in zip(runs, summaries):
        summary["diagnostics"]["tsne"] = summaries[0]["diagnostics"]["tsne"]
        (run / "summary.json").write_text(json.dumps(summary))
    assert captions(read(tmp_path))[5].endswith("1 more configuration is in the tables only.")


def test_inputs_of_two_features_are_drawn_where_they_are_still_those_of_the_runs(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "flat.npz"
    arrays = {f"X_{split}": rng.normal(size=(60, 2)) for split in ("train", "test")}
    np.savez(path, **arrays, y_train=np.arange(60) % 3 % 2, y_test=np.arange(60) % 2)
    made = load(path)
    run = make_run(
        tmp_path / "run", "ce", data=str(path), counts=tuple(made.counts.n.tolist()), dim=2,
        fingerprint=made.fingerprint,
    )  # fmt: skip
    edit(run, "split.json", input={"kind": "features", "shape": [2]})
    assert captions(read(run))[1].startswith("Figure 1. Training data and two-dimensional training embeddings")
    edit(run, "split.json", fingerprint="other")
    assert captions(read(run))[1].startswith("Figure 1. two-dimensional training embeddings")


def test_runs_without_distances_are_nobody_s_twins(tmp_path):
    for method in ("ce", "elm"):
        run = make_run(tmp_path / method, method)
        summary = json.loads((run / "summary.json").read_text())
        summary["diagnostics"]["dmax"] = None
        (run / "summary.json").write_text(json.dumps(summary))
    kept, said = gallery.distinct_embeddings(read(tmp_path).groups)
    assert (labels(kept), said) == (["CE", "ELM"], "")


def test_looks_at_validation_data_are_drawn_at_their_epochs(tmp_path):
    """Of runs that looked; the mean is over seeds, at epochs that all have."""
    looks = {0: {2: 0.5, 4: 0.75, 5: 0.25}, 1: {4: 0.25, 5: 0.75}}
    for seed, values in looks.items():
        path = make_run(tmp_path / f"elm-{seed}", "elm", seed=seed, epochs=5)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for epoch, value in values.items():
            rows[epoch - 1]["val"] = {"balanced": value, "groups": {"head": value, "torso": value / 2, "tail": None}}
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_run(tmp_path / "ce", "ce", epochs=5)
    picture = drawn(tmp_path)["validation-digits-lt"]
    assert picture.make.args[0] == {"head": {"ELM": ([4, 5], [0.5, 0.5])}, "torso": {"ELM": ([4, 5], [0.25, 0.25])}}
    assert picture.make() is not None
    assert "validation-digits-lt" not in drawn(tmp_path / "ce")


def drawn(path):
    data = read(path)
    return {picture.name: picture for picture in gallery.pictures(data, gallery.looks_for([data]))}
