"""The first screen: which model, how sure, what is wrong, what next."""

import json
import shutil

import pytest

from fake_runs import edit, make_run
from longtail import ClassCounts
from longtail.report.grouping import datasets, parts_of
from longtail.report.page import answer, make
from longtail.runs.read import find


def read(path, **options):
    (data,) = datasets(find([path]).runs, **options)
    return data


def set_accuracy(run, balanced, val=None):
    summary = json.loads((run / "summary.json").read_text())
    edit(run, "summary.json", test={**summary["test"], "balanced": balanced}, val=val and {"balanced": val})


@pytest.fixture
def three(tmp_path):
    """Three seeds of each: ELM and LogAdj near one another, CE far below; validation prefers LogAdj, test ELM."""
    for seed, shift in enumerate((-0.005, 0.0, 0.005)):
        for method, test, val in (("ce", 0.5, 0.5), ("logadj", 0.7, 0.75), ("elm", 0.705, 0.74)):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            set_accuracy(run, test + shift, val + shift)
    return tmp_path


def test_the_best_on_validation_data_is_taken_with_its_folder(three):
    found = answer(read(three))
    assert found.best.label == "LogAdj"
    assert found.run.path == three / "logadj-2"
    assert found.sentences[0] == (
        f"Take LogAdj ({three / 'logadj-2'}): 70.0 % balanced test accuracy ± 0.5 over 3 seeds, chosen on validation "
        "data."
    )
    assert found.sentences[1].startswith("It is 20.0 points above plain cross-entropy (95 % interval +")
    assert "which may be chance" not in found.sentences[1]
    assert found.sentences[2].startswith("It cannot be told apart with 240 test samples and 3 seeds from ELM.")
    assert "(0.5 points, ELM ahead)" in found.sentences[2]
    assert found.commands[0] == f"longtail predict {three / 'logadj-2'} NEW_DATA"


def test_without_validation_data_the_choice_is_said_to_be_flattered(three):
    for run in three.iterdir():
        edit(run, "summary.json", val=None)
    found = answer(read(three))
    assert found.best.label == "ELM"
    assert "chosen on these test data, which flatters it a little" in found.sentences[0]
    assert "If the difference to LogAdj is what was measured (0.5 points, it ahead)" in found.sentences[2]
    assert found.sentences[2].endswith("to tell.") or "would tell" in found.sentences[2]


def test_one_seed_says_that_chance_is_not_known(three):
    for run in three.iterdir():
        if not run.name.endswith("-0"):
            shutil.rmtree(run)
    found = answer(read(three))
    assert "one seed" in found.sentences[0]
    assert "nobody knows what chance did in training: run more seeds" in found.sentences[1]
    assert "Run at least three seeds of LogAdj and of ELM." in found.sentences[2]


def test_a_single_configuration_is_described_and_cross_entropy_is_named_if_it_was_not_run(three):
    for run in three.iterdir():
        if run.name.startswith("ce"):
            shutil.rmtree(run)
    assert "Plain cross-entropy was not run" in answer(read(three)).sentences[1]
    alone = answer(read(three / "elm-0"))
    assert len(alone.sentences) == 1
    assert alone.sentences[0].startswith("ELM (")


def test_how_many_seeds_it_would_take_is_right(tmp_path):
    """Two methods a point apart with a spread of one point, on a test set that leaves no doubt: a simulation agrees."""
    import numpy as np
    from scipy import stats

    from longtail.report.uncertainty import seed_source

    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        for method, level in (("ce", 0.49), ("elm", 0.5)):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            test = json.loads((run / "summary.json").read_text())["test"]
            edit(run, "summary.json", test={**test, "balanced": level + shift, "correct": None, "per_class_n": None})
    said = answer(read(tmp_path)).sentences[-1]
    needed = int(said.split("about ")[1].split(" seeds")[0])

    def told(seeds):
        rng = np.random.default_rng(0)
        found = 0
        for _ in range(400):
            a, b = rng.normal(0.01, 0.01, seeds), rng.normal(0, 0.01, seeds)
            source = seed_source(a, b)
            found += abs(a.mean() - b.mean()) > stats.t.ppf(0.975, source.freedom) * source.error
        return found / 400

    assert 0.3 < told(needed) < 0.75  # at that number the interval just touches 0 in a typical case


WARNINGS = {
    "no test samples": (
        "tail classes have no test samples (class 5)",
        lambda s: s["test"]["per_class_n"].__setitem__(5, 0),
    ),
    "far": ("CE: training did not get far", lambda s: s.__setitem__("concerns", ["training did not get far"])),
    "never": ("never recognises class 4", lambda s: s["test"]["per_class"].__setitem__(4, 0.0)),
    "guessing": ("CE did no better than guessing", lambda s: s["test"].__setitem__("balanced", 0.17)),
    "nothing": ("", lambda s: None),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_the_one_warning(case, tmp_path):
    words, spoil = WARNINGS[case]
    run = make_run(tmp_path / "run", "ce")
    summary = json.loads((run / "summary.json").read_text())
    spoil(summary)
    (run / "summary.json").write_text(json.dumps(summary))
    found = answer(read(tmp_path)).warning
    assert words in found
    assert bool(found) == bool(words)


def test_groups_are_the_papers_unless_they_leave_one_empty():
    assert parts_of("digits-lt", ClassCounts([200, 50, 5])).why == ""
    assert parts_of("cifar10-lt", ClassCounts([5000, 50])).stored  # the paper's own data keep its limits
    counts = ClassCounts([90, 80, 70, 40, 30, 25])
    made = parts_of("photos", counts)
    assert made.classes(counts) == {"head": [0, 1], "torso": [2, 3], "tail": [4, 5]}
    assert "thirds" in made.why
    assert parts_of("photos", counts, (75, 30)).classes(counts) == {"head": [0, 1], "torso": [2, 3, 4], "tail": [5]}
    equal = ClassCounts([7, 7, 7])
    assert parts_of("photos", equal).classes(equal) == {"head": [0, 1, 2], "torso": [], "tail": []}


def test_given_limits_change_the_groups_and_their_accuracies(tmp_path):
    run = make_run(tmp_path / "run", "ce")
    per_class = json.loads((run / "summary.json").read_text())["test"]["per_class"]
    data = read(tmp_path, limits=(60, 30))
    assert data.sizes == {"head": 3, "torso": 1, "tail": 2}
    assert data.groups[0].accuracy("tail").mean == pytest.approx(sum(per_class[4:]) / 2)
    made = make(find([tmp_path]), limits=(60, 30))
    text = [item for item in made.sections[0].walk() if isinstance(item, str)]
    assert any("Head: 60 or more training samples; tail: fewer than 30." in line for line in text)
    assert not [picture for picture in made.pictures if picture.name.startswith("tradeoff")]  # kept for 100 and 20 only
