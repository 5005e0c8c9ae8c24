"""No number is typed: README's table and the page of results say what `results/` holds."""

import importlib.util
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from longtail.report.document import refresh
from longtail.report.page import make
from longtail.runs.read import find

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def cell(values) -> str:
    if None in values:  # the group has no classes
        return "–"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def accuracies(data: str) -> dict[str, dict[int, list[float]]]:
    """Balanced accuracy, head, torso and tail of the runs in results/DATA, by method as the command has it and seed."""
    values: dict[str, dict[int, list[float]]] = defaultdict(dict)
    bundle = RESULTS / f"{data}.jsonl"
    for run in find([bundle if bundle.exists() else RESULTS / data]).runs:
        memory = run.config.knobs.get("memory")
        name = f"{run.method} --set memory={memory}" if memory else run.method
        assert run.seed not in values[name], "one comparison a folder: other settings belong elsewhere"
        values[name][run.seed] = [run.balanced, *(run.group_accuracy(g) for g in ("head", "torso", "tail"))]
    return values


def readme_table(data: str) -> str:
    """The table that README must have, from the runs in results/DATA."""
    values = accuracies(data)
    lines = ["| method | balanced accuracy (%) | head | torso | tail |", "|---|---|---|---|---|"]
    shown = [name for name in ("ce", "logadj", "elm", "elm --set memory=16") if name in values]
    lines += [f"| `{name}` | {' | '.join(cell(column) for column in zip(*values[name].values()))} |" for name in shown]
    return "\n".join(lines)


README = re.findall(r"<!-- results:(\S+) -->\n(.*?)\n<!-- /results -->", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize(("data", "block"), README, ids=[data for data, _ in README])
def test_the_readme_s_tables_are_what_the_results_say(data, block):
    assert block == readme_table(data)


ORDER = re.findall(
    r"[Ii]n\s(\d+)\sepochs|`([^`]+)`\s(?:is\s)?above\s`([^`]+)`\sin\s(\d+)\sof\s(\d+)", (ROOT / "README.md").read_text()
)


def test_the_order_that_the_readme_states_is_that_of_the_seeds():
    """README says in how many seeds one method is above another."""
    checked, values = [], {}
    for epochs, higher, lower, times, seeds in ORDER:
        if epochs:
            values = accuracies({"64": "cifar100-lt"}[epochs])
            continue
        both = values[higher].keys() & values[lower].keys()
        wins = sum(values[higher][seed][0] > values[lower][seed][0] for seed in both)
        assert (wins, len(both)) == (int(times), int(seeds)), f"{higher} above {lower}"
        checked.append((higher, lower))
    assert checked.count(("elm", "logadj")) == checked.count(("logadj", "ce")) == 1


def test_the_readme_shows_real_images():
    assert [data for data, _ in README] == ["cifar100-lt", "cifar100-lt-256"]


GENERATED = ("ablation.md",)  # held to the runs by a test of its own
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED)]
COMPUTED = {"0.9 %"}  # of docs/scaling.md: a probability, which docs/theory.md computes in code that is run


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_benchmark_on_a_page_is_the_stored_one(page):
    for name, table in re.findall(r"<!-- benchmark:(.*?) -->\n(.*?)<!-- /benchmark -->", page.read_text(), flags=re.S):
        assert table in (ROOT / "results" / f"{name}.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_measurement_is_typed_into_prose(page):
    """Where a page speaks of a measurement it shows a generated table, or says it in words that the table bears out."""
    generated = r"<!-- (results|table|benchmark):.*?<!-- /\1 -->"
    text = re.sub(rf"{generated}|```.*?```|`[^`]*`", "", page.read_text(), flags=re.S)
    typed = re.findall(r"\d+\.?\d* ?± ?\d|\d+\.\d+ ?(?:%|points?\b|per cent)", text)
    assert set(typed) <= COMPUTED


def test_the_tables_and_figures_of_the_page_of_results_are_those_of_the_results():
    page = (ROOT / "docs" / "results.md").read_text()
    report = make(find([RESULTS]), paper_claims=True)
    assert refresh(page, report) == page
    shown = re.findall(r"\(figures/([^)]+)\.png\)", page)
    assert set(shown) <= {picture.name for picture in report.pictures}
    assert sorted(p.stem for p in (ROOT / "docs" / "figures").iterdir()) == sorted(shown)
    assert len(page.splitlines()) <= 250


def ablation():
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "benchmarks" / "ablation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_ablation_is_generated_from_the_results():
    assert ablation().page(RESULTS / "ablation") == (ROOT / "docs" / "ablation.md").read_text()


@pytest.mark.parametrize("path", sorted((RESULTS / "ablation").glob("*.json")), ids=lambda p: p.stem)
def test_the_ablation_was_tuned_on_validation_data_with_other_seeds(path):
    module, found = ablation(), json.loads(path.read_text())
    for name, variant in found["variants"].items():
        assert re.fullmatch(r"[0-9a-f]{40}", variant["git"]), "made from a clean, committed tree"
        assert max(run["seed"] for run in variant["runs"]) < 1000  # tuning seeds start there
        if variant["tuning"]:
            best = max((t for t in variant["tuning"] if t["val"] is not None), key=lambda t: t["val"])
            assert best.items() - {("val", best["val"])} <= variant["knobs"].items()
            assert len(variant["tuning"]) == len(module.TUNED[name][2])
    assert not re.search(r"/(tmp|home|root|work)/", json.dumps(found)), "no path of somebody's machine"


def test_every_result_says_how_it_was_made():
    found = find([RESULTS])
    assert found.skipped == []
    for run in found.runs:
        assert run.seed >= 0, run.path
        assert run.epochs >= 1, run.path
        assert run.recipe, run.path
        assert re.fullmatch(r"[0-9a-f]{40}", run.environment.git), f"{run.path}: made from a clean, committed tree"
        assert run.environment.machine["cores"], run.path


def test_no_path_of_somebody_s_machine_is_in_the_results():
    for path in (p for p in RESULTS.rglob("*") if p.suffix in (".json", ".jsonl")):
        assert not re.search(r"/(tmp|home|root|work)/", path.read_text()), path


def test_results_stay_small():
    assert sum(p.stat().st_size for p in RESULTS.rglob("*") if p.is_file()) < 20_000_000
