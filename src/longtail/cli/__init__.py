"""The command. Each module registers its own commands; nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .._version import __version__
from ..errors import InputError, RunError
from . import data, embed, export, methods, posthoc, predict, report, train

# The root of usage errors: typer's own click, or the click package with older versions of typer
UsageProblem: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="longtail",
    help="Learning from long-tailed data: train, compare and understand classifiers whose rare classes matter.",
    epilog="Start with: longtail compare",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"longtail {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


for module in (train, methods, data, embed, report, posthoc, predict, export):
    module.register(app)


def main(argv: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, a failed run exit code 1."""
    try:
        code = app(argv, standalone_mode=False)
    except UsageProblem as error:
        message = error.format_message()  # type: ignore[attr-defined]
        hint = " (longtail --help lists the commands)" if "No such command" in message else ""
        code = _say(message + hint, 2)
    except InputError as error:
        code = _say(str(error), 2)
    except RunError as error:
        code = _say(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        code = _say("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    typer.echo(f"longtail: {message}", err=True)
    return code
