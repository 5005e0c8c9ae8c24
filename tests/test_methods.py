"""Plans: every method builds, reads its knobs, and ticks the boxes that the paper's Table 1 prints."""

import json

import pytest
import torch

from longtail import ClassCounts, margins, methods
from longtail.errors import InputError
from longtail.losses import MarginCrossEntropy, Pull
from longtail.margins import Constant, EffectiveNumber, Power, from_data

COUNTS = ClassCounts([500, 50, 5, 0])
ALL = (
    "ce cb-focal ldam-drw logadj equalised vs dro-lt dro-lt-multistage tau-norm crt lws elm elm-relative center "
    "spreadout range hybrid supcon triplet contrastive"
)

# The printed rows: long tail, logit loss, logit margin, embedding loss, embedding margin
TABLE_1 = {
    "contrastive": "---✓×",
    "supcon": "××-✓×",
    "triplet": "××-✓✓",
    "spreadout": "×✓×✓×",
    "center": "×✓×✓×",
    "hybrid": "×✓×✓×",
    "ldam-drw": "✓✓✓×-",
    "equalised": "✓✓✓×-",
    "logadj": "✓✓✓×-",
    "range": "✓✓×✓✓",
    "dro-lt": "✓✓×✓✓",
    "dro-lt-multistage": "✓✓×✓✓",
    "elm": "✓✓✓✓✓",
}


def test_names():
    assert set(ALL.split()) <= set(methods.names())


@pytest.mark.parametrize(("name", "printed"), TABLE_1.items())
def test_traits_are_those_of_the_printed_table(name, printed):
    ticks = methods.build(name, COUNTS).traits()
    assert "".join("-" if t is None else "✓" if t else "×" for t in ticks.values()) == printed


def test_traits_follow_the_structure_not_the_name():
    assert methods.build("elm", COUNTS, lam=0).traits()["embedding_loss"] is False
    assert methods.build("dro-lt", COUNTS, epsilon=0).traits()["embedding_margin"] is False
    assert list(methods.build("ce", COUNTS).traits().values()) == [False, True, False, False, None]
    for zero in (methods.build("logadj", COUNTS, tau=0), methods.build("equalised", COUNTS, scale=0)):
        assert zero.traits() == methods.build("ce", COUNTS).traits()
    for name in ("cb-focal", "tau-norm", "crt", "lws", "vs"):
        assert methods.build(name, COUNTS).traits()["long_tail"] is True


@pytest.mark.parametrize("name", methods.names())
def test_knobs_are_plain_data_that_rebuild_the_plan(name):
    plan = methods.build(name, COUNTS)
    again = methods.build(name, COUNTS, **json.loads(json.dumps(plan.knobs)))
    assert again.knobs == plan.knobs
    assert [s.name for s in again.stages] == [s.name for s in plan.stages]
    assert methods.describe(name)


@pytest.mark.parametrize("name", methods.names())
def test_every_stage_gives_a_finite_loss_and_gradient(name):
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 0, 0])
    for stage in methods.build(name, COUNTS).stages:
        logits = torch.randn(8, 4, requires_grad=True)
        embeddings = torch.randn(8, 5, requires_grad=True)
        ids = torch.arange(8) // stage.views
        loss = stage.objective((logits, embeddings), labels, ids=ids)
        loss.backward()
        for x in (logits, embeddings):
            assert x.grad is None or bool(torch.isfinite(x.grad).all())
        assert torch.isfinite(loss)


def test_the_paper_s_settings_come_with_the_data_and_give_way_to_the_user_s():
    def pull(**given):
        (_, _), (lam, term) = methods.build("elm", COUNTS, **given).stages[0].objective.weighted
        assert isinstance(term, Pull)
        return lam, term.vectors["alpha"]

    lam, alpha = pull(data="imagenet-lt")
    assert lam == 0.001
    torch.testing.assert_close(alpha, 10 * COUNTS.prior**0.5)
    lam, alpha = pull(data="cifar10-lt")
    assert lam == 0.01
    torch.testing.assert_close(alpha, COUNTS.prior)
    lam, alpha = pull(data="cifar100-lt", lam="0.5", alpha="2*count")
    assert lam == 0.5
    torch.testing.assert_close(alpha, 2 * COUNTS.n.double())
    assert pull(data="my-own-data")[0] == 0.01  # at most


def test_ldam_is_two_stages_of_one_schedule_with_normalised_weights_in_the_second():
    plan = methods.build("ldam-drw", COUNTS)
    first, second = plan.stages
    assert plan.head == "cosine"
    assert (first.share, second.share, second.restart) == (0.8, pytest.approx(0.2), False)
    assert plan.epochs(200) == [160, 40]
    assert plan.epochs(1) == [1, 1]
    logits = torch.randn(6, 4).tanh()
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    w = EffectiveNumber()(COUNTS)[labels]
    values = first.objective.weighted[0][1]((logits, None), labels)
    torch.testing.assert_close(second.objective((logits, None), labels), (w * values).sum().div(w.sum()).float())
    # s·m on the true class of s·cosθ, the largest margin being 0.5 for the rarest non-empty class
    m = 0.5 * (COUNTS.n[:3].double() / 5) ** -0.25
    z = 30 * logits.double()
    z[torch.arange(6), labels] -= 30 * m[labels]
    torch.testing.assert_close(values, torch.nn.functional.cross_entropy(z, labels, reduction="none").float())


def test_cb_focal_divides_by_the_batch_and_starts_its_bias_low():
    plan = methods.build("cb-focal", COUNTS)
    assert plan.head_bias == pytest.approx(-torch.tensor(3.0).log().item())
    term = plan.stages[0].objective.weighted[0][1]
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 0])
    torch.testing.assert_close(plan.stages[0].objective((logits, None), labels), term((logits, None), labels).mean())


def test_lam_zero_is_exactly_the_plain_loss_and_needs_no_embeddings():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 0, 1])
    elm = methods.build("elm", COUNTS, lam=0).stages[0].objective
    logadj = methods.build("logadj", COUNTS).stages[0].objective
    assert torch.equal(elm((logits, None), labels), logadj((logits, None), labels))
    assert isinstance(elm.weighted[0][1], MarginCrossEntropy)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("elmm", {}, r"unknown method 'elmm': did you mean 'elm'\? Valid: ce, "),
        ("elm", {"lamb": 1}, r"unknown knob of 'elm' 'lamb': did you mean 'lam'\? Valid: lam, alpha"),
        ("crt", {"lam": 1}, "method 'crt' has no knobs, got 'lam'"),
        ("elm", {"lam": "much"}, "lam must be a finite number, got 'much'"),
        ("elm", {"lam": float("nan")}, "lam must be a finite number, got nan"),
        ("elm", {"lam": -1}, "must be a number of at least 0, got -1"),
        ("elm", {"memory": 1.5}, "memory must be a whole number, got 1.5"),
        ("elm", {"alpha": "sqrt(n)"}, "cannot read 'sqrt\\(n\\)'"),
        ("elm", {"sampler": "pears"}, "did you mean 'pairs'"),
        ("os:system", {}, "method 'os:system' failed: TypeError: expected str"),
        ("sys:exit", {}, "method 'sys:exit' failed: SystemExit"),
        ("builtins:dict", {}, "method 'builtins:dict' must be a function of the class counts: ValueError"),
        ("os:getpid", {}, "method 'os:getpid' must be a function of the class counts: ValueError"),
        (
            "elm",
            {"memory": 4, "memory_ema": 1.0},
            "memory_ema, the decay of an average of the weights, must be a number of at least 0 and below 1",
        ),
        ("elm", {"memory_ema": 0.9}, "set one, such as memory=16"),
        ("elm", {"memory_warmup": 5}, "memory_warmup=5 is of a memory, and there is none"),
        ("elm", {"memory": 4, "memory_warmup": -1}, "warmup must be a whole number of at least 0, got -1"),
        ("elm", {"memory_age": 5}, "memory_age=5 is of a memory, and there is none: set one, such as memory=16"),
        ("elm-relative", {"memory_below": 9}, "memory_below=9 is of a memory, and there is none"),
        (
            "elm",
            {"memory": 10**9},
            "memory must be a whole number of at least 1 and of at most 1000000, got 1000000000",
        ),
        ("elm", {"memory": float("inf")}, "memory must be a whole number, got inf"),
        ("elm", {"lam": 10**400}, "lam must be a finite number, got 1000"),
        ("elm", {"memory": -1}, "memory must be a whole number of at least 1"),
        ("elm-relative", {"start": 1.0}, "below 1, got 1.0"),
        ("ldam-drw", {"drw": 1.0}, "above 0 and below 1, got 1.0"),
        ("supcon", {"classifier": "svm"}, "Valid: knn, linear"),
    ],
)
def test_bad_names_and_knobs(name, given, message):
    with pytest.raises(InputError, match=message):
        methods.build(name, COUNTS, **given)


def test_elm_relative_may_set_in_late_within_one_schedule():
    plan = methods.build("elm-relative", COUNTS, start=0.5, memory=4, memory_below=100, memory_warmup=7)
    first, second = plan.stages
    assert [type(t).__name__ for _, t in first.objective.weighted] == ["MarginCrossEntropy"]
    assert (second.restart, plan.epochs(10)) == (False, [5, 5])
    assert (second.objective.memory.below, second.objective.memory.warmup) == (100, 7)
    assert all(methods.build("elm-relative", COUNTS).traits().values()) is False  # α = 0 is no margin
    assert len(methods.build("elm-relative", COUNTS).stages) == 1


def test_alpha_in_all_its_forms():
    for form in ("10*prior^0.5", Power(0.5, scale=10.0), Power(0.5, scale=10.0).to_data()):
        assert from_data(methods.build("elm", COUNTS, alpha=form).knobs["alpha"]) == Power(0.5, scale=10.0)
    assert from_data(methods.build("elm", COUNTS, alpha="3").knobs["alpha"]) == Constant(3.0)


@pytest.mark.parametrize("name", methods.names())
def test_what_is_printed_of_a_knob_can_be_set(name):
    told = {knob: margins.short(value) for knob, value in methods.knobs(name).items()}
    assert methods.build(name, COUNTS, **told).knobs == methods.build(name, COUNTS).knobs


def test_elm_is_automatic_where_the_paper_has_no_lambda():
    assert methods.build("elm", COUNTS).knobs["lam"] == "auto"
    assert methods.build("elm", COUNTS).stages[0].objective.bound == 0.5
    assert methods.build("elm", COUNTS, lam="0.02").stages[0].objective.bound is None
    for data in ("cifar100-lt", "digits-lt"):
        plan = methods.build("elm", COUNTS, data=data)
        assert (plan.knobs["lam"], plan.stages[0].objective.bound) == (0.01, None)
    with pytest.raises(InputError, match=r"lam must be a finite number, got 'much' \(or 'auto'\)"):
        methods.build("elm", COUNTS, lam="much")


def test_knobs_that_came_later_are_listed_only_where_they_are_on():
    assert "head" not in methods.build("logadj", COUNTS).knobs
    for name, given in (
        ("logadj", {"head": "cosine"}),
        ("elm", {"head": "cosine", "head_scale": "16", "normalise": "true", "pull_scale": "4"}),
        ("ce", {"sampler": "sqrt"}),
    ):
        plan = methods.build(name, COUNTS, **given)
        assert set(given) <= set(plan.knobs)
        assert methods.build(name, COUNTS, **json.loads(json.dumps(plan.knobs))).knobs == plan.knobs
    elm = methods.build("elm", COUNTS, head="cosine", head_scale=16, normalise=True, pull_scale=4)
    logit, pull = (term for _, term in elm.stages[0].objective.weighted)
    assert elm.head == "cosine"
    assert logit.vectors["scale"].tolist() == [16.0] * 4
    assert (pull.normalise, pull.distance_scale) == (True, 4.0)


@pytest.mark.parametrize(
    ("sampler", "power"), [("instance", 1.0), ("balanced", 0.0), ("sqrt", 0.5), ("progressive", 0.0)]
)
def test_the_prior_that_a_sampler_leaves_behind(sampler, power):
    plan = methods.build("ce", COUNTS, sampler=sampler)
    assert plan.stages[0].drawn_by == power
    assert plan.traits()["long_tail"] is (power != 1)


OWN = """
from typing import Literal
from longtail import Objective
from longtail.losses import MarginCrossEntropy, Pull
from longtail.margins import Power
from longtail.plan import Stage

def short(counts, lam=0.5, alpha=Power(0.5), words: Literal["a", "b"] = "a"):
    "A pull beside cross-entropy."
    return Objective((1.0, MarginCrossEntropy(counts)), (lam, Pull(counts, alpha=alpha)))

def whole(counts):
    first = Objective((1.0, MarginCrossEntropy(counts)))
    return {"stages": (Stage("one", first), Stage("two", first, share=0.5)), "head": "cosine"}

def wrong(counts):
    return 3

def bare(counts, lam):
    return None
"""


def test_a_method_of_one_s_own_module(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    plan = methods.build("own_methods:short", COUNTS, lam="0.25", alpha="2*n", words="b")
    assert plan.method == "own_methods:short"
    assert plan.stages[0].objective.coefficients == [1.0, 0.25]
    assert methods.build("own_methods:short", COUNTS, **json.loads(json.dumps(plan.knobs))).knobs == plan.knobs
    assert methods.describe("own_methods:short") == "A pull beside cross-entropy."
    assert methods.build("own_methods:short", COUNTS).traits()["embedding_margin"] is True
    whole = methods.build("own_methods:whole", COUNTS)
    assert ([s.name for s in whole.stages], whole.head) == (["one", "two"], "cosine")
    for name, message in (
        ("own_methods:wrong", "must return an Objective or the fields of a Plan, got int"),
        ("own_methods:bare", "its parameter 'lam' is a knob, and needs a name and a default"),
        ("own_methods:none", "own_methods has no callable 'none'"),
        ("no_such_module:none", "module 'no_such_module' cannot be imported"),
    ):
        with pytest.raises(InputError, match=message):
            methods.build(name, COUNTS)
