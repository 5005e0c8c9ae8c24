"""Networks by name; each returns ``Outputs(logits, embeddings)``.

Every model has ``embed(x)``, ``head`` (``weight`` (C, K), ``bias`` (C,) or None; assignable), ``embedding_size`` and
``num_classes``. Initialisation draws from torch's generator: after ``torch.manual_seed(s)`` a name gives
the same weights.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from .. import plugins
from ..errors import InputError, one_of, unknown, whole
from .heads import HEADS, Classifier, CosineHead, LinearHead, make_head
from .mlp import MLP, FeatureMLP
from .resnet import CIFAR_BLOCKS, LARGE_BLOCKS, CifarResNet, ResNet, resnet
from .standardise import Standardise
from .weights import load_weights
from .wrap import Wrapped, wrap

__all__ = [
    "MLP",
    "CifarResNet",
    "Classifier",
    "CosineHead",
    "LinearHead",
    "ResNet",
    "Standardise",
    "Wrapped",
    "build",
    "fit_standardise",
    "load_weights",
    "make_head",
    "names",
    "own_head",
    "parameter_count",
    "wrap",
]

_OPTIONS = ("hidden", "bias", "skip")
# The class, its settings, and which of them are options
_MLPS: dict[str, tuple[type[MLP], dict[str, Any], tuple[str, ...]]] = {
    "linear": (MLP, {"hidden": ()}, ()),
    "mlp": (MLP, {"hidden": (128, 64)}, _OPTIONS),
    "mlp-features": (FeatureMLP, {}, ("hidden",)),
    # The paper's three ReLU layers for the two moons; K = 2 so that embeddings can be drawn.
    "mlp-moons": (MLP, {"hidden": (16, 8, 2), "bias": 0.5}, _OPTIONS),
}


def names() -> list[str]:
    """The models that ``build`` knows; ``package.module:factory`` is understood besides.

    >>> names()[:5]
    ['linear', 'mlp', 'mlp-features', 'mlp-moons', 'resnet20']
    """
    return [*_MLPS, *CIFAR_BLOCKS, *LARGE_BLOCKS]


def build(
    name: str,
    num_classes: int,
    input_shape: Sequence[int],
    head: str | None = "linear",
    standardise: bool | str = False,
    **options: Any,
) -> nn.Module:
    """A freshly initialised model by name.

    Args:
        name: one of ``names()``, or ``"package.module:factory"``: the factory is called with ``num_classes`` and
            ``input_shape`` where it takes them, and what it returns goes through ``wrap``.
        num_classes: C.
        input_shape: the shape of one input: (3, H, W) for images, (K,) for features. MLPs flatten.
        head: ``"linear"``, ``"cosine"``, or ``"scaled"`` (cosines times 16); None is what suits the model.
        standardise: whether features first pass a ``Standardise``, which ``fit_standardise`` fits to data.
        options: ``hidden``, ``bias``, ``skip`` for "mlp", ``hidden`` for "mlp-features"; anything the factory takes
            for a factory.

    >>> model = build("mlp", 10, (64,), hidden=(32,))
    >>> model.embedding_size, model.num_classes
    (32, 10)
    """
    num_classes = whole("num_classes", num_classes, 1)
    head = one_of("head", own_head(name) if head is None else head, HEADS)
    shape = tuple(int(n) for n in input_shape)
    if ":" in name:
        return _from_factory(name, num_classes, shape, head, options, standardise)
    one_of("model", name, [*names(), "package.module:factory"])
    kind, settings, allowed = _MLPS.get(name, (None, {}, ()))
    for option in options:
        if option not in allowed:
            raise unknown(f"option of model {name}", option, allowed or ("none",))
    if kind is not None:
        return _standardised(kind(math.prod(shape), num_classes, head=head, **settings | options), standardise)
    if len(shape) != 3:
        raise InputError(
            f"{name} takes images (channels, height, width), but an input here has shape {shape}: use mlp or linear"
        )
    return resnet(name, num_classes, shape[0], head)


def own_head(name: str) -> str:
    """The kind of head that a model has where the method leaves it to the model."""
    return _MLPS[name][0].own_head if name in _MLPS else Classifier.own_head


def _standardised(network: MLP, standardise: bool | str) -> MLP:
    if standardise:
        network.inputs = Standardise(network.in_features)
    return network


def fit_standardise(model: nn.Module, x: Any, labels: torch.Tensor, alike: bool = False) -> None:
    """Fit the model's ``Standardise`` layer to training features (N, K); see ``Standardise.fitted``."""
    for layer in model.modules():
        if isinstance(layer, Standardise):
            layer.load_state_dict(Standardise.fitted(x, labels, alike=alike).state_dict())


def _from_factory(
    name: str,
    num_classes: int,
    shape: tuple[int, ...],
    head: str,
    options: dict[str, Any],
    standardise: bool | str,
) -> nn.Module:
    factory = plugins.load("model", name)
    try:
        parameters = set(inspect.signature(factory).parameters)
    except ValueError:
        parameters = set()
    accepted = {k: v for k, v in {"num_classes": num_classes, "input_shape": shape}.items() if k in parameters}
    with plugins.foreign(f"model {name!r} failed"):
        try:
            module = factory(**accepted, **options)
        except TypeError as e:
            given = ", ".join([*accepted, *options]) or "nothing"
            raise InputError(f"model {name!r} cannot be called with {given}: {e}") from e
    if not isinstance(module, nn.Module):
        raise InputError(f"model {name!r} must return a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, MLP):
        module = _standardised(module, standardise)
    elif standardise and not isinstance(module, (Classifier, Wrapped)):  # those see to their inputs themselves
        module = nn.Sequential(Standardise(math.prod(shape)), module)
    model = module if isinstance(module, Classifier) else wrap(module)
    if model.num_classes != num_classes:
        raise InputError(
            f"model {name!r} has {model.num_classes} outputs, but the data has {num_classes} classes: "
            "let the factory take num_classes"
        )
    _try(name, model, shape)
    if head == "cosine" and not isinstance(model.head, CosineHead):
        model.head = make_head(head, model.embedding_size, num_classes)
    return model


def _try(name: str, model: nn.Module, shape: tuple[int, ...]) -> None:
    """One forward pass of two blank inputs: what does not fit the data shows before a run begins."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    refused = plugins.foreign(f"model {name!r} cannot take inputs of shape {shape}")
    with refused, torch.random.fork_rng(devices=[]), torch.no_grad():
        model(torch.zeros(2, *shape))
    for module, mode in modes:
        module.training = mode


def parameter_count(model: nn.Module) -> int:
    """How many numbers a model learns: public "ResNet-32" results are often four times as wide, so runs print it."""
    return cast(int, sum(p.numel() for p in model.parameters()))
