"""The command. Each module holds some commands; nothing heavy is imported before one runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .._version import __version__
from ..errors import InputError, RunError
from . import compare, data, embed, methods, posthoc, report, streams, train, use

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


_training = (train.train, compare.compare, compare.sweep, methods.methods, embed.embed)
_results = (report.report, report.evaluate, posthoc.posthoc, use.predict, use.export)
for command in (*_training, *_results):
    app.command()(command)
app.add_typer(data.app, name="data")


def main(argv: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, a failed run exit code 1."""
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, whatever draws on this screen
    with streams.guarded():
        code = _run(sys.argv[1:] if argv is None else argv)
    sys.exit(code)


def _run(argv: list[str]) -> int:
    try:
        _check(argv)
        code = app(argv, standalone_mode=False)
        sys.stdout.flush()
    except UsageProblem as error:
        message = error.format_message()  # type: ignore[attr-defined]
        hint = " (longtail --help lists the commands)" if "No such command" in message else ""
        return _say(message + hint, 2)
    except InputError as error:
        return _say(str(error), 2)
    except RunError as error:
        return _say(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", 130)
    except streams.OutputError as error:  # whoever leaves early, as `head` does, has read enough
        return 0 if error.reader_left else _say(str(error), 1)
    except Exception as error:
        if os.environ.get("LONGTAIL_TRACEBACK"):
            raise
        return _explain(error)
    return code if isinstance(code, int) else 0


def _check(argv: list[str]) -> None:
    """Refuse what no path and no name can hold; everything else is for the commands to judge."""
    for number, word in enumerate(argv, 1):
        try:
            allowed = b"\0" not in os.fsencode(word)
        except UnicodeEncodeError:
            allowed = False
        if not allowed:
            raise InputError(f"argument {number} holds a character that no path or name can hold: {word!r}")


def _explain(error: Exception) -> int:
    """One sentence for what no command foresaw: the system's own answers first, then what can only be a bug."""
    words = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, MemoryError) or "can't allocate memory" in words or "OutOfMemory" in type(error).__name__:
        return _say(f"there is not enough memory: {words}", 1)
    if isinstance(error, OSError) and error.strerror is not None:
        # With a name it is about a path that was given, without one about a disk or a connection
        named = error.filename is not None
        return _say(f"{error.filename}: {error.strerror}" if named else error.strerror, 2 if named else 1)
    sentence = (
        f"unexpected {type(error).__name__}: {words}; with LONGTAIL_TRACEBACK=1 in the environment the same command "
    )
    return _say(sentence + "shows where it came from", 1)


def _say(message: str, code: int) -> int:
    """One line on stderr, however long what it quotes and whatever is in it."""
    words = [w if len(w) <= 300 else f"{w[:100]}…{w[-50:]}" for w in message.split()]
    # Lone surrogates are bytes of a file's name: they go out as they came
    line = "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else repr(c)[1:-1] for c in " ".join(words))
    if line:
        typer.echo(f"longtail: {line}", err=True)
    return code
