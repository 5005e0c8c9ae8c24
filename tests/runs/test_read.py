"""Reading run folders: good ones, and every kind of bad one."""

import json
import math

import pytest

from fake_runs import SMALL, edit, make_run
from longtail.errors import InputError
from longtail.margins import short
from longtail.report.grouping import datasets
from longtail.runs.read import find, read, write_bundle


def labels(found):
    return [group.label for data in datasets(found.runs) for group in data.groups]


def test_a_folder_of_runs_is_searched_at_any_depth(tmp_path):
    make_run(tmp_path / "a" / "deep" / "ce", "ce")
    make_run(tmp_path / "elm", "elm")
    (tmp_path / "elm" / "checkpoints").mkdir()
    (tmp_path / "elm" / "checkpoints" / "config.json").write_text("{}")  # inside a run: not looked at
    found = find([tmp_path, tmp_path / "elm"])
    assert sorted(run.method for run in found.runs) == ["ce", "elm"]
    assert found.skipped == []


BAD = {
    "no summary": (lambda p: (p / "summary.json").unlink(), "not finished"),
    "no split": (lambda p: (p / "split.json").unlink(), "incomplete"),
    "no config": (lambda p: (p / "config.json").unlink(), "not a run"),
    "torn json": (lambda p: (p / "summary.json").write_text('{"format": 1, "te'), "cannot be read"),
    "binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "a list": (lambda p: (p / "summary.json").write_text("[]"), "no mapping"),
    "newer run": (lambda p: edit(p, "config.json", format=2), "newer longtail"),
    "newer summary": (lambda p: edit(p, "summary.json", format=99), "newer longtail"),
    "another program's": (lambda p: (p / "config.json").write_text('{"model_type": "bert"}'), "not a run of longtail"),
    "format a word": (lambda p: edit(p, "config.json", format="one"), "no readable format"),
    "no counts": (lambda p: edit(p, "split.json", counts="many"), "counts must be a list"),
    "no accuracy": (
        lambda p: edit(p, "summary.json", test={"balanced": None}),
        "test.balanced must be a finite number",
    ),
    "no test": (lambda p: edit(p, "summary.json", test=None), "test must be a mapping, got None"),
    "words for numbers": (
        lambda p: edit(p, "summary.json", diagnostics={"dmax": {"mean": "far"}}),
        "summary.json is damaged (diagnostics.dmax.mean must be a finite number, got 'far')",
    ),
    "not a number": (lambda p: (p / "summary.json").write_text('{"format": NaN}'), "it holds NaN, which is not JSON"),
    "endless": (lambda p: edit(p, "summary.json", diagnostics={"tsne": {"x": [1e999]}}), "Infinity"),
    "too large": (lambda p: edit(p, "config.json", seed=10**30), "seed must be a whole number"),
    "nested": (lambda p: (p / "split.json").write_text("[" * 100_000), "split.json cannot be read (it is nested too"),
    "labels": (lambda p: edit(p, "summary.json", diagnostics={"labels": [0, 99]}), "labels beyond the 6 classes"),
    "other names": (lambda p: edit(p, "split.json", class_names=["a"]), "does not name each of the 6 classes"),
    "negative": (lambda p: edit(p, "split.json", counts=[1, -2]), "training counts"),
    "seed a list": (lambda p: edit(p, "config.json", seed=[0]), "seed must be a whole number, got a list"),
    "method a number": (lambda p: edit(p, "config.json", method=5), "method must be a text"),
    "data a word": (lambda p: edit(p, "config.json", data="digits"), "data must be a mapping"),
    "uneven": (lambda p: edit(p, "summary.json", tradeoff={"tau": [0.0], "head": [1.0, 0.5]}), "unequal columns"),
    "too good": (lambda p: edit(p, "summary.json", test={"balanced": 7.0, "per_class": [1.0] * 6}), "beyond 0 and 1"),
    "short": (lambda p: edit(p, "summary.json", test={"balanced": 0.5, "per_class": [1.0]}), "each of the 6 classes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_run_is_named_and_skipped(case, tmp_path):
    spoil, reason = BAD[case]
    make_run(tmp_path / "good", "ce")
    spoil(make_run(tmp_path / "bad", "elm"))
    found = find([tmp_path])
    assert [run.method for run in found.runs] == ["ce"]
    (skipped,) = found.skipped
    assert skipped.path == tmp_path / "bad"
    assert reason in skipped.reason
    with pytest.raises(InputError, match="no readable run"):
        find([tmp_path / "bad"])
    with pytest.raises(InputError) as refused:
        read(tmp_path / "bad")
    assert len(str(refused.value).splitlines()) == 1
    assert str(tmp_path / "bad") in str(refused.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"command": 3}', '{"resumed": 1e400}', "\x00", "[]"])
def test_a_damaged_environment_or_line_of_metrics_is_said_and_the_run_is_read(text, tmp_path):
    run = make_run(tmp_path / "a", "ce")
    (run / "environment.json").write_text(text)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text.replace("{", '{"epoch": "x", ') + "\n")
    found = read(run)
    assert "environment.json" in found.missing[0]
    assert found.missing[1] == "1 unreadable line in metrics.jsonl"


def test_a_bundle_holds_many_runs_and_bad_lines_are_named(tmp_path):
    names = [f"class{chr(0x2028)}{k}" for k in range(len(SMALL))]  # str.splitlines would end a line there
    folders = [make_run(tmp_path / "runs" / name, name, class_names=names) for name in ("ce", "elm", "logadj")]
    edit(folders[2], "summary.json", format=2)
    bundle = tmp_path / "some.jsonl"
    assert write_bundle([tmp_path / "runs"], bundle) == 2
    with bundle.open("a") as file:
        file.write(
            '{"run": "torn", "config"\n'
            '{"format": 1, "run": "new", "config": {"format": 9, "method": "x", "data": {}}}\n'
        )
    found = find([tmp_path / "some.jsonl"])
    assert [run.path for run in found.runs] == [bundle / "ce", bundle / "elm"]
    assert [read(folder).summary for folder in folders[:2]] == [run.summary for run in found.runs]
    assert [read(folder).metrics for folder in folders[:2]] == [run.metrics for run in found.runs]
    assert [(s.path.name, s.reason.split(" (")[0]) for s in found.skipped] == [
        ("line 3", "it is not a run of a bundle: write the bundle again"),
        ("new", "it was made by a newer longtail"),
    ]
    (tmp_path / "noise.jsonl").write_bytes(b"\xff\xfe")
    assert "cannot be read" in find([tmp_path / "runs", tmp_path / "noise.jsonl"]).skipped[-1].reason


def test_what_is_no_run_at_all(tmp_path):
    make_run(tmp_path / "good", "ce")
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("hello")
    found = find([tmp_path / "good", tmp_path / "notes", tmp_path / "file.txt"])
    assert len(found.runs) == 1
    assert [s.path.name for s in found.skipped] == ["notes", "file.txt"]
    with pytest.raises(InputError, match="does not exist"):
        find([tmp_path / "good", tmp_path / "nowhere"])
    with pytest.raises(InputError, match="no readable run"):
        find([tmp_path / "notes"])
    with pytest.raises(InputError, match="no runs given"):
        find([])


def test_metrics_and_environment_may_be_missing_and_that_is_said(tmp_path):
    run = make_run(tmp_path / "a", "ce")
    (run / "environment.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    found = read(run)
    assert found.missing == ("no environment.json", "1 unreadable line in metrics.jsonl")
    assert len(found.metrics) == 3


def test_seeds_of_one_configuration_are_one_group(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
    make_run(tmp_path / "memory", "elm", memory=8)
    make_run(tmp_path / "long", "elm", epochs=9)
    found = find([tmp_path])
    assert sorted(labels(found)) == ["ELM (memory = 8)", "ELM · 3 epochs", "ELM · 9 epochs"]
    (data,) = datasets(found.runs)
    group = next(g for g in data.groups if g.label == "ELM · 3 epochs")
    assert [run.seed for run in group.runs] == [0, 1, 2]
    values = [run.balanced for run in group.runs]
    mean = sum(values) / 3
    assert group.balanced.mean == pytest.approx(mean)
    assert group.balanced.std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 2))


def test_the_same_seed_twice_counts_once_and_the_later_run_stays(tmp_path):
    make_run(tmp_path / "old", "ce")
    edit(make_run(tmp_path / "new", "ce"), "environment.json", finished="2027-01-01T00:00:00+00:00")
    found = find([tmp_path])
    assert [run.path.name for run in found.runs] == ["new"]
    assert "repeats the configuration and seed" in found.skipped[0].reason


def test_methods_of_someone_else_are_welcome(tmp_path):
    for seed, strength in ((0, 1), (0, 2)):
        run = make_run(tmp_path / f"{strength}", "ce", seed=seed)
        edit(run, "config.json", method="their-loss", knobs={"strength": strength, "kind": "x"}, changed=None)
    assert labels(find([tmp_path])) == ["their-loss (strength = 1)", "their-loss (strength = 2)"]


def test_a_recipe_of_another_name_but_equal_fields_is_the_same_configuration(tmp_path):
    make_run(tmp_path / "a", "ce", seed=0, recipe={"name": "cifar"})
    make_run(tmp_path / "b", "ce", seed=1, recipe={"name": "cifar-cpu"})
    make_run(tmp_path / "c", "ce", seed=0, recipe={"name": "strong", "ema": 0.999})
    assert sorted(labels(find([tmp_path]))) == ["CE · recipe cifar", "CE · recipe strong"]


def test_variants_of_a_data_set_are_told_apart(tmp_path):
    make_run(tmp_path / "a", "ce")
    make_run(tmp_path / "b", "ce", options={"ratio": 50}, counts=tuple(reversed(SMALL)))
    titles = [data.title for data in datasets(find([tmp_path]).runs)]
    assert titles == ["digits-lt", "digits-lt (ratio = 50)"]


def test_comparisons_of_two_lengths_stand_apart_and_single_runs_join_their_length_or_the_longest(tmp_path):
    for epochs in (3, 6):
        for method in ("ce", "elm"):
            in_proportion = {
                "milestones": [epochs / 2],
                "warmup_epochs": epochs / 3,
                "precision": "auto" if epochs == 6 else "fp32",
            }
            run = make_run(tmp_path / f"{method}-{epochs}", method, epochs=epochs, recipe=in_proportion)
            edit(run, "config.json", precision="bf16" if epochs == 6 else "fp32")
    make_run(tmp_path / "alone", "elm", epochs=4, recipe={"ema": 0.99, "name": "strong"})
    make_run(tmp_path / "short-alone", "logadj", epochs=3, recipe={"lr": 0.7})
    long, short = datasets(find([tmp_path]).runs)
    assert (long.title, short.title) == ("digits-lt", "digits-lt (3 epochs, fp32)")
    assert [g.first.epochs for g in short.groups] == [3, 3, 3]
    assert [g.first.path.name for g in short.groups] == ["ce-3", "short-alone", "elm-3"]
    assert short.groups[1].label.startswith("LogAdj · ")
    assert "lr 0.7" in short.groups[1].label
    assert [g.label for g in short.comparable] == ["CE", "ELM"]
    names = {g.first.path.name: g.label for g in long.groups}
    assert names == {"ce-6": "CE", "elm-6": "ELM", "alone": "ELM · 4 epochs · fp32 · recipe strong"}


def test_a_knob_that_came_later_does_not_part_old_seeds_from_new(tmp_path):
    make_run(tmp_path / "new", "elm", seed=0)
    old = make_run(tmp_path / "old", "elm", seed=1)
    knobs = json.loads((old / "config.json").read_text())["knobs"]
    edit(old, "config.json", knobs={k: v for k, v in knobs.items() if k != "memory"})
    (data,) = datasets(find([tmp_path]).runs)
    (group,) = data.groups
    assert (group.label, len(group.runs)) == ("ELM", 2)


def test_one_folder_written_in_several_ways_is_one_data_set(tmp_path):
    for seed, path in enumerate(("photos", "photos/", "./photos", "/somewhere/photos")):
        make_run(tmp_path / f"{seed}", "ce", data=path, seed=seed)
    (data,) = datasets(find([tmp_path]).runs)
    (group,) = data.groups
    assert (data.title, len(group.runs)) == ("photos", 4)
    make_run(tmp_path / "other", "ce", data="/elsewhere/photos", fingerprint="other")
    assert len(datasets(find([tmp_path]).runs)) == 2


def test_titles_never_collide(tmp_path):
    for i, counts in enumerate(((9, 8), (7, 6), (5, 4))):
        make_run(tmp_path / f"{i}", "ce", data="digits-lt", counts=counts)
    titles = [data.title for data in datasets(find([tmp_path]).runs)]
    assert titles == [f"digits-lt #{i}" for i in (1, 2, 3)]


def test_a_mean_over_seeds_of_which_one_lacks_the_value_is_none(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"{seed}", "ce", seed=seed)
    (data,) = datasets(find([tmp_path]).runs)
    (group,) = data.groups
    assert group.stat(lambda run: 0.5 if run.seed else None) is None
    assert group.stat(lambda run: run.seed) == (0.5, pytest.approx(math.sqrt(0.5)), 2)


def test_knobs_read_back_as_the_command_line_takes_them():
    from longtail import margins

    for text in ("n^0.5", "10*prior^0.5", "prior", "n", "3", "log_prior", "2*log_prior", "effective(0.999)"):
        assert short(margins.parse(text).to_data()) == text


def test_no_digit_of_a_knob_is_lost():
    for number in (1234567, 0, 64.0, 1e-05, 0.1 + 0.2, 123456.789):
        assert float(short(number)) == number
