"""``longtail report`` and ``longtail evaluate``: from run folders, or a file of predictions, to tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from ..runs.read import Run


def register(app: typer.Typer) -> None:
    app.command("report")(report)
    app.command("evaluate")(evaluate)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the page, tables and figures.")] = Path("report"),
    docs: Annotated[
        Path | None, typer.Option("--docs", metavar="FILE", help="Also bring the tables of a Markdown page up to date.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="Also put the runs' small files into one .jsonl.")
    ] = None,
) -> None:
    """Make one page of tables, figures and the paper's claims from any mixture of runs; its path is printed last.

    Folders that are no finished run, or come from a newer version, are named and skipped.
    """
    from ..errors import InputError
    from ..report import markdown, page
    from ..runs.read import BUNDLE, find, write_bundle

    if bundle is not None and bundle.suffix != BUNDLE:
        raise InputError(f"--bundle must name a file that ends in {BUNDLE}, got {bundle.name!r}")
    if docs is not None and not docs.is_file():
        raise InputError(f"{docs} does not exist: --docs takes a Markdown page with tables between comments")
    found = find(runs)
    for skipped in found.skipped:
        typer.echo(f"warning: {skipped}", err=True)
    made = page.make(found)
    index = page.write(made, out)
    if docs is not None:
        markdown.update(docs, made, out / "figures")
        typer.echo(str(docs))
    if bundle is not None:
        write_bundle(runs, bundle)
        typer.echo(str(bundle))
    typer.echo(str(index))


def evaluate(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or predictions (.npz, .safetensors).")
    ],
    counts: Annotated[
        str | None, typer.Option("--counts", help="Training samples a class: 500,210,5 or a file of numbers.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a page, tables and figures.")] = None,
) -> None:
    """Accuracy by group, embeddings and theory of a run, or of any model whose predictions are in a file.

    A file holds `logits` (N, C) and `labels` (N,) of the test samples, if possible `embeddings` (N, K), the same of the
    training samples as `train_logits`, `train_labels`, `train_embeddings`, and `counts` (C,).
    """
    from ..errors import InputError
    from ..report import page
    from ..runs.read import Found, read

    if not source.exists():
        raise InputError(f"{source} does not exist: give a run folder, or a file of predictions (.npz, .safetensors)")
    if source.is_dir() and counts is not None:
        raise InputError("--counts is for files of predictions: a run folder has its own")
    run = read(source) if source.is_dir() else _foreign(source, counts)
    made = page.make(Found([run], []))
    for table in page.of_one_run(made):
        typer.echo(f"{table.title}\n\n{table.plain()}")
    if out is not None:
        typer.echo(str(page.write(made, out)))


def _foreign(path: Path, counts: str | None) -> Run:
    """A file of predictions as a run that was trained elsewhere."""
    from ..errors import InputError
    from ..evaluate.predictions import Predictions, read_counts
    from ..runs.read import FORMAT, from_data
    from ..summary import summarise

    predictions = Predictions.load(path, None if counts is None else read_counts(counts))
    if predictions.counts is None:
        raise InputError(
            f"{path} has no training counts, which define head, torso and tail: store 'counts' or 'train_labels' in "
            "it, or give --counts"
        )
    known = predictions.counts
    config = {"format": FORMAT, "method": path.stem, "knobs": {}, "data": {"name": path.name, "options": {}}}
    split = {"counts": known.n.tolist(), "notes": [f"Predictions from {path.name}, trained elsewhere."]}
    if predictions.test is not None and _are_probabilities(predictions.test.logits):
        typer.echo(
            f"warning: {path}: the logits are at least 0 and sum to 1 for every sample, as probabilities do; store "
            "their logarithms, or the ECE and the margins are wrong",
            err=True,
        )
    try:
        summary = summarise(predictions, known)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    raw = {"config": config, "split": split, "summary": summary, "missing": ["predictions from elsewhere"]}
    return from_data(path, raw)


def _are_probabilities(logits: Tensor) -> bool:
    return len(logits) > 0 and bool((logits >= 0).all() and ((logits.double().sum(1) - 1).abs() < 1e-3).all())
