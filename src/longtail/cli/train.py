"""`longtail train`; `compare` and `sweep` are registered with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .compare import GROUPS, compare, sweep
from .options import Knobs, Training, pairs, takes_training
from .streams import bar

if TYPE_CHECKING:
    from ..engine.job import Job


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("compare")(compare)
    app.command("sweep")(sweep)


@takes_training
def train(
    method: Annotated[str, typer.Argument(help="A method: longtail methods lists them.")],
    training: Training,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, batches and augmentation.")] = 0,
    knobs: Knobs = None,
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
    _run(
        training.job(
            method, seed=seed, knobs=pairs(knobs, "--set"), begin_with=begin_with, out=out, resume=resume, force=force,
            save_seconds=save_every,
        )
    )  # fmt: skip


def _run(job: Job) -> None:
    import os
    import sys

    from ..engine.job import perform, prepare
    from ..engine.process import Interrupted, StopOnSignal
    from ..engine.progress import Lines, Live, Watcher, tracker
    from ..runs.folder import command_line

    first = os.environ.get("RANK", "0") == "0"
    with bar() as progress:
        ready = prepare(job, say, progress)
    live: list[Live] = []

    def watch(ready: Any, path: Any) -> list[Watcher]:
        trackers = [tracker(name, path, ready.config) for name in job.track]
        if not sys.stderr.isatty():
            return [Lines(), *trackers]
        live.append(Live())
        return [*live, *trackers]

    try:
        with StopOnSignal() as stop:
            path = perform(ready, say=say, watchers=watch, stop=stop)
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


def say(text: str) -> None:
    """A line on standard error."""
    typer.echo(text, err=True)


def _say_result(path: Path) -> None:
    from ..runs.read import read

    run = read(path)
    groups = {name: run.group_accuracy(name) for name in GROUPS}
    known = [f"{name} {100 * value:.1f}" for name, value in groups.items() if value is not None]
    typer.echo(f"balanced test accuracy {100 * run.balanced:.2f} % ({', '.join(known)})", err=True)


def resume_command(command: list[str]) -> str:
    """The command that goes on with a run that this one began.

    >>> resume_command(["longtail", "train", "elm", "--force"])
    'longtail train elm --resume'
    """
    import shlex

    kept = [word for word in command if word not in ("--force", "--resume")]
    return shlex.join([*kept, "--resume"])
