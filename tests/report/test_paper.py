"""The paper's tables as data, against the paper's own text where it is here, and against the plans of our methods."""

import re

import pytest

from longtail import ClassCounts, methods
from longtail.report import claims, paper
from shared import SHARED

TEX = SHARED / "paper.tex"
needs_paper = pytest.mark.skipif(not TEX.is_file(), reason="the paper's source is not here")
MARKS = {"\\star": "⋆", "\\ddagger": "‡", "\\dagger": "†", "\\diamond": "⋄"}


def tabular(tex: str, label: str) -> str:
    """The first tabular before or after a label, without comments."""
    at = tex.index(f"\\label{{{label}}}")
    start = tex.rindex("\\begin{table", 0, at)
    return re.sub(r"(?<!\\)%.*", "", tex[start : tex.index("\\end{table", at)])


@needs_paper
def test_table2_is_what_the_paper_prints():
    rows = tabular(TEX.read_text(), "tbl:results").split("\\toprule")[2].split("\\\\")
    printed = []
    for row in rows:
        marked = row
        for name, mark in MARKS.items():
            marked = marked.replace(f"$^{name}$", mark)
        numbers = re.findall(r"(\d\d\.\d\d)([⋆‡†⋄]?)", marked)
        if numbers:
            printed.append(([(float(v), m) for v, m in numbers], "\\fade" in row))
    ours = [([(n.value, n.mark) for n in row.numbers.values()], row.multi_stage) for row in paper.TABLE2]
    assert ours == printed


@needs_paper
def test_table1_is_what_the_paper_prints():
    rows = tabular(TEX.read_text(), "tbl:summary").split("\\toprule")[2].split("\\\\")
    ticks = {"\\tick": True, "\\cross": False, "---": None}
    printed = [tuple(ticks[t] for t in re.findall(r"\\tick|\\cross|---", row)) for row in rows]
    assert [approach.ticks for approach in paper.TABLE1] == [row for row in printed if row]


def test_every_number_of_facts_is_there():
    assert paper.number("elm", "cifar100-lt") == paper.Number(45.77)
    assert paper.number("dro-lt-multistage", "inat2018") == paper.Number(69.70, "⋄")
    assert paper.number("elm", "moons") is None
    assert paper.number("no-such-method", "cifar100-lt") is None


def test_only_the_papers_own_counts_are_comparable():
    cifar = [int(500 * 100 ** (-i / 99)) for i in range(100)]
    assert paper.same_data("cifar100-lt", cifar)
    assert not paper.same_data("cifar100-lt", [int(500 * 50 ** (-i / 99)) for i in range(100)])
    assert not paper.same_data("cifar10-lt", cifar)


def test_table1_of_our_plans_agrees_with_the_paper():
    table = claims.table1()
    computed = [row for row in table.rows if row[1] != "the paper"]
    assert {row[1] for row in computed} >= {"elm", "dro-lt", "logadj", "center", "supcon"}
    assert {row[1]: row[-1] for row in computed if row[-1] != "agrees"} == {}
    assert set(paper.TRAITS) == set(methods.build("ce", ClassCounts([2, 1])).traits())
