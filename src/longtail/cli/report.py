"""``longtail report`` and ``longtail evaluate``: from runs, or files of predictions, to tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError

if TYPE_CHECKING:
    from ..runs.read import Found

Counts = Annotated[
    str | None, typer.Option("--counts", help="Training samples a class, for predictions: 500,210,5 or a file.")
]
Groups = Annotated[
    str | None, typer.Option("--groups", metavar="HEAD,TAIL", help="Limits of head and tail, as 100,20 in the paper.")
]
Paper = Annotated[bool, typer.Option("--paper", help="Check the paper's claims on other data than the paper's, too.")]


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run folders, folders of them, or files of predictions.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the page, tables and figures.")] = Path("report"),
    groups: Groups = None,
    counts: Counts = None,
    paper: Paper = False,
    docs: Annotated[
        Path | None, typer.Option("--docs", metavar="FILE", help="Also bring the tables of a Markdown page up to date.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="Also put the runs' small files into one .jsonl.")
    ] = None,
) -> None:
    """Make one page from any mixture of runs: which model to take, how sure that is, which classes fail, what next.

    Folders that are no finished run, or come from a newer version, are named and skipped. The page's path is printed
    last.
    """
    from ..report import document, page
    from ..runs.read import BUNDLE, write_bundle

    if bundle is not None and bundle.suffix != BUNDLE:
        raise InputError(f"--bundle must name a file that ends in {BUNDLE}, got {bundle.name!r}")
    if docs is not None and not docs.is_file():
        raise InputError(f"{docs} does not exist: --docs takes a Markdown page with tables between comments")
    limits = _limits(groups)
    found = _find(runs, counts)
    for skipped in found.skipped:
        typer.echo(f"warning: {skipped}", err=True)
    made = page.make(found, limits=limits, paper_claims=paper)
    index = document.write(made, out)
    if docs is not None:
        document.update(docs, made, out / "figures")
        typer.echo(str(docs))
    if bundle is not None:
        write_bundle([path for path in runs if not _is_file_of_predictions(path)], bundle)
        typer.echo(str(bundle))
    typer.echo(str(index))


def evaluate(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN|FILE...", help="Run folders, or predictions (.npz, .safetensors).")
    ],
    counts: Counts = None,
    groups: Groups = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a page, tables and figures.")] = None,
) -> None:
    """Accuracy by group, embeddings and theory of runs, or of any models whose predictions are in files.

    A file holds `logits` (N, C) and `labels` (N,) of the test samples, if possible `embeddings` (N, K), the same of the
    training samples as `train_logits`, `train_labels`, `train_embeddings`, and `counts` (C,). Several files on the same
    test samples are compared; NAME-s0.npz, NAME-s1.npz are seeds of one model.
    """
    from ..report import document, page

    made = page.make(_find(sources, counts, strict=True), limits=_limits(groups))
    for section in made.data_sections:
        for said in document.in_a_terminal(section, alone=len(sources) == 1):
            typer.echo(said)
    if out is not None:
        typer.echo(str(document.write(made, out)))


def _find(paths: Sequence[Path], counts: str | None, strict: bool = False) -> Found:
    """The runs and predictions under these paths; ``strict`` refuses what else leaves a run out."""
    from ..evaluate.predictions import read_counts
    from ..runs.predictions import from_predictions
    from ..runs.read import Found, find, read

    files = [path for path in paths if _is_file_of_predictions(path)]
    folders = [path for path in paths if path not in files]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist: give run folders, or files of predictions (.npz, .safetensors)")
        if strict and path.is_file() and path not in files:
            raise InputError(f"{path}: predictions are read from .safetensors, .npz or a run folder")
    if counts is not None and not files:
        raise InputError("--counts is for files of predictions: a run folder has its own")
    if strict:
        found = Found([read(folder) for folder in folders], [])
    else:
        found = find(folders) if folders or not files else Found([], [])
    known = None if counts is None else read_counts(counts)
    theirs = from_predictions(files, known, found.runs, lambda said: typer.echo(f"warning: {said}", err=True))
    return Found([*found.runs, *theirs], found.skipped)


def _is_file_of_predictions(path: Path) -> bool:
    from ..runs.predictions import ENDINGS

    return path.suffix in ENDINGS and not path.is_dir()


def _limits(text: str | None) -> tuple[int, int] | None:
    """Limits of head and tail.

    >>> _limits("100,20")
    (100, 20)
    """
    if text is None:
        return None
    head, _, tail = text.partition(",")
    if not (head.isdecimal() and tail.isdecimal() and len(text) < 30) or not 0 <= int(tail) <= int(head) < 10**12:
        raise InputError(f"--groups takes the limits of head and tail, the larger first, as 100,20; got {text!r}")
    return int(head), int(tail)
