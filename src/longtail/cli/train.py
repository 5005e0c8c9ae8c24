"""`longtail train`; `compare` and `sweep` are registered with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .compare import compare, sweep
from .options import (
    Augment,
    BatchSize,
    Clip,
    Compile,
    Data,
    Device,
    Ema,
    Epochs,
    Knobs,
    Model,
    Options,
    Precision,
    Rate,
    RecipeName,
    Root,
    Workers,
    pairs,
    plain_pairs,
)


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("compare")(compare)
    app.command("sweep")(sweep)


def train(
    method: Annotated[str, typer.Argument(help="A method: longtail methods lists them.")],
    data: Data = "digits-lt",
    root: Root = "data",
    seed: Annotated[int, typer.Option("--seed", help="Of weights, batches and augmentation.")] = 0,
    epochs: Epochs = None,
    knobs: Knobs = None,
    option: Options = None,
    recipe: RecipeName = None,
    model: Model = None,
    batch_size: BatchSize = None,
    lr: Rate = None,
    clip: Clip = None,
    ema: Ema = None,
    augment: Augment = None,
    precision: Precision = None,
    device: Device = None,
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads.")] = None,
    workers: Workers = 0,
    compile: Compile = False,
    track: Annotated[list[str] | None, typer.Option("--track", help="tensorboard or wandb; repeatable.")] = None,
    begin_with: Annotated[
        str | None,
        typer.Option(
            "--begin-with",
            metavar="RUN",
            help="A finished run that is this method's first stage, such as ce for crt, lws and tau-norm.",
        ),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="Run folder; one of its own under runs/ by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again, whatever the folder holds.")] = False,
    save_every: Annotated[
        float, typer.Option("--save-every", help="Seconds between checkpoints within an epoch.")
    ] = 60,
) -> None:
    """Train one method; the run folder is printed last.

    Exit codes: 0 finished (or found finished), 2 a mistake in the command, 1 a run that failed, 130 and 143 after
    SIGINT and SIGTERM, which finish the step, save, and print the command that resumes.
    """
    from ..errors import InputError

    if resume and force:
        raise InputError("--resume goes on with a run and --force starts it again: give one of them")
    from ..engine.job import Job

    job = Job(
        method, data=data, root=root, options=plain_pairs(option, "--option"), seed=seed,
        knobs=pairs(knobs, "--set"), recipe=recipe, model=model, epochs=epochs, batch_size=batch_size, lr=lr, clip=clip,
        ema=ema, augment=augment, precision=precision, device=device, threads=threads, workers=workers, compile=compile,
        begin_with=begin_with, out=out, resume=resume, force=force, save_seconds=save_every,
    )  # fmt: skip
    _run(job, tuple(track or ()))


def _run(job: Any, track: Sequence[str]) -> None:
    import os
    import sys

    from ..engine.job import StopOnSignal, execute
    from ..engine.progress import Lines, Live, Watcher, tracker
    from ..engine.train import Interrupted
    from ..runs.folder import command_line

    first = os.environ.get("RANK", "0") == "0"
    live: list[Live] = []

    def watch(ready: Any, path: Any) -> list[Watcher]:
        trackers = [tracker(name, path, ready.config) for name in track]
        if not sys.stderr.isatty():
            return [Lines(), *trackers]
        live.append(Live())
        return [*live, *trackers]

    try:
        with StopOnSignal() as stop:
            path = execute(job, say=lambda text: typer.echo(text, err=True), watchers=watch, stop=stop)
    except Interrupted as stopped:
        if first:
            typer.echo(f"longtail: stopped and saved; go on with: {resume_command(command_line())}", err=True)
        raise typer.Exit(128 + stopped.signal) from None
    finally:
        for display in live:
            display.close()
    if first:
        _say_result(path)
        typer.echo(str(path))


def _say_result(path: Any) -> None:
    import json

    from ..errors import InputError

    try:
        test = json.loads((path / "summary.json").read_text(encoding="utf-8"))["test"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path / 'summary.json'} cannot be read: --force runs it again") from None
    groups = [f"{k} {100 * g['accuracy']:.1f}" for k, g in test["groups"].items() if g["accuracy"] is not None]
    typer.echo(f"balanced test accuracy {100 * test['balanced']:.2f} % ({', '.join(groups)})", err=True)


def resume_command(command: list[str]) -> str:
    """The command that goes on with a run that this one began.

    >>> resume_command(["longtail", "train", "elm", "--force"])
    'longtail train elm --resume'
    """
    import shlex

    kept = [word for word in command if word not in ("--force", "--resume")]
    return shlex.join([*kept, "--resume"])
