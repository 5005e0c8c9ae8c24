"""Tables: what stands in them, and that Markdown, CSV and HTML say the same."""

import csv
import io
import json
import shutil

import numpy as np
import pytest

from fake_runs import SMALL, edit, make_run
from longtail.errors import InputError
from longtail.evaluate.accuracy import Spread
from longtail.report import claims, paper, tables
from longtail.report.comparison import noise, pair, reference_head
from longtail.report.document import Table
from longtail.report.grouping import datasets
from longtail.runs.read import find

CIFAR10 = (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
PAPER = {
    "name": "cifar", "model": "resnet32", "batch_size": 128, "lr": 0.4, "weight_decay": 1e-4, "schedule": "step",
    "warmup_epochs": 15.0, "milestones": [96.0, 192.0, 224.0],
}  # fmt: skip


def read(path):
    return datasets(find([path]).runs)


def rows_of(table):
    return {row[0]: dict(zip(table.columns, row)) for row in table.rows}


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar10")
    for seed in range(2):
        make_run(
            root / f"ce-{seed}", "ce", data="cifar10-lt", counts=CIFAR10, seed=seed, epochs=256, dim=3, recipe=PAPER
        )
    make_run(root / "elm", "elm", data="cifar10-lt", counts=CIFAR10, epochs=256, dim=3, recipe=PAPER)
    make_run(root / "memory", "elm", data="cifar10-lt", counts=CIFAR10, epochs=256, dim=3, recipe=PAPER, memory=4)
    (data,) = read(root)
    return data


def test_ours_stands_beside_the_papers_with_its_marks(cifar10):
    table = tables.results(cifar10)
    rows = rows_of(table)
    assert rows["CE"]["Paper"] == paper.Number(72.84)
    assert rows["CE"]["Seeds"] == 2
    assert rows["CE"]["Balanced accuracy"].std is not None
    assert rows["ELM"]["Balanced accuracy"].std is None
    ours = 100 * rows["ELM"]["Balanced accuracy"].mean
    assert rows["ELM"]["Ours − paper"] == f"{ours - 77.95:+.2f}"
    # the paper's number belongs to the paper's settings only
    assert rows["ELM (memory = 4)"]["Paper"] is None
    assert rows["LDAM + DRW"]["Balanced accuracy"] == "not run"
    assert rows["LDAM + DRW"]["Paper"] == paper.Number(77.03, "†")
    assert "77.03†" in table.markdown()
    assert "Cao et al. (2019)" in table.note
    assert "Samuel" not in table.note  # no number of this column is quoted from there
    assert rows["CE"]["Tail"] == "no classes"
    assert "Not the paper's recipe" not in table.note


def test_the_table_says_where_the_recipe_departs(tmp_path):
    short = {**PAPER, "lr": 0.1, "warmup_epochs": 3.75, "milestones": [24.0, 48.0, 56.0], "augment": "strong"}
    make_run(tmp_path / "ce", "ce", data="cifar10-lt", counts=CIFAR10, epochs=64, dim=3, recipe=short)
    (data,) = read(tmp_path)
    note = tables.results(data).note
    assert "epochs 64 (paper: 256)" in note
    assert "learning rate 0.1 (paper: 0.4)" in note
    assert "augmentation strong" in note
    assert "milestones" not in note  # in proportion to the epochs, so the paper's own
    assert "batch size" not in note


def test_departures_of_the_same_configurations_share_a_sentence(tmp_path):
    short = {**PAPER, "warmup_epochs": 3.75, "milestones": [24.0, 48.0, 56.0]}
    for method, recipe in (("ce", short), ("logadj", short), ("elm", {**short, "lr": 0.1, "weight_decay": 0.0005})):
        make_run(tmp_path / method, method, data="cifar10-lt", counts=CIFAR10, epochs=64, dim=3, recipe=recipe)
    (data,) = read(tmp_path)
    assert tables.results(data).note.endswith(
        " Not the paper's recipe: epochs 64 (paper: 256)."
        " Not the paper's recipe for ELM · lr 0.1 · weight_decay 0.0005: "
        "learning rate 0.1 (paper: 0.4), weight decay 0.0005 (paper: 0.0001)."
    )


def test_epochs_of_later_stages_are_said(tmp_path):
    make_run(tmp_path / "ce", "ce", epochs=3)
    run = make_run(tmp_path / "crt", "crt", epochs=3)
    (data,) = read(tmp_path)
    assert "later ones" not in tables.results(data).note
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"stage": "head", "epoch": 4, "stage_epoch": 1}) + "\n")
    (data,) = read(tmp_path)
    assert rows_of(tables.results(data))["cRT"]["Epochs"] == 3
    assert "with the later ones trained in all: cRT: 4." in tables.results(data).note


def test_other_counts_or_other_data_get_no_published_numbers(tmp_path):
    make_run(tmp_path / "a", "elm", data="cifar10-lt", counts=(50, 40, 30, 20, 10, 9, 8, 7, 6, 5))
    make_run(tmp_path / "b", "elm")
    for data, words in zip(read(tmp_path), ("not those of its data set", "no numbers for this data set")):
        table = tables.results(data)
        assert words in table.note
        assert [row[0] for row in table.rows] == ["ELM"]
        assert "Paper" not in table.columns


def test_markdown_csv_and_latex_agree_and_escape():
    table = Table("t", "T", ["a|b", "x"], [["<b>|", Spread(0.5, 0.01, 2)], ["c,d", None], ["e", paper.Number(25.0)]])
    parsed = list(csv.reader(io.StringIO(table.csv())))
    assert parsed == [["a|b", "x", "x std"], ["<b>|", "50.0", "1.0"], ["c,d", "", ""], ["e", "25.0", ""]]
    assert table.markdown().startswith("| a\\|b | x |\n")
    assert "| <b>\\| | 50.00 ± 1.00 |" in table.markdown()
    assert "50.00 ± 1.00" in table.plain()
    assert table.latex().splitlines() == [
        r"\begin{tabular}{lr}", r"\toprule", r"a|b & x \\", r"\midrule", r"<b>| & 50.00 $\pm$ 1.00 \\", r"c,d & -- \\",
        r"e & 25.00 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_some_columns_and_rows_of_a_table():
    table = Table("t", "T", ["Method", "x", "y"], [["a", 1, 2], ["b", 3, 4]], "a note")
    part = table.pick(columns=["Method", "y"], rows=["b"])
    assert (part.columns, part.rows) == (["Method", "y"], [["b", 4]])
    for asked, said in (({"columns": ["z"]}, "unknown column 'z'"), ({"rows": ["c"]}, "unknown row 'c'")):
        with pytest.raises(InputError, match=said):
            table.pick(**asked)


def test_the_circumstances_of_half_of_the_groups_need_no_name(tmp_path):
    for method in ("ce", "elm"):
        make_run(tmp_path / method, method)
    for lr in (0.2, 0.3):
        make_run(tmp_path / f"{lr}", "elm", recipe={"lr": lr})
    (data,) = read(tmp_path)
    assert sorted(group.label for group in data.groups) == ["CE", "ELM", "ELM · lr 0.2", "ELM · lr 0.3"]


def test_marks_get_a_column_of_their_own_in_csv(cifar10):
    lines = list(csv.DictReader(io.StringIO(tables.results(cifar10).csv())))
    ldam = next(line for line in lines if line["Method"] == "LDAM + DRW")
    assert (ldam["Paper"], ldam["Paper mark"]) == ("77.03", "†")


def test_per_class_accuracies_are_means_over_seeds(cifar10):
    table = tables.per_class(cifar10)
    assert [row[2] for row in table.rows] == list(CIFAR10)
    group = next(g for g in cifar10.groups if g.label == "CE")
    wanted = sum(run.summary.test.per_class[3] for run in group.runs) / 2
    assert table.rows[3][table.columns.index("CE")].value == pytest.approx(100 * wanted)


def test_the_breakdown_says_what_is_noise(cifar10):
    table = tables.breakdown(cifar10, noise(cifar10))
    assert "With 400 test samples" in table.note
    assert "what chance does in training is not known" not in table.note
    assert rows_of(table)["CE"]["Tail (0 classes)"] == "no classes"


def test_how_far_seeds_lie_apart_is_said_where_there_are_several(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.6)):
        for method, shift in (("ce", 0.0), ("elm", 0.1)):
            run = make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            summary = json.loads((run / "summary.json").read_text())
            summary["test"]["balanced"] = accuracy + shift * seed
            (run / "summary.json").write_text(json.dumps(summary))
    make_run(tmp_path / "logadj", "logadj")
    (data,) = read(tmp_path)
    pooled = 100 * np.sqrt((np.var([0.5, 0.6], ddof=1) + np.var([0.5, 0.7], ddof=1)) / 2)
    assert f"a standard deviation of {pooled:.2f} points" in noise(data)
    assert "2 seeds each tell hardly any two methods apart" in noise(data)
    for method in ("ce", "elm"):
        shutil.rmtree(tmp_path / f"{method}-1")
    (data,) = read(tmp_path)
    assert noise(data).endswith("what chance does in training is not known from one seed.")


def test_the_results_say_which_runs_were_resumed(tmp_path):
    make_run(tmp_path / "ce", "ce")
    edit(make_run(tmp_path / "elm", "elm", seed=1), "environment.json", resumed=2)
    (data,) = read(tmp_path)
    assert "Interrupted and resumed from a checkpoint, not restarted: ELM (seed 1)." in tables.results(data).note
    shutil.rmtree(tmp_path / "elm")
    (data,) = read(tmp_path)
    assert "resumed" not in tables.results(data).note


def test_alive_is_the_mean_over_epochs_of_runs_with_a_pull(tmp_path):
    make_run(tmp_path / "ce", "ce")
    run = make_run(tmp_path / "elm", "elm")
    lines = [
        '{"epoch": 1, "alive": {"all": 0.4, "head": 1.0, "torso": 0.5, "tail": null}}',
        '{"epoch": 2, "alive": {"all": 0.6}}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    (data,) = read(tmp_path)
    table = tables.alive(data)
    assert [row[0] for row in table.rows] == ["ELM"]
    assert rows_of(table)["ELM"]["All"].mean == pytest.approx(0.5)
    assert rows_of(table)["ELM"]["Torso"].mean == pytest.approx(0.5)
    assert rows_of(table)["ELM"]["Tail"] is None


def test_seeds_are_shown_one_by_one_with_what_is_left_of_their_training_loss(tmp_path):
    make_run(tmp_path / "alone", "logadj")
    accuracies = {}
    for seed, loss in ((1, 0.25), (0, 0.5)):
        run = make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
        rows = [
            {"loss": 9.0, "parts": {"logit": 8.0, "pull": 1.0}},
            {"loss": 1.0, "parts": {"logit": loss, "pull": 1.0}},
        ]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
        accuracies[seed] = 100 * json.loads((run / "summary.json").read_text())["test"]["balanced"]
    (data,) = read(tmp_path)
    assert tables.by_seed(data).rows == [["ELM", "0, 1", f"{accuracies[0]:.2f}, {accuracies[1]:.2f}", "0.500, 0.250"]]
    (tmp_path / "elm-1" / "metrics.jsonl").write_text("")
    (data,) = read(tmp_path)
    assert tables.by_seed(data).rows[0][-1] == "0.500, –"
    shutil.rmtree(tmp_path / "elm-1")
    (data,) = read(tmp_path)
    assert tables.by_seed(data) is None


def test_the_size_of_the_embedding_term_is_what_it_adds_to_the_logit_loss(tmp_path):
    make_run(tmp_path / "ce", "ce")
    for seed, scale in ((0, 1), (1, 3)):
        run = make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
        rows = [
            {"loss": 2.5 * scale, "parts": {"logit": 2.0 * scale, "pull": 50.0 * scale}},
            {"loss": 1.0 * scale, "parts": {"logit": 0.9 * scale, "pull": 10.0 * scale}},
            {"loss": 7.0, "parts": {"logit": 7.0}},  # a later stage without the term
        ]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (data,) = read(tmp_path)
    table = tables.embedding_term(data)
    (row,) = table.rows
    assert row[0] == "ELM"
    assert row[1:] == pytest.approx([4.0, 1.0, 20.0, 1.8, 0.2, 10.0])
    (tmp_path / "elm-1" / "metrics.jsonl").write_text("")
    (data,) = read(tmp_path)
    assert tables.embedding_term(data) is None


def test_adjusted_accuracies_are_those_of_the_summaries(tmp_path):
    for seed, tau in enumerate((0.0, -0.2)):
        groups = {"head": {"accuracy": 0.9}, "torso": {"accuracy": 0.6}, "tail": {"accuracy": 0.1 + 0.2 * seed}}
        run = make_run(tmp_path / f"elm-{seed}", "elm", seed=seed)
        edit(run, "summary.json", adjusted={"tau": tau, "val": 0.5, "balanced": 0.4 + 0.2 * seed, "groups": groups})
    make_run(tmp_path / "ce", "ce")
    (data,) = read(tmp_path)
    rows = rows_of(tables.adjusted(data))
    assert list(rows) == ["ELM"]  # the other has no validation data
    assert rows["ELM"]["τ by seed"] == "0, -0.2"
    assert rows["ELM"]["Adjusted"].mean == pytest.approx(0.5)
    assert rows["ELM"]["Tail"].mean == pytest.approx(0.2)
    assert rows["ELM"]["As trained"] == data.groups[1].balanced


def test_the_tail_s_variance_is_that_of_the_summary(tmp_path):
    run = make_run(tmp_path / "a", "ce")
    (data,) = read(tmp_path)
    row = rows_of(tables.embeddings(data))["CE"]
    kept = json.loads((run / "summary.json").read_text())["diagnostics"]["class_variance"]["by_group"]
    assert (row["Variance, tail, train"], row["Variance, tail, test"]) == (kept["train"]["tail"], kept["test"]["tail"])


def test_theory_and_embeddings_need_embeddings(tmp_path):
    run = make_run(tmp_path / "a", "ce")
    (data,) = read(tmp_path)
    assert rows_of(tables.theory(data))["CE"]["Holds in classes"] == "6 of 6"
    assert rows_of(tables.embeddings(data))["CE"]["k-NN accuracy"].mean > 0.3
    edit(run, "summary.json", theory={"proposition1": None}, diagnostics={})
    (data,) = read(tmp_path)
    assert tables.theory(data) is None
    assert tables.embeddings(data) is None


def test_commands_to_reproduce(tmp_path):
    run = make_run(tmp_path / "a", "elm", seed=3, lam=0.1, options={"ratio": 50})
    (read_run,) = find([run]).runs
    assert tables.command(read_run) == "longtail train elm --data digits-lt --seed 3"
    edit(run, "environment.json", command=["pytest", "-q"])
    (read_run,) = find([run]).runs
    words = tables.command(read_run)
    assert words.startswith("longtail train elm --data digits-lt --seed 3 --epochs 3")
    assert "--set lam=0.1" in words
    assert "--option ratio=50" in words
    assert "--model mlp --batch-size 64 --lr 0.1" in words


def test_what_was_run_counts_the_papers_data_and_seeds_of_one_configuration(tmp_path):
    counts = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    for i, epochs in enumerate((3, 4)):
        run = make_run(tmp_path / f"{i}", "ce", data="cifar10-lt", counts=(5,) * 10, epochs=epochs, test_each=2)
        edit(run, "split.json", counts=counts)
        edit(run, "config.json", model=("resnet32", "resnet20")[i])
    make_run(tmp_path / "milder", "elm", data="cifar10-lt", counts=SMALL, options={"ratio": 33})
    rows = claims.coverage(datasets(find([tmp_path]).runs)).rows
    column = {str(row[0]): row[1] for row in rows}
    assert column["Cross-entropy (CE)"] == "1 seed (4 epochs, resnet20), 1 seed (3 epochs)"
    assert column["ELM (proposed, one-stage)"] == "not run"


def test_what_longer_training_brings_is_said_where_methods_were_compared_at_two_lengths(tmp_path):
    for epochs in (3, 6):
        for method in ("ce", "elm"):
            make_run(
                tmp_path / f"{method}-{epochs}", method, epochs=epochs, seed=epochs, recipe={"milestones": [epochs]}
            )
    make_run(tmp_path / "short-only", "logadj", epochs=3, recipe={"milestones": [3]})
    sets = read(tmp_path)
    (table,) = tables.trainings(sets)
    assert table.columns == ["Method", "3 epochs, fp32", "6 epochs, fp32"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == ["CE", "ELM"]
    short, long = sets
    assert rows["ELM"] == [short.plain("elm")[0].balanced, long.plain("elm")[0].balanced]


def test_the_comparison_of_most_runs_comes_first_and_of_equally_many_the_longest(tmp_path):
    for method in ("ce", "elm"):
        for epochs in (3, 6):
            make_run(tmp_path / f"{method}-{epochs}", method, epochs=epochs)
    assert [data.title for data in read(tmp_path)] == ["digits-lt", "digits-lt (3 epochs)"]
    make_run(tmp_path / "logadj", "logadj", epochs=3)
    assert [data.title for data in read(tmp_path)] == ["digits-lt", "digits-lt (6 epochs)"]


def test_a_longer_run_of_one_method_has_its_column_and_moves_no_comparison(tmp_path):
    for method in ("ce", "logadj", "elm"):
        make_run(tmp_path / method, method, data="cifar10-lt")
    (data,) = read(tmp_path)
    head, compared = reference_head(data), [group.label for group in pair(data, "elm", "logadj")]
    assert head == data.plain("logadj")[0].accuracy("head").mean
    make_run(tmp_path / "longer", "logadj", data="cifar10-lt", epochs=6, seed=7, tight=0.2)
    (data,) = read(tmp_path)
    assert data.plain("logadj")[1].accuracy("head").mean != head
    assert (reference_head(data), [group.label for group in pair(data, "elm", "logadj")]) == (head, compared)
    (table,) = tables.trainings([data])
    assert [*table.columns[1:], table.rows[0][0]] == ["3 epochs, fp32", "6 epochs, fp32", "LogAdj"]
    assert table.rows[0][1:] == [group.balanced for group in data.plain("logadj")]


def test_methods_by_ways_of_training_name_what_differs_and_leave_a_cell_for_what_was_not_run(tmp_path):
    for method in ("ce", "logadj", "elm"):
        make_run(tmp_path / method, method, seed=1)
    for method in ("ce", "elm"):
        make_run(tmp_path / f"{method}-lr", method, recipe={"lr": 0.2})
    make_run(tmp_path / "strong", "elm", epochs=6, recipe={"name": "strong", "ema": 0.9, "augment": "crop"})
    make_run(tmp_path / "longer", "logadj", epochs=6)
    sets = read(tmp_path)
    assert [data.title for data in sets] == ["digits-lt", "digits-lt (lr 0.2)"]
    (table,) = tables.trainings(sets)
    ways = ["3 epochs, fp32", "6 epochs, fp32", "3 epochs, fp32, lr 0.2", "6 epochs, fp32, recipe strong"]
    assert table.columns == ["Method", *ways]
    run = [[cell != "not run" for cell in row[1:]] for row in table.rows]
    assert run == [[True, False, True, False], [True, True, False, False], [True, False, True, True]]  # ce, logadj, elm


def test_the_commonest_mistakes_are_means_over_seeds(tmp_path):
    tops = [[[0, 1, 7], [5, 0, 2]], [[0, 1, 4]]]
    for seed, top in enumerate(tops):
        run = make_run(tmp_path / f"{seed}", "ce", seed=seed)
        test = json.loads((run / "summary.json").read_text())["test"]
        edit(run, "summary.json", test={**test, "confusion": {"top": top}})
    (data,) = datasets(find([tmp_path]).runs)
    table = tables.confusions(data)
    assert table.rows == [
        ["CE", "class 0", "head", "class 1", "head", 5.5, 40],
        ["CE", "class 5", "tail", "class 0", "head", 1.0, 40],
    ]


def test_the_inventory_names_runs_and_what_was_left_out(tmp_path):
    edit(make_run(tmp_path / "ok", "ce"), "environment.json", resumed=2)
    make_run(tmp_path / "torn", "ce", seed=1).joinpath("summary.json").unlink()
    found = find([tmp_path])
    table, _ = tables.inventory(datasets(found.runs), found.skipped)
    states = [row[table.columns.index("State")] for row in table.rows]
    assert states[0] == "resumed 2 time(s)"
    assert states[1].startswith("skipped: it is not finished")
    coverage = rows_of(claims.coverage(datasets(found.runs)))
    assert set(coverage["LogAdj"].values()) == {"LogAdj", "not run"}
