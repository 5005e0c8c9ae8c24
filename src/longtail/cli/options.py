"""The options of training, defined once for train, compare and sweep, and the reading of name=value."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..errors import InputError

if TYPE_CHECKING:
    from ..engine.job import Job

Options = Annotated[list[str] | None, typer.Option("--option", help="Option of the data, as name=value; repeatable.")]
Root = Annotated[str, typer.Option("--root", help="Folder that downloaded data lies in.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1; a GPU where there is one.")]
Knobs = Annotated[list[str] | None, typer.Option("--set", help="Knob of the method, as name=value; repeatable.")]

TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Import and run package.module:name where the run folder names it.")
]


@dataclass(frozen=True)
class Training:
    """What can be said of how to train, whatever the method; ``takes_training`` makes options of the fields."""

    data: Annotated[str, typer.Option("--data", help="Built-in data, or the path of a folder, a CSV or features.")] = (
        "digits-lt"
    )
    root: Root = "data"
    option: Options = None
    recipe: Annotated[str | None, typer.Option("--recipe", help="Recipe by name; the data's own by default.")] = None
    set_recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--set-recipe", help="Any field of the recipe, as weight_decay=2e-4 or nesterov=true; repeatable."
        ),
    ] = None
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            help="Pretrained network: efficientnet-lite0 (for a folder of images by default), hf:NAME-or-FOLDER, "
            "timm:NAME, onnx:FILE, package.module:f; none trains from scratch.",
        ),
    ] = None
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            help="What of it trains: head (none of it: seconds), norms (biases and normalisation), last (block), all.",
        ),
    ] = None
    model: Annotated[str | None, typer.Option("--model", help="Model by name, or package.module:factory.")] = None
    epochs: Annotated[int | None, typer.Option("--epochs", help="Length; warm-up and milestones in proportion.")] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Samples a step, of all processes together.")
    ] = None
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate after warm-up.")] = None
    clip: Annotated[float | None, typer.Option("--clip", help="Largest gradient norm.")] = None
    ema: Annotated[
        float | None, typer.Option("--ema", help="Decay of an average of the weights, which is then the result.")
    ] = None
    augment: Annotated[str | None, typer.Option("--augment", help="Augmentation by name.")] = None
    precision: Annotated[str | None, typer.Option("--precision", help="fp32, bf16, or auto: bf16 where it helps.")] = (
        None
    )
    device: Device = None
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads of a run.")] = None
    workers: Annotated[int, typer.Option("--workers", help="Processes that read image files.")] = 0
    compile: Annotated[bool, typer.Option("--compile", help="Compile the network with torch.compile.")] = False
    track: Annotated[list[str] | None, typer.Option("--track", help="tensorboard or wandb; repeatable.")] = None

    def job(self, method: str, **more: Any) -> Job:
        """The settings of a run of this method."""
        from ..engine.job import Job

        same = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("option", "set_recipe", "track")}
        return Job(
            method,
            options=plain_pairs(self.option, "--option"),
            set_recipe=plain_pairs(self.set_recipe, "--set-recipe"),
            track=tuple(self.track or ()),
            **same,
            **more,
        )


def takes_training(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter ``training`` is given as one option a field."""
    hints = get_type_hints(Training, include_extras=True)
    names = [f.name for f in fields(Training)]
    options = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(Training)
    ]
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next(i for i, p in enumerate(own) if p.name == "training")
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters = [*keyword[:place], *options, *keyword[place + 1 :]]

    def called(**given: Any) -> None:
        training = Training(**{name: given.pop(name) for name in names})
        command(**given, training=training)

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


def once(given: Mapping[str, Any], and_given: Mapping[str, Any], options: tuple[str, str]) -> None:
    """Refuse a name that two options give."""
    if both := [name for name in given if name in and_given]:
        raise InputError(f"{both[0]} is given by {options[0]} and by {options[1]}: give it once")
