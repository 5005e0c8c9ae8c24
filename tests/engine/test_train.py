"""The loop: against a plain one, and what each kind of stage may and may not change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail import ClassCounts, methods, models
from longtail.data import Dataset, Loader, Split, load
from longtail.engine import recipe
from longtail.engine.forward import class_means, outputs
from longtail.engine.process import Interrupted
from longtail.engine.stage import Trained, choose_precision, has_bf16
from longtail.engine.train import Saving, fit
from longtail.errors import RunError
from longtail.losses import DroLt, MarginCrossEntropy, Objective
from longtail.plan import Plan, Stage
from longtail.runs.checkpoint import decode

HOW = recipe.get("digits").with_epochs(3)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits-lt")


def model_for(data: Dataset, head: str = "linear", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return models.build("mlp", data.num_classes, data.input_shape, head=head, **options)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


class Spy:
    """Sees a run from outside: learning rates, and what the model is when a stage has done its first step."""

    def __init__(self) -> None:
        self.lr: list[float] = []
        self.losses: list[float] = []

    def step(self, now: Any) -> None:
        self.lr.append(now.lr)
        self.losses.append(now.sums.last)

    def epoch(self, row: dict[str, Any]) -> None:
        json.dumps(row, allow_nan=False)


@pytest.mark.parametrize(("clip", "nesterov"), [(None, False), (0.5, True)])
def test_it_is_plain_sgd(clip: float | None, nesterov: bool, digits: Dataset) -> None:
    how = HOW.replace(clip=clip, nesterov=nesterov)
    model, spy = model_for(digits), Spy()
    rows = fit(model, methods.build("logadj", digits.counts), digits.train, how, seed=3, watchers=[spy])

    plain = model_for(digits)
    decay = [p for p in plain.parameters() if p.ndim > 1]
    rest = [p for p in plain.parameters() if p.ndim == 1]
    sgd = torch.optim.SGD(
        [{"params": decay, "weight_decay": 5e-4}, {"params": rest}], lr=1.0, momentum=0.9, nesterov=nesterov
    )
    loader = Loader(digits.train, 64, seed=3)
    losses, step = [], 0
    for epoch in range(3):
        for batch in loader.epoch(epoch):
            for group in sgd.param_groups:
                group["lr"] = how.lr_at(step, len(loader))
            logits = plain(batch.inputs).logits + digits.counts.prior.log().float()
            loss = nn.functional.cross_entropy(logits, batch.labels)
            sgd.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(plain.parameters(), clip)
            sgd.step()
            losses.append(float(loss.detach()))
            step += 1
    torch.testing.assert_close(torch.tensor(spy.losses), torch.tensor(losses), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)
    assert rows[-1]["loss"] == pytest.approx(sum(losses[-5:]) / 5, rel=1e-4)
    assert [row["epoch"] for row in rows] == [1, 2, 3]


def test_a_head_stage_leaves_the_network_as_it_was_statistics_included(digits: Dataset) -> None:
    plan = methods.build("crt", digits.counts)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    model = models.wrap(body)
    before = weights(model)
    rows = fit(model, Plan("x", {}, plan.stages[1:]), digits.train, HOW)
    after = weights(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(("3.weight", "3.bias"))}
    assert len(changed) == 2
    assert rows[0]["stage"] == "head"
    assert all(p.requires_grad for p in model.parameters())


def test_a_scale_stage_multiplies_the_rows_of_the_head(digits: Dataset) -> None:
    plan, model = methods.build("lws", digits.counts), model_for(digits)
    fit(model, Plan("x", {}, plan.stages[:1]), digits.train, HOW)
    before = weights(model)
    fit(model, Plan("x", {}, plan.stages[1:]), digits.train, HOW.replace(weight_decay=0.0))
    after = weights(model)
    factors = after["head.weight"] / before["head.weight"]
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after["head.bias"], before["head.bias"] * factors[:, 0], rtol=1e-3, atol=1e-5)
    assert float((factors[:, 0] - 1).abs().max()) > 1e-3
    assert same(
        {k: v for k, v in before.items() if "head" not in k}, {k: v for k, v in after.items() if "head" not in k}
    )


def test_a_new_head_starts_from_a_draw_of_its_own(digits: Dataset) -> None:
    ce = Objective((1.0, MarginCrossEntropy(digits.counts)))
    model = model_for(digits)
    stage = Stage("head", ce, trains="head", reset_head=True)
    heads = []
    for seed in (0, 0, 1):
        nn.init.constant_(model.head.weight, 7.0)
        fit(model, Plan("x", {}, (stage,)), digits.train, HOW.replace(lr=1e-9), seed=seed)
        heads.append(model.head.weight.detach().clone())
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert float(heads[0].abs().max()) <= 64**-0.5 + 1e-6


def test_centroids_are_the_class_means_at_the_start_of_their_stage(digits: Dataset) -> None:
    counts = digits.counts
    dro = DroLt(counts)
    plan = methods.build("dro-lt-multistage", counts)
    model = model_for(digits)
    fit(model, Plan("x", {}, plan.stages[:1]), digits.train, HOW)
    z = outputs(model, digits.train, torch.device("cpu"))[1]
    expected = torch.stack([z[digits.train.labels == c].mean(0) for c in range(10)])
    stage = Stage("dro", Objective((1.0, MarginCrossEntropy(counts)), (0.01, dro)), centroids=True)
    fit(model, Plan("x", {}, (stage,)), digits.train, HOW)
    torch.testing.assert_close(dro.centroids, expected)
    assert not torch.allclose(class_means(model, digits.train, 10, torch.device("cpu")), expected, rtol=1e-3)


def test_a_deferred_stage_goes_on_in_the_schedule_and_another_restarts(digits: Dataset) -> None:
    how, spy = HOW.with_epochs(10), Spy()
    model = model_for(digits, head="cosine")
    rows = fit(model, methods.build("ldam-drw", digits.counts), digits.train, how, watchers=[spy])
    assert [row["stage"] for row in rows] == ["train"] * 8 + ["reweight"] * 2
    assert [row["stage_epoch"] for row in rows][-2:] == [1, 2]
    assert spy.lr == [how.lr_at(step, 5) for step in range(50)]
    spy = Spy()
    rows = fit(model_for(digits), methods.build("crt", digits.counts), digits.train, how, watchers=[spy])
    assert [row["stage"] for row in rows] == ["train"] * 10 + ["head"]
    assert spy.lr[50:] == [how.with_epochs(1).lr_at(step, 5) for step in range(5)]


def test_the_average_is_what_remains(digits: Dataset) -> None:
    class Steps(Spy):
        def step(self, now: Any) -> None:
            self.seen.append(weights(model))

    how = HOW.with_epochs(2).replace(ema=0.5)
    model, spy = model_for(digits), Steps()
    spy.seen = [weights(model)]
    fit(model, methods.build("ce", digits.counts), digits.train, how, watchers=[spy])
    average = spy.seen[0]
    for t, now in enumerate(spy.seen[1:]):
        decay = min(0.5, (1 + t) / (10 + t))
        average = {name: decay * average[name] + (1 - decay) * now[name] for name in now}
    torch.testing.assert_close(weights(model), average, rtol=1e-4, atol=1e-6)
    assert not same(weights(model), spy.seen[-1])


def test_frozen_parameters_stay_and_the_callers_generator_too(digits: Dataset) -> None:
    model = model_for(digits)
    first = next(model.parameters()).requires_grad_(False)
    before = first.clone()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    fit(model, methods.build("crt", digits.counts), digits.train, HOW)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first, before)
    assert not first.requires_grad


def test_the_share_of_anchors_with_a_positive_is_counted(digits: Dataset) -> None:
    rows = fit(model_for(digits), methods.build("elm", digits.counts), digits.train, HOW)
    loader, groups = Loader(digits.train, 64, seed=0), digits.counts.groups()
    hits = dict.fromkeys(groups, 0)
    anchors = dict.fromkeys(groups, 0)
    for batch in loader.epoch(0):
        for label in batch.labels.tolist():
            group = next(name for name, index in groups.items() if label in index.tolist())
            anchors[group] += 1
            hits[group] += int((batch.labels == label).sum()) > 1
    assert rows[0]["alive"] == {
        "all": sum(hits.values()) / sum(anchors.values()),
        **{name: hits[name] / anchors[name] for name in groups},
    }
    assert {"logit", "pull"} <= set(rows[0]["parts"])
    assert fit(model_for(digits), methods.build("ce", digits.counts), digits.train, HOW)[0]["alive"] is None


def test_loss_and_accuracy_of_the_training_batches_by_group(digits: Dataset) -> None:
    plan, model = methods.build("logadj", digits.counts), model_for(digits)
    rows = fit(model, plan, digits.train, HOW.replace(lr=1e-12))
    groups, loader = digits.counts.groups(), Loader(digits.train, 64, seed=0)
    sums = {name: [0.0, 0, 0] for name in groups}
    for batch in loader.epoch(1):
        with torch.no_grad():
            logits = model(batch.inputs).logits.double()  # without logit adjustment's shift
        for f, label in zip(logits, batch.labels.tolist()):
            mine = sums[next(name for name, index in groups.items() if label in index.tolist())]
            mine[0] += float(f.exp().sum().log() - f[label])
            mine[1] += int(f.argmax()) == label
            mine[2] += 1
    for name, (loss, hits, n) in sums.items():
        assert rows[1]["groups"][name]["loss"] == pytest.approx(loss / n, rel=1e-5)
        assert rows[1]["groups"][name]["accuracy"] == pytest.approx(hits / n)
        assert rows[1]["groups"][name]["n"] == n
    # A head that no loss reads has nothing to say
    assert fit(model_for(digits), methods.build("supcon", digits.counts), digits.train, HOW)[0]["groups"] is None


def test_averaged_weights_have_statistics_of_their_own(digits: Dataset) -> None:
    torch.manual_seed(0)
    first, norm = nn.Linear(64, 16), nn.BatchNorm1d(16)
    model = models.wrap(nn.Sequential(first, norm, nn.ReLU(), nn.Linear(16, 10)))
    fit(model, methods.build("ce", digits.counts), digits.train, HOW.replace(ema=0.9), seed=4)
    with torch.no_grad():
        seen = [first(batch.inputs).double() for batch in Loader(digits.train, 64, seed=4).epoch(0)]
    mean = sum(z.mean(0) for z in seen) / len(seen)
    var = sum(((z - z.mean(0)) ** 2).sum(0) / (len(z) - 1) for z in seen) / len(seen)
    torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    assert norm.momentum == 0.1


def test_averaged_factors_reach_the_head(digits: Dataset) -> None:
    """An average of what LWS learns is folded into the head, not the last step's factors."""
    stages, how = methods.build("lws", digits.counts).stages[1:], HOW.replace(weight_decay=0.0, lr=1.0)
    heads = {}
    for ema in (None, 0.5, 1 - 1e-9):
        model = model_for(digits)
        before = model.head.weight.detach().clone()
        fit(model, Plan("x", {}, stages), digits.train, how.replace(ema=ema))
        heads[ema] = (model.head.weight.detach() / before)[:, 0]
    assert not torch.allclose(heads[None], heads[0.5], rtol=1e-3)
    assert float((heads[0.5] - 1).abs().max()) < float((heads[None] - 1).abs().max())


def test_a_loss_that_is_not_finite_names_step_and_parts(digits: Dataset) -> None:
    model = model_for(digits)
    nn.init.constant_(next(model.parameters()), 1e38)
    saved: list[int] = []
    with pytest.raises(RunError, match=r"not finite in step 1 \(stage train, epoch 1\): logit = "):
        fit(
            model,
            methods.build("logadj", digits.counts),
            digits.train,
            HOW,
            saving=Saving(lambda step, _: saved.append(step)),
        )
    # A loss that refuses such embeddings is no mistake of the caller's
    nn.init.constant_(next(model.parameters()), 1e25)
    with pytest.raises(RunError, match=r"step 1 \(stage train, epoch 1\): embeddings must be within"):
        fit(
            model,
            methods.build("elm", digits.counts),
            digits.train,
            HOW,
            saving=Saving(lambda step, _: saved.append(step)),
        )
    assert not saved


def test_a_weight_that_is_not_finite_is_never_saved(digits: Dataset) -> None:
    class Poison(Spy):
        def step(self, now: Any) -> None:
            if now.epoch == 2:
                nn.init.constant_(model.head.bias, float("nan"))

    model, saved = model_for(digits), []
    with pytest.raises(RunError, match="not finite"):
        fit(
            model, methods.build("ce", digits.counts), digits.train, HOW, watchers=[Poison()],
            saving=Saving(lambda step, data: saved.append(decode(data)), steps=1),
        )  # fmt: skip
    assert len(saved) == 5
    assert all(bool(t.isfinite().all()) for state in saved for t in state.tensors.values())


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_stopping_saves_where_it_stopped_and_going_on_gives_the_same(ema: float, digits: Dataset) -> None:
    def plan() -> Plan:
        return methods.build("elm", digits.counts, memory=3, memory_ema=ema)

    whole = model_for(digits)
    rows = fit(whole, plan(), digits.train, HOW)
    for stop_at in (1, 5, 7, 14):
        done, data = _stopped(digits, plan(), stop_at)
        assert done == stop_at
        model = model_for(digits)
        nn.init.zeros_(model.head.weight)
        rest = fit(model, plan(), digits.train, HOW, state=decode(data))
        assert same(weights(model), weights(whole))
        assert [r["groups"] for r in rest] == [r["groups"] for r in rows][-len(rest) :]


def _stopped(digits: Dataset, plan: Plan, stop_at: int) -> tuple[int, bytes]:
    spy, saved = Spy(), []
    with pytest.raises(Interrupted) as stopped:
        fit(
            model_for(digits), plan, digits.train, HOW, watchers=[spy],
            saving=Saving(lambda step, data: saved.append((step, data)), stop=lambda: 15 * (len(spy.lr) >= stop_at)),
        )  # fmt: skip
    assert stopped.value.signal == 15
    assert len(spy.lr) == stop_at
    return saved[-1]


def test_keys_of_an_averaged_network() -> None:
    """The memory holds what the averaged weights say of the batch; the network's own statistics see the batch once."""
    images = Split(torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8), torch.arange(40) % 4, torch.arange(40))
    counts = ClassCounts.from_labels(images.labels, 4)
    how = recipe.get("images").replace(model="resnet20", batch_size=20, lr=0.05, warmup_epochs=0.0, augment="none")
    how = how.replace(precision="fp32")  # "auto" is bf16 on some processors, which the float32 below would not match
    plan = methods.build("elm", counts, memory=10, memory_ema=0.6)
    torch.manual_seed(0)
    model = models.build("resnet20", 4, (3, 8, 8))
    seen: list[dict[str, Tensor]] = [weights(model)]

    class Keep:
        def step(self, now: Any) -> None:
            seen.append(weights(model))

        def epoch(self, row: dict[str, Any]) -> None:
            pass

    fit(model, plan, images, how.with_epochs(1), watchers=[Keep()])
    memory = plan.stages[0].objective.memory
    assert memory is not None
    assert memory.embeddings is not None

    # By hand: after the first step the average is mostly the new weights (decay 1/10), and the second batch's keys are
    # the average's embeddings of it in training mode
    average = {k: seen[0][k] + 0.9 * (v - seen[0][k]) if v.is_floating_point() else v for k, v in seen[1].items()}
    torch.manual_seed(0)
    by_hand = models.build("resnet20", 4, (3, 8, 8)).train()
    by_hand.load_state_dict(average)
    second = list(Loader(images, 20, augment="none", seed=0, epochs=1).epoch(0))[1]
    with torch.no_grad():
        expected = by_hand(second.inputs).embeddings
    rows = torch.stack([(memory.ids[:-1] == i).nonzero()[0, 0] for i in second.ids])  # type: ignore[index]
    assert torch.allclose(memory.embeddings[rows], expected, atol=1e-4)
    assert int(model.bn1.num_batches_tracked) == 2  # type: ignore[union-attr,arg-type]

    by_hand.load_state_dict(seen[1])
    with torch.no_grad():
        assert not torch.allclose(memory.embeddings[rows], by_hand(second.inputs).embeddings, atol=1e-4)


def test_bf16_trains_float32_weights_in_channels_last() -> None:
    data = load("digits-lt")
    images = (data.train.inputs.reshape(-1, 1, 8, 8) * 255).to(torch.uint8)
    train = replace(data.train, inputs=images)
    torch.manual_seed(0)
    model = models.wrap(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))
    )
    seen = []
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_hook(
        lambda module, x, y: seen.append((y.dtype, y.is_contiguous(memory_format=torch.channels_last)))
    )
    plan, start = methods.build("elm", data.counts), weights(model)
    half = fit(model, plan, train, HOW.replace(augment="none", precision="bf16"))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert set(seen) == {(torch.bfloat16, True)}
    model.load_state_dict(start)
    full = fit(model, plan, train, HOW.replace(augment="none", precision="fp32"))
    assert [row["loss"] for row in half] == pytest.approx([row["loss"] for row in full], rel=0.02)
    assert half[0]["loss"] != full[0]["loss"]


def test_precision_is_chosen_by_network_and_processor() -> None:
    cpu = torch.device("cpu")
    flat, conv = nn.Linear(3, 3), nn.Conv2d(3, 3, 1)
    assert choose_precision("auto", flat, cpu) == "fp32"
    assert choose_precision("auto", conv, cpu) == ("bf16" if has_bf16(cpu) else "fp32")
    assert choose_precision("bf16", flat, cpu) == "bf16"
    assert choose_precision("fp32", conv, cpu) == "fp32"


def test_an_objective_on_embeddings_alone_leaves_the_head(digits: Dataset) -> None:
    model = model_for(digits)
    before = weights(model)
    fit(model, methods.build("supcon", digits.counts), digits.train, HOW)
    after = weights(model)
    assert torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(next(iter(after.values())), next(iter(before.values())))


def test_a_factor_on_a_cosine_head_is_refused(digits: Dataset) -> None:
    model = model_for(digits, head="cosine")
    with pytest.raises(ValueError, match="no effect on a cosine head"):
        Trained(model, "scale", set(model.parameters()), True)


def test_evaluation_leaves_every_module_in_its_mode(digits: Dataset) -> None:
    model = models.wrap(nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10)))
    model.train()
    frozen = next(m for m in model.modules() if isinstance(m, nn.Dropout)).eval()
    a, _ = outputs(model, digits.test, torch.device("cpu"))
    b, _ = outputs(model, digits.test, torch.device("cpu"))
    assert torch.equal(a, b)
    assert model.training
    assert not frozen.training
