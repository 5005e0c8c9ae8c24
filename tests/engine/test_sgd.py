"""Our SGD beside torch's."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longtail.engine.sgd import SGD


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).to(
        memory_format=torch.channels_last
    )


def groups(net: nn.Module, decay: float) -> list[dict[str, Any]]:
    weights = [p for p in net.parameters() if p.ndim > 1]
    return [
        {"params": weights, "weight_decay": decay, "share": 1.0},
        {"params": [p for p in net.parameters() if p.ndim == 1], "weight_decay": 0.0, "share": 0.1},
    ]


@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 5e-4, 0.1]),
    rates=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=6),
    late=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_weight_is_what_torch_makes_of_it(
    momentum: float, nesterov: bool, decay: float, rates: list[float], late: bool
) -> None:
    ours, theirs = network(), network()
    nesterov = nesterov and momentum > 0
    sgd = SGD(groups(ours, decay), momentum, nesterov)
    reference = torch.optim.SGD(groups(theirs, decay), lr=1.0, momentum=momentum, nesterov=nesterov)
    generator = torch.Generator().manual_seed(1)
    for step, lr in enumerate(rates):
        x = torch.randn(8, 3, 6, 6, generator=generator)
        for group in reference.param_groups:
            group["lr"] = lr * group["share"]
        for net in (ours, theirs):
            loss = net(x).square().mean()
            if late and step == 0:  # a weight without a gradient stays, and has no momentum yet
                loss = net[3].weight.square().mean()
            loss.backward()
        sgd.step(lr)
        reference.step()
        sgd.zero_grad()
        reference.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters()):
            assert torch.equal(a, b)
            assert a.grad is None
            said = reference.state[b].get("momentum_buffer")
            assert (said is None) == (a not in sgd.momenta)
            assert said is None or torch.equal(sgd.momenta[a], said)


def test_no_step_without_gradients_changes_anything() -> None:
    net = network()
    before = [p.clone() for p in net.parameters()]
    sgd = SGD(groups(net, 0.1), 0.9, True)
    sgd.step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    assert not sgd.momenta
