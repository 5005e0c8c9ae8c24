import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from torch import nn

from longtail import models
from longtail.engine import recipe as recipes
from longtail.engine.recipe import Recipe
from longtail.engine.stage import parameter_groups
from longtail.errors import InputError
from longtail.runs.read import find


def test_table_3():
    columns = {
        "cifar": ("resnet32", 256, 128, 0.4, "step", 1e-4),
        "imagenet-lt": ("resnet50", 90, 512, 0.4, "cosine", 5e-4),
        "inat2018": ("resnet50", 90, 1024, 0.4, "cosine", 1e-4),
    }
    for name, column in columns.items():
        r = recipes.get(name)
        assert (r.model, r.epochs, r.batch_size, r.lr, r.schedule, r.weight_decay) == column
        assert r.momentum == 0.9
    cifar = recipes.get("cifar")
    assert (cifar.warmup_epochs, cifar.milestones, cifar.decay_factor) == (15, (96, 192, 224), 0.1)


def test_cifar_cpu_is_table_3_in_proportion():
    r = recipes.get("cifar-cpu")
    assert (r.epochs, r.warmup_epochs, r.milestones) == (64, 3.75, (24, 48, 56))
    assert (r.batch_size, r.lr, r.weight_decay) == (128, 0.4, 1e-4)


@pytest.mark.parametrize("name", recipes.names())
def test_round_trip_through_json(name):
    r = recipes.get(name)
    assert Recipe.from_dict(json.loads(json.dumps(r.to_dict()))) == r
    assert r.with_epochs(r.epochs) is r
    twice = r.with_epochs(2 * r.epochs)
    assert twice.warmup_epochs == 2 * r.warmup_epochs
    assert twice.with_epochs(r.epochs).milestones == r.milestones
    shape = (2,) if r.model == "mlp-moons" else (3, 32, 32)
    assert models.build(r.model, 3, shape, **r.model_options) is not None
    assert all(s.endswith(".") for s in r.decisions())


def test_learning_rates_of_the_step_schedule():
    r, spe = recipes.get("cifar"), 84
    rates = [r.lr_at(s, spe) for s in range(256 * spe)]
    assert rates[0] == pytest.approx(0.4 / (15 * spe))
    assert rates[15 * spe - 1] == pytest.approx(0.4)
    assert rates[7 * spe] == pytest.approx(0.4 * (7 * spe + 1) / (15 * spe))
    for epoch, rate in ((96, 0.4), (192, 0.04), (224, 0.004), (256, 0.0004)):
        assert rates[epoch * spe - 1] == pytest.approx(rate)
    assert max(rates) == pytest.approx(0.4)


def test_learning_rates_of_the_cosine():
    r = Recipe("x", "mlp", epochs=10, batch_size=4, lr=1.0, warmup_epochs=2.0)
    rates = [r.lr_at(s, 10) for s in range(100)]
    assert rates[:20] == pytest.approx([(s + 1) / 20 for s in range(20)])
    assert rates[20] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.5)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0 < rates[99] < 0.001
    assert r.lr_at(100, 10) == pytest.approx(0)


def test_another_length_scales_the_schedule():
    r = recipes.get("cifar")
    assert r.with_epochs(64).lr_at(24 * 50, 50) == pytest.approx(0.04)
    assert r.with_epochs(64).lr_at(24 * 50 - 1, 50) == pytest.approx(0.4)
    assert r.with_epochs(1).lr_at(0, 84) > 0
    assert r.with_epochs(3).epochs == 3


def test_weights_decay_and_nothing_else():
    model = models.build("resnet20", 10, (3, 32, 32))
    decayed, free = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    named = dict(model.named_parameters())
    ids = {id(p) for p in decayed["params"]}
    assert {n for n, p in named.items() if id(p) in ids} == {n for n in named if n.endswith("weight") and "bn" not in n}
    assert len(decayed["params"]) + len(free["params"]) == len(named)
    model.requires_grad_(False)
    model.head.weight.requires_grad_(True)
    (only,) = parameter_groups(model, 0.1)
    assert only["params"] == [model.head.weight] or only["params"][0] is model.head.weight
    assert parameter_groups(nn.Flatten(), 0.1) == []


def test_defaults():
    assert recipes.default_for("cifar10-lt").name == "cifar"
    assert recipes.default_for("digits-lt", "features").name == "digits"
    assert recipes.default_for("some/where.npz", "features").name == "features"
    assert recipes.default_for("features").name == "features"
    with pytest.raises(InputError, match="kind of data 'video'"):
        recipes.default_for("some/where", "video")


def test_small_data_are_counted_in_steps():
    for name in ("images", "photos", "features"):
        r = recipes.get(name)
        for n in (150, 812, 5_000, 100_000):
            small = r.for_samples(n)
            assert 16 <= small.batch_size <= r.batch_size
            assert small.epochs * (n // small.batch_size) >= r.least_steps
        assert r.for_samples(100_000) == r
        assert r.for_samples(20).epochs <= 250
    features = recipes.get("features")
    assert [features.for_samples(n, width=1280).epochs for n in (800, 10_000, 10_400)] == [16, 16, 20]
    images = recipes.get("images")
    assert images.for_samples(812).lr == pytest.approx(images.lr * 24 / 128)
    asked = images.for_samples(812, batch=128)
    assert (asked.batch_size, asked.lr, asked.epochs) == (128, images.lr, 250)


def test_another_model_drops_the_former_ones_options():
    r = recipes.get("digits").replace(model_options={"hidden": (4,)})
    assert r.model_options == {"hidden": (4,)}
    assert r.replace(lr=0.2).model_options == {"hidden": (4,)}
    assert r.replace(model="linear").model_options == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"batch_size": 0}, "batch_size"),
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": float("nan")}, "lr must be a number above 0"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 0.0, "nesterov": True}, "nesterov"),
        ({"schedule": "linear"}, "unknown schedule 'linear'"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"milestones": (2.0, 1.0)}, "ascend"),
        ({"clip": 0.0}, "clip"),
        ({"ema": 1.0}, "ema"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"warmup_epochs": 31.0}, "exceed the 30 epochs"),
        ({"learning_rate": 1}, "unknown recipe field 'learning_rate'"),
    ],
)
def test_mistakes_are_named(fields, message):
    with pytest.raises(InputError, match=message):
        recipes.get("digits").replace(**fields)


def test_unknown_recipe():
    with pytest.raises(InputError, match="did you mean 'cifar-cpu'"):
        recipes.get("cifar-cp")
    with pytest.raises(InputError, match="epochs"):
        recipes.get("cifar").with_epochs(0)


def test_what_recipes_attained_is_what_the_stored_runs_say():
    results = Path(__file__).parents[2] / "results"
    scores = {}
    for run in find([results]).runs:
        recipe = recipes.get(run.recipe["name"])
        if run.recipe | {"precision": recipe.precision} == recipe.to_dict() and not run.data.startswith("cifar10-"):
            changed = ",".join(f"{k}={v:g}" for k, v in run.config.changed.items())
            scores.setdefault((recipe.name, run.method, changed), []).append(100 * run.balanced)
    told = {
        ("cifar-cpu", "elm", ""): "elm (lam=0.01)",
        ("cifar-cpu", "logadj", ""): "logadj", ("cifar-cpu", "ce", ""): "ce",
        ("cifar-strong", "logadj", ""): "logadj", ("cifar-strong", "elm", "memory=16"): "elm (lam=0.01, memory=16)",
        ("digits", "elm", ""): "elm (lam=0.01)", ("digits", "logadj", ""): "logadj", ("digits", "ce", ""): "ce",
        ("moons", "elm", ""): "elm (lam=0.01)", ("moons", "logadj", ""): "logadj", ("moons", "ce", ""): "ce",
        ("features-mlp", "elm", "lam=0.0001"): "elm (lam=0.0001)", ("features-mlp", "elm", ""): "elm (lam=0.01)",
    }  # fmt: skip
    for key, said in told.items():
        values = scores[key]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        assert f"{said} {mean(values):.1f}{spread}" in recipes.attained(key[0]), key
    assert {name for name in recipes.names() if recipes.attained(name)} == {key[0] for key in told}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr": "fast"}, "lr must be a number above 0"),
        ({"lr": 1e300}, "of at most 1000"),
        ({"epochs": 10**30}, "of at most 1000000"),
        ({"nesterov": 1}, "nesterov must be True or False"),
        ({"milestones": "96"}, "milestones must be a list"),
        ({"model": ""}, "model must be a name"),
        ({"model_options": 3}, "model_options must be a mapping"),
        ({"least_steps": 9}, "unknown recipe field 'least_steps'"),
    ],
)
def test_values_of_the_wrong_kind_are_named(fields, message):
    with pytest.raises(InputError, match=message):
        recipes.get("digits").set(fields)


def test_a_config_without_later_fields_is_the_same_recipe():
    photos = recipes.get("photos")
    assert "least_steps" not in photos.to_dict()
    assert Recipe.from_dict(photos.to_dict()) == photos
    assert photos.least_steps
    assert not recipes.get("cifar").least_steps
    with pytest.raises(InputError, match="a recipe needs name, model"):
        Recipe.from_dict({"lr": 0.1})
