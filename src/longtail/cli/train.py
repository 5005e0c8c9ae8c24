"""`longtail train`: one run."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from ..errors import InputError
from .options import Knobs, Training, pairs, takes_training
from .streams import bar, say


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
    from ..engine.job import perform, prepare
    from ..engine.process import Interrupted, stop_on_signal
    from ..engine.progress import Lines, Live
    from ..runs.folder import command_line
    from ..runs.read import read

    if resume and force:
        raise InputError("--resume goes on with a run and --force starts it again: give one of them")
    own = {"begin_with": begin_with, "out": out, "resume": resume, "force": force, "save_seconds": save_every}
    job = training(method, seed=seed, knobs=pairs(knobs, "--set"), **own)
    first = os.environ.get("RANK", "0") == "0"
    with bar() as progress:
        ready = prepare(job, say, progress)
    display = Live() if sys.stderr.isatty() else Lines()
    try:
        with stop_on_signal() as stop:
            path = perform(ready, say=say, watchers=[display], stop=stop)
    except Interrupted as stopped:
        if first:
            say(f"longtail: stopped and saved; go on with: {resume_command(command_line())}")
        raise typer.Exit(128 + stopped.signal) from None
    finally:
        display.close()
    if first:
        run = read(path)
        groups = {name: run.group_accuracy(name) for name in run.counts.groups()}
        known = [f"{name} {100 * value:.1f}" for name, value in groups.items() if value is not None]
        say(f"balanced test accuracy {100 * run.balanced:.2f} % ({', '.join(known)})")
        typer.echo(str(path))


def resume_command(command: list[str]) -> str:
    """The command that goes on with a run that this one began.

    >>> resume_command(["longtail", "train", "elm", "--force"])
    'longtail train elm --resume'
    """
    kept = [word for word in command if word not in ("--force", "--resume")]
    return shlex.join([*kept, "--resume"])
