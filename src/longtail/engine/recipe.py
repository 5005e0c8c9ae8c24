"""Recipes: how a network is optimised, as Python objects. Table 3 of the paper, and quick ones.

What the paper leaves open is decided here once, and ``Recipe.decisions()`` says it in plain sentences with every run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import InputError, one_of, real, true_or_false, unknown, whole

PRECISIONS = ("auto", "fp32", "bf16")
# Beyond these nothing can be meant: a rate that overflows in the first step, a run that never ends
MOST_LR = 1000
MOST_EPOCHS = 1_000_000
# Features are many where there are at most so many samples for each
WIDE = 8
MOST_SAMPLES = 10_000_000
# Files of at most so many pixels a side are images as CIFAR's are, not photographs
SMALL_IMAGE = 64
# Epochs that a recipe grows to on small data
MOST_ADDED = 250
BACKBONE_LR = 0.1


@dataclass(frozen=True)
class Recipe:
    """One way of optimising: SGD with momentum, linear warm-up, then steps or a cosine.

    Attributes:
        name: what it is called; kept when fields are replaced, so a run's config holds every field besides.
        model: of ``models.names()``, or ``package.module:factory``; ``model_options`` go to ``models.build``.
        epochs, batch_size: the batch is that of all ranks together.
        lr: the rate after warm-up.
        warmup_epochs: linear from lr/steps up to lr; a fraction of an epoch is meant as such.
        schedule: ``"step"`` (times ``decay_factor`` at each milestone, an epoch) or ``"cosine"`` (down to 0).
        weight_decay: on weights only, see ``parameter_groups``.
        clip: largest gradient norm, or None.
        augment: name of the loader's augmentation; ``"auto"`` is what the kind of data calls for.
        precision: ``"fp32"``, ``"bf16"``, or ``"auto"``: bf16 where the network convolves and the processor helps.
        ema: decay of an average of the weights that is evaluated instead of them, or None.
        standardise: whether features pass a first layer that is fitted to the training data (``models.Standardise``);
            ``"alike"`` scales all of them by one factor.
        backbone_lr: of a backbone that trains, its rate as a share of ``lr``; None where there is none.
        steps_per_epoch: small data get batches small enough for so many steps an epoch (``for_samples``); 0 is no
            limit. Like the next two no part of a run, whose fields say what came of it.
        least_steps: epochs are added on small data until there are so many.
        lr_by_batch: whether smaller batches get a smaller rate.
        attained: what runs in results/ reached with it, in words; a recipe with fields replaced claims nothing.
    """

    name: str
    model: str
    epochs: int
    batch_size: int
    lr: float
    warmup_epochs: float = 0.0
    schedule: Literal["step", "cosine"] = "cosine"
    milestones: tuple[float, ...] = ()
    decay_factor: float = 0.1
    weight_decay: float = 1e-4
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    augment: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    ema: float | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    standardise: bool | Literal["alike"] = False
    backbone_lr: float | None = None
    steps_per_epoch: int = field(default=0, compare=False)
    least_steps: int = field(default=0, compare=False)
    lr_by_batch: bool = field(default=False, compare=False)
    attained: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        def check(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        for name in ("name", "model", "augment"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InputError(f"{name} must be a name, got {getattr(self, name)!r}")
        check("epochs", whole("epochs", self.epochs, at_least=1, at_most=MOST_EPOCHS))
        check("batch_size", whole("batch_size", self.batch_size, at_least=1, at_most=MOST_SAMPLES))
        check("lr", real("lr", self.lr, above=0, at_most=MOST_LR))
        check("decay_factor", real("decay_factor", self.decay_factor, above=0, at_most=1))
        check("weight_decay", real("weight_decay", self.weight_decay, at_least=0, at_most=MOST_LR))
        check("momentum", real("momentum", self.momentum, at_least=0, below=1))
        check("warmup_epochs", real("warmup_epochs", self.warmup_epochs, at_least=0))
        if self.warmup_epochs > self.epochs:
            raise InputError(f"warmup_epochs must not exceed the {self.epochs} epochs, got {self.warmup_epochs:g}")
        if true_or_false("nesterov", self.nesterov) and not self.momentum:
            raise InputError("nesterov needs a momentum above 0, got 0")
        if self.standardise != "alike":
            true_or_false("standardise", self.standardise)
        one_of("schedule", self.schedule, ("step", "cosine"))
        one_of("precision", self.precision, PRECISIONS)
        if not isinstance(self.milestones, (tuple, list)):
            raise InputError(f"milestones must be a list of epochs such as [96, 192], got {self.milestones!r}")
        check("milestones", tuple(real("a milestone", m, at_least=0) for m in self.milestones))
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(f"milestones must ascend, got {list(self.milestones)}")
        if self.clip is not None:
            check("clip", real("clip", self.clip, above=0))
        if self.backbone_lr is not None:
            check("backbone_lr", real("backbone_lr", self.backbone_lr, above=0, at_most=1))
        if self.ema is not None:
            check("ema", real("ema", self.ema, above=0, below=1))
        if not isinstance(self.model_options, Mapping):
            raise InputError(f"model_options must be a mapping of names to values, got {self.model_options!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, all fields that change a run: what its config holds.

        >>> Recipe.from_dict(get("cifar").to_dict()) == get("cifar")
        True
        """
        data = {name: getattr(self, name) for name in _stored()}
        data["milestones"] = list(self.milestones)
        for name in ("standardise", "backbone_lr"):
            if not data[name]:  # as runs were before there was a choice, so theirs and today's are the same
                del data[name]
        data["model_options"] = {k: list(v) if isinstance(v, tuple) else v for k, v in self.model_options.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """A recipe from plain data; an unknown field is an error."""
        for key in data:
            one_of("recipe field", key, _stored())
        if lacking := [f.name for f in dataclasses.fields(cls) if f.name not in data and _required(f)]:
            raise InputError(f"a recipe needs {', '.join(lacking)}")
        given = dict(data)
        options = given.get("model_options", {})
        if isinstance(options, Mapping):
            given["model_options"] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return cls(**given)

    def replace(self, **fields: Any) -> Recipe:
        """The same recipe with some fields replaced; another model starts without the former one's options."""
        if fields.get("model", self.model) != self.model:
            fields.setdefault("model_options", {})
        return Recipe.from_dict({**self.to_dict(), **fields})

    def set(self, fields: Mapping[str, Any]) -> Recipe:
        """The same recipe with fields as a user sets them: another number of epochs brings warm-up and milestones in
        proportion, unless they are set too; a name that is no field is an error that lists them.

        >>> get("cifar").set({"epochs": 64, "weight_decay": 2e-4}).milestones
        (24.0, 48.0, 56.0)
        """
        for name in fields:
            one_of("recipe field", name, settable())
        if not fields:
            return self
        rest = {name: value for name, value in fields.items() if name != "epochs"}
        longer = self.with_epochs(fields["epochs"]) if "epochs" in fields else self
        return longer.replace(**rest)

    def with_epochs(self, epochs: int) -> Recipe:
        """Another length, warm-up and milestones in proportion.

        >>> short = get("cifar").with_epochs(64)
        >>> short.warmup_epochs, short.milestones
        (3.75, (24.0, 48.0, 56.0))
        """
        if epochs == self.epochs:
            return self
        ratio = whole("epochs", epochs, at_least=1, at_most=MOST_EPOCHS) / self.epochs
        milestones = tuple(m * ratio for m in self.milestones)
        return self.replace(epochs=epochs, warmup_epochs=self.warmup_epochs * ratio, milestones=milestones)

    def for_samples(self, n: int, batch: int | None = None, width: int = 0) -> Recipe:
        """The same recipe for small data of one's own, by steps and not by epochs: batches small enough for
        ``steps_per_epoch``, not below 16, and as many epochs as ``least_steps`` need, within reason.

        Only a recipe that has ``steps_per_epoch`` changes; the others are what they say. ``batch`` is a size that
        somebody asked for, ``width`` the number of features: where they are many for the samples, classes are all but
        linear to tell apart, and half of ``least_steps`` leads as far.

        >>> small = get("images").for_samples(800)
        >>> small.batch_size, small.epochs, get("cifar").for_samples(800).epochs
        (24, 61, 256)
        >>> get("features").for_samples(800).epochs, get("features").for_samples(800, width=1280).epochs
        (32, 16)
        """
        if not self.steps_per_epoch:
            return self
        batch = batch or min(self.batch_size, max(n // self.steps_per_epoch // 2 * 2, 16))
        wide = n <= WIDE * width
        enough = min(math.ceil(self.least_steps / (1 + wide) / max(n // batch, 1)), MOST_ADDED)
        lr = self.lr * min(batch / self.batch_size, 1) if self.lr_by_batch else self.lr
        return self.replace(batch_size=batch, lr=lr).with_epochs(
            max(self.epochs * 4 // 5 if wide else self.epochs, enough)
        )

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step (from 0).

        Warm-up: ``lr·(step + 1)/w`` over its w steps, so that the first step moves too. Then ``lr·factor^k`` after k
        milestones, or ``lr·½(1 + cos(π·(step − w)/(total − w)))``.

        >>> cifar = get("cifar")
        >>> [round(cifar.lr_at(e * 85, 85), 6) for e in (15, 95, 96, 192, 224)]
        [0.4, 0.4, 0.04, 0.004, 0.0004]
        """
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        if self.schedule == "step":
            passed = sum(step >= round(m * steps_per_epoch) for m in self.milestones)
            return float(self.lr * self.decay_factor**passed)
        total = max(self.epochs * steps_per_epoch - warmup, 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * min((step - warmup) / total, 1.0)))

    def decisions(self, backbone: str | None = None) -> list[str]:
        """What the paper leaves open and was decided here, one sentence each; ``backbone`` is what to say of one."""
        linear = "a linear head uniform in ±1/√K and bias 0, a cosine head normal of variance 1/K"
        start = (
            "Convolutions start from He et al.'s normal draw (fan-out), hidden linear layers from the same (fan-in), "
            f"batch norm at 1 and 0; {linear}."
        )
        if backbone is not None:
            start = f"{backbone} What follows it starts from a draw: hidden layers normal (He et al.'s), {linear}."
        elif ":" in self.model:
            start = f"The network starts as {self.model} makes it."
        said = [
            f"SGD with {'Nesterov ' if self.nesterov else ''}momentum {self.momentum:g}, not dampened.",
            f"Weight decay {self.weight_decay:g} acts on weights of convolutions and linear layers, the head's too, "
            "not on biases or batch-norm parameters; it is added to the gradient as decay × weight.",
            start,
            f"Warm-up is linear by step over {self.warmup_epochs:g} epochs, the first step at lr/steps."
            if self.warmup_epochs
            else "There is no warm-up.",
            "The last epoch's weights are the result: no epoch is chosen on held-out data.",
        ]
        if self.backbone_lr is not None:
            said.append(f"The backbone's learning rate is {self.backbone_lr:g} times that of what follows it.")
        if self.standardise:
            weighed = (
                "all alike"
                if self.standardise == "alike"
                else "those that tell classes apart up to three times as much"
            )
            said.append(
                "Features are shifted and scaled to mean 0 and ‖x‖ ≈ 2 by a first layer of the model, fitted to the "
                f"training data, {weighed}."
            )
        if self.schedule == "cosine":
            said.append("The cosine goes down to 0 at the last step, without restarts.")
        if self.ema is not None:
            said.append(
                f"An average of the weights (decay {self.ema:g} a step) is evaluated instead of the last ones, with "
                "batch-norm statistics of its own from one pass over the training batches."
            )
        if self.clip is not None:
            said.append(f"Gradients are clipped to norm {self.clip:g}.")
        return said


def settable() -> list[str]:
    """The fields that ``--set-recipe`` takes."""
    return [name for name in _stored() if name != "name"]


def _stored() -> list[str]:
    return [f.name for f in dataclasses.fields(Recipe) if f.compare]


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


_CIFAR = Recipe(
    "cifar", "resnet32", epochs=256, batch_size=128, lr=0.4, warmup_epochs=15.0,
    schedule="step", milestones=(96.0, 192.0, 224.0), weight_decay=1e-4,
)  # fmt: skip
_IMAGENET = Recipe("imagenet-lt", "resnet50", epochs=90, batch_size=512, lr=0.4, weight_decay=5e-4)

_RECIPES = {
    r.name: r
    for r in (
        # The three columns of Table 3; a warm-up is printed for CIFAR only.
        _CIFAR,
        _IMAGENET,
        _IMAGENET.replace(name="inat2018", batch_size=1024, weight_decay=1e-4),
        # Table 3's CIFAR column at a quarter of its length, for two CPU cores.
        dataclasses.replace(
            _CIFAR.with_epochs(64), name="cifar-cpu",
            attained="CIFAR100-LT, 64 epochs, seeds 0 to 2, balanced accuracy in %: elm (lam=0.01) 39.4 ± 1.7, "
            "logadj 38.0 ± 1.2, ce 35.4 ± 0.8; about 40 minutes a run in bf16 on one thread.",
        ),
        # For the highest accuracy of ResNet-32 at its true width: what the strongest one-stage methods train with.
        Recipe(
            "cifar-strong", "resnet32", epochs=200, batch_size=128, lr=0.1, warmup_epochs=5.0, weight_decay=5e-4,
            nesterov=True, augment="autoaugment+cutout", ema=0.999,
            attained="CIFAR100-LT, 200 epochs, seed 0, balanced accuracy in %: logadj 50.0, elm (lam=0.01, memory=16) "
            "48.0 (before averaged weights had batch-norm statistics of their own); 90 minutes in bf16 on one thread.",
        ),
        # Small images and photographs of one's own, from a folder or a list.
        Recipe(
            "images", "resnet20", epochs=60, batch_size=128, lr=0.2, warmup_epochs=3.0, weight_decay=5e-4,
            steps_per_epoch=32, least_steps=2000, lr_by_batch=True,
        ),
        Recipe(
            "photos", "resnet18", epochs=60, batch_size=64, lr=0.05, warmup_epochs=3.0, weight_decay=5e-4,
            steps_per_epoch=32, least_steps=2000, lr_by_batch=True,
        ),
        Recipe(
            "digits", "mlp", epochs=30, batch_size=64, lr=0.1, warmup_epochs=1.0, weight_decay=5e-4,
            attained="digits-lt, 30 epochs, seeds 0 to 4, balanced accuracy in %: elm (lam=0.01) 88.1 ± 1.3, "
            "logadj 87.8 ± 0.9, ce 79.9 ± 1.0; seconds a run.",
        ),
        Recipe(
            "moons", "mlp-moons", epochs=100, batch_size=128, lr=0.1, warmup_epochs=2.0, weight_decay=1e-4,
            attained="moons, 100 epochs, seeds 0 to 2, balanced accuracy in %: elm (lam=0.01) 99.8 ± 0.1, "
            "logadj 99.8 ± 0.1, ce 99.5 ± 0.3; seconds a run.",
        ),
        Recipe(
            "features", "mlp-features", epochs=20, batch_size=256, lr=0.2, warmup_epochs=1.0, weight_decay=5e-4,
            model_options={"hidden": (256,)}, standardise=True, steps_per_epoch=8, least_steps=250,
        ),
        # Embeddings of a pretrained network: what varies more tells more, and they are many for the samples.
        Recipe(
            "embeddings", "mlp-features", epochs=20, batch_size=256, lr=0.2, warmup_epochs=1.0, weight_decay=5e-3,
            model_options={"hidden": (256,)}, standardise="alike", steps_per_epoch=8, least_steps=500,
        ),
        # A backbone that trains, with the network for features after it: few steps from good weights.
        Recipe(
            "finetune", "mlp-features", epochs=10, batch_size=32, lr=0.1, warmup_epochs=1.0, weight_decay=5e-4,
            model_options={"hidden": (256,)}, standardise="alike", backbone_lr=BACKBONE_LR, steps_per_epoch=8,
            least_steps=250,
        ),
        # Features again, with an embedding of the network's own: for what is to be learnt about embeddings.
        Recipe(
            "features-mlp", "mlp", epochs=30, batch_size=128, lr=0.05, warmup_epochs=1.0, weight_decay=5e-3,
            model_options={"hidden": (512, 64)},
            attained="Features of CIFAR100-LT, 30 epochs, seeds 0 to 2, balanced accuracy in %: elm (lam=0.0001) "
            "53.5 ± 0.3, elm (lam=0.01) 45.0 ± 0.4; half a minute a run.",
        ),
    )
}  # fmt: skip

_DEFAULTS = {
    "cifar10-lt": "cifar",
    "cifar100-lt": "cifar",
    "imagenet-lt": "imagenet-lt",
    "inat2018": "inat2018",
    "digits-lt": "digits",
    "moons": "moons",
    "images": "images",
    "files": "photos",
    "features": "features",
    "embeddings": "embeddings",
    "tuned": "finetune",
}


def names() -> list[str]:
    """The recipes by name."""
    return list(_RECIPES)


def get(name: str) -> Recipe:
    """A recipe by name.

    >>> get("cifar").milestones
    (96.0, 192.0, 224.0)
    """
    return _RECIPES[one_of("recipe", name, _RECIPES)]


def attained(name: str) -> str:
    """What the recipe of this name reached in the stored runs, or nothing where it was not run at its own length."""
    return _RECIPES[name].attained if name in _RECIPES else ""


def default_for(data: str, kind: str | None = None) -> Recipe:
    """The recipe for built-in data by its name, or for other data by its kind ("images", "files", "features").

    >>> default_for("cifar100-lt").name, default_for("my/folder", "files").name
    ('cifar', 'photos')
    """
    for key in (data, kind):
        if key in _DEFAULTS:
            return _RECIPES[_DEFAULTS[key]]
    raise unknown("kind of data", kind or data, _DEFAULTS)
