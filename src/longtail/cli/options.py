"""Options that train, compare and sweep share, and the reading of name=value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..errors import InputError

Data = Annotated[str, typer.Option("--data", help="Built-in data, or the path of a folder, a CSV or features.")]
Root = Annotated[str, typer.Option("--root", help="Folder that downloaded data lies in.")]
Options = Annotated[list[str] | None, typer.Option("--option", help="Option of the data, as name=value; repeatable.")]
Knobs = Annotated[list[str] | None, typer.Option("--set", help="Knob of the method, as name=value; repeatable.")]
RecipeName = Annotated[str | None, typer.Option("--recipe", help="Recipe by name; the data's own by default.")]
Model = Annotated[str | None, typer.Option("--model", help="Model by name, or package.module:factory.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Length; warm-up and milestones in proportion.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Samples a step, of all processes together.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate after warm-up.")]
Clip = Annotated[float | None, typer.Option("--clip", help="Largest gradient norm.")]
Ema = Annotated[
    float | None, typer.Option("--ema", help="Decay of an average of the weights, which is then the result.")
]
Augment = Annotated[str | None, typer.Option("--augment", help="Augmentation by name.")]
Precision = Annotated[str | None, typer.Option("--precision", help="fp32, bf16, or auto: bf16 where it helps.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1; a GPU where there is one.")]
Workers = Annotated[int, typer.Option("--workers", help="Processes that read image files.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the network with torch.compile.")]


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

    def read(value: str) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value

    return {name: read(value) for name, value in pairs(given, option).items()}
