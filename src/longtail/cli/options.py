"""The options of training, defined once for train, compare and sweep, and the reading of name=value."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from ..engine.settings import Job, option
from ..errors import InputError

# What can be said of how to train, whatever the method: settings of a job, with the help of their options
TRAINING = {
    "data": "Built-in data, or the path of a folder, a CSV or features.",
    "root": "Folder that downloaded data lies in.",
    "options": "Option of the data, as name=value; repeatable.",
    "recipe": "Recipe by name; the data's own by default.",
    "set_recipe": "Any field of the recipe, as weight_decay=2e-4 or nesterov=true; repeatable.",
    "backbone": "Pretrained network: efficientnet-lite0 (for a folder of images by default), hf:NAME-or-FOLDER, "
    "timm:NAME, onnx:FILE, package.module:f; none trains from scratch.",
    "train": "What of it trains: head (none of it: seconds), norms (biases and normalisation), last (block), all.",
    "model": "Model by name, or package.module:factory.",
    "epochs": "Length; warm-up and milestones in proportion.",
    "batch_size": "Samples a step, of all processes together.",
    "lr": "Learning rate after warm-up.",
    "clip": "Largest gradient norm.",
    "ema": "Decay of an average of the weights, which is then the result.",
    "augment": "Augmentation by name.",
    "precision": "fp32, bf16, or auto: bf16 where it helps.",
    "device": "cpu, cuda, cuda:1; a GPU where there is one.",
    "threads": "CPU threads of a run.",
    "workers": "Processes that read image files.",
    "validate_every": "Epochs between looks at the validation data, which choose nothing; 0: only at the end.",
    "compile": "Compile the network with torch.compile.",
    "track": "tensorboard or wandb; repeatable.",
}
REPEATABLE = ("options", "set_recipe", "track")
Training = Callable[..., Job]

Options = Annotated[list[str] | None, typer.Option("--option", help=TRAINING["options"])]
Root = Annotated[str, typer.Option("--root", help=TRAINING["root"])]
Device = Annotated[str | None, typer.Option("--device", help=TRAINING["device"])]
Knobs = Annotated[list[str] | None, typer.Option("--set", help="Knob of the method, as name=value; repeatable.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Import and run package.module:name where the run folder names it.")
]


def takes_training(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter ``training``, a ``Job`` but for what it adds, is given as one option a setting."""
    hints = get_type_hints(Job)
    hints |= dict.fromkeys(REPEATABLE, list[str] | None)
    defaults = {f.name: f.default for f in fields(Job)} | dict.fromkeys(REPEATABLE)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=Annotated[hints[name], typer.Option(option(name), help=text)],
        )
        for name, text in TRAINING.items()
    ]
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next(i for i, p in enumerate(own) if p.name == "training")
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters = [*keyword[:place], *options, *keyword[place + 1 :]]

    def called(**given: Any) -> None:
        said = {name: given.pop(name) for name in TRAINING}
        said |= {name: plain_pairs(said[name], option(name)) for name in ("options", "set_recipe")}
        command(**given, training=functools.partial(Job, **said | {"track": tuple(said["track"] or ())}))

    called.__doc__, called.__name__ = command.__doc__, command.__name__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """name=value pairs of a repeatable option."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{option} takes name=value, got {text!r}")
        if name in found:
            raise InputError(f"{option} {name} is given twice")
        found[name] = value
    return found


def plain_pairs(given: Sequence[str] | None, option: str) -> dict[str, Any]:
    """The same with values as numbers, true, false, null or lists where they read as such."""
    return {name: plain(value, f"{option} {name}") for name, value in pairs(given, option).items()}


def plain(text: str, option: str) -> Any:
    """A value as JSON has it, or the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise InputError(f"{option} is nested too deeply") from None
