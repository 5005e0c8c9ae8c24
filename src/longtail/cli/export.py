"""``longtail export``: a run's model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import TrustCode


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    to: Annotated[str, typer.Option(help="torch (torch.export, .pt2) or onnx.")] = "torch",
    out: Annotated[Path | None, typer.Option(help="The file; by default model.pt2 or model.onnx in RUN.")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a model that runs without longtail: inputs to class probabilities, checked against the original."""
    from ..export import export as write

    path = write(run, to, out, trust_code)
    typer.echo(f"{path}: agrees with the model of {run}, class names inside")
