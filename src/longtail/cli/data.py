"""`longtail data list | fetch NAME | check NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from .options import Options, plain_pairs
from .streams import bar

if TYPE_CHECKING:
    from ..data import Dataset

Root = Annotated[Path, typer.Option("--root", help="Folder that data sets lie in.")]


app = typer.Typer(help="The data sets: list them, get one, check one.", no_args_is_help=True)


@app.command("list")
def list_command() -> None:
    """List the built-in data sets."""
    from ..data.catalogue import BUILT_IN

    width = max(map(len, BUILT_IN))
    for name, entry in BUILT_IN.items():
        typer.echo(f"{name:<{width}}  {entry.about}")
    kinds = "a folder of class folders, .csv or .parquet (images or numbers, and a label), .npz or .safetensors"
    typer.echo(f"{'PATH':<{width}}  {kinds}")


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A built-in data set.")],
    root: Root = Path("data"),
    source: Annotated[Path | None, typer.Option("--from", help="An archive that is already on disk.")] = None,
) -> None:
    """Download CIFAR, verify and unpack it; say what to get for data behind a licence."""
    from ..data.fetch import fetch

    with bar("downloading", "bytes") as progress:
        message = fetch(name, root, source=source, progress=progress)
    typer.echo(message)


@app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="A built-in data set, or a path.")],
    root: Root = Path("data"),
    option: Options = None,
) -> None:
    """Read everything there is of a data set and list each bad file."""
    from ..data.catalogue import check

    with bar("checking", "files") as progress:
        found = check(name, root, progress, **plain_pairs(option, "--option"))
    for sentence in found.bad:
        typer.echo(sentence, err=True)
    if found.bad:
        raise InputError(f"{name}: {len(found.bad)} of {found.files:,} files are bad")
    if found.data is not None:
        _describe(found.data)
        typer.echo(f"checked {found.files:,} files: all good" if found.files else "all good")


def _describe(data: Dataset) -> None:
    counts = data.counts
    typer.echo(f"{data.name}: {data.num_classes:,} classes, {data.kind}, input shape {data.input_shape}")
    typer.echo(f"train {len(data.train):,} ({int(counts.n.max()):,}…{int(counts.n.min()):,} a class)")
    groups = ", ".join(f"{name} {len(index)}" for name, index in counts.groups().items())
    typer.echo(f"classes by training samples: {groups}")
    typer.echo(f"val {len(data.val):,}" if data.val is not None else "val none")
    typer.echo(f"test {len(data.test):,}")
    typer.echo(f"fingerprint {data.fingerprint}")
    for note in data.notes:
        typer.echo(f"note: {note}")
