"""``longtail predict`` and ``export``: a finished run classifies new inputs, or becomes a file for other programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..errors import InputError, one_of
from .options import TrustCode

if TYPE_CHECKING:
    from torch import Tensor

    from ..inference import Restored

FORMATS = ("text", "csv", "json")
FEATURES = (".npz", ".npy", ".csv", ".parquet", ".safetensors")


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUTS...", help="Images or folders of them; .npz, .npy, .csv or .parquet of features."
        ),
    ],
    format: Annotated[str, typer.Option(help="text, csv or json.")] = "text",
    trust_code: TrustCode = False,
) -> None:
    """Classify new images or features: path, class and its probability."""
    from ..inference import restore

    one_of("format", format, FORMATS)
    out = sys.stdout
    with redirect_stdout(sys.stderr):  # what somebody's network prints is no row
        restored = restore(run, trust_code)
        rows = _of_features(restored, inputs) if restored.kind == "features" else _of_images(restored, inputs)
        _write(rows, format, out)


def _of_images(restored: Restored, inputs: list[Path]) -> Iterator[tuple[str, str, float]]:
    paths = [path for given in inputs for path in _images(given)]
    at = 0
    for probabilities in restored.of_images(paths):
        names = [str(p) for p in paths[at : at + len(probabilities)]]
        yield from _rows(names, probabilities, restored.class_names)
        at += len(probabilities)


def _of_features(restored: Restored, inputs: list[Path]) -> Iterator[tuple[str, str, float]]:
    from ..data.tables import features

    for path in inputs:
        if path.suffix.lower() not in FEATURES:
            raise InputError(f"the run was trained on features: {path} must end in {', '.join(FEATURES)}")
        x = features(path, restored.columns)
        names = [f"{path}:{row}" for row in range(len(x))]
        yield from _rows(names, restored.of_features(x), restored.class_names)


def _rows(names: list[str], probabilities: Tensor, classes: list[str]) -> Iterator[tuple[str, str, float]]:
    best, which = probabilities.max(1)
    for name, p, c in zip(names, best.tolist(), which.tolist()):
        yield name, classes[c], p


def _images(given: Path) -> list[Path]:
    """A file, or the images anywhere under a folder, in alphabetical order."""
    from ..data.folder import SUFFIXES

    if given.suffix in FEATURES:
        raise InputError(f"the run was trained on images, and {given} holds features")
    if not given.is_dir():
        if not given.is_file():
            raise InputError(f"there is no image or folder {given}")
        return [given]
    found = sorted(p for p in given.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not found:
        raise InputError(f"{given} has no image ({', '.join(SUFFIXES)})")
    return found


def _write(rows: Iterator[tuple[str, str, float]], format: str, out: TextIO) -> None:
    if format == "json":
        found = [{"path": path, "class": name, "probability": round(p, 6)} for path, name, p in rows]
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False), out)
    elif format == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("path", "class", "probability"))
        writer.writerows((path, name, f"{p:.6f}") for path, name, p in rows)
    else:
        for path, name, p in rows:
            typer.echo(f"{path}\t{name}\t{p:.3f}", out)


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
