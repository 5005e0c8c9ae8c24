"""`longtail compare` and `longtail sweep`: many runs, one table."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGINT
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated

import typer

from ..engine.settings import Job, once
from ..errors import InputError, RunError, one_of
from ..runs.schema import GroupAccuracy, Summary
from .options import Knobs, Training, pairs, plain, takes_training
from .search import Point, Range, ends, search
from .streams import bar, say

if TYPE_CHECKING:
    from ..engine.job import Prepared
    from ..engine.pool import Outcome
    from ..plan import Plan

Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at a time; one a core by default, at most 4.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs of each, with seeds 0, 1, …")]
Out = Annotated[str, typer.Option("--out", help="Folder for the runs and the report.")]
Force = Annotated[bool, typer.Option("--force", help="Run again what is finished.")]
Open = Annotated[bool, typer.Option("--open", help="Show the report in a browser when all is done.")]
GROUPS = ("head", "torso", "tail")
MOST_POINTS = 10_000


@takes_training
def compare(
    training: Training,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas; with knobs as elm:memory=16:lam=0.1.")
    ] = "ce,logadj,elm",
    seeds: Seeds = 5,
    jobs: Jobs = None,
    out: Out = "runs",
    force: Force = False,
    show: Open = False,
) -> None:
    """Train methods side by side: mean ± standard deviation over seeds, and a report.

    Finished runs are reused and unfinished ones go on, so the same command after an interruption loses nothing. Methods
    whose first stage is ce (crt, lws, tau-norm, dro-lt-multistage) begin with its runs if it is among them.
    """
    from ..models import own_head

    names = [name for name in methods.split(",") if name]
    if not names:
        raise InputError("--methods needs at least one method, such as ce,logadj,elm")
    if len(set(names)) < len(names):
        raise InputError(f"--methods names a method twice: {methods}")
    base = training(names[0], under=out, resume=not force, force=force)
    settings = [replace(base, method=name, knobs=knobs) for name, knobs in map(_method, names)]
    plans = [one.check() for one in settings]
    ready = _check(settings)
    outcomes = _run(settings, names, seeds, jobs, _beginnings(plans, own_head(ready.recipe.model)))
    print_table(f"{base.data}, balanced test accuracy in %", _by(outcomes, names))
    conclude(outcomes, Path(out), show)


@takes_training
def sweep(
    method: Annotated[str, typer.Argument(help="A method: longtail methods lists them.")],
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            help="Knob of the method or field of the recipe, and values: lam=0,0.001,0.01, or with --trials a range: "
            "lam=0.001..0.1; repeatable.",
        ),
    ],
    training: Training,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Points for optuna to choose, instead of all of the grid.")
    ] = None,
    seeds: Seeds = 3,
    jobs: Jobs = None,
    knobs: Knobs = None,
    out: Out = "runs",
    force: Force = False,
    show: Open = False,
) -> None:
    """Train one method over a grid of knobs, or search it; the best is chosen on validation data, test is only shown.

    The same command after an interruption goes on: finished runs are reused, and a search asks for the same points.
    """
    axes = {name: _axis(name, values, trials) for name, values in pairs(grid, "--grid").items()}
    fixed = pairs(knobs, "--set")
    once(axes, fixed, ("--grid", "--set"))
    base = training(method, under=out, resume=not force, force=force)
    of_recipe = _recipe_axes(method, axes)
    once(of_recipe, base.recipe_fields(), ("--grid", "another option"))

    def job(point: Point) -> Job:
        settings = {k: plain(v, f"--grid {k}") for k, v in point.items() if k in of_recipe}
        mine = {**fixed, **{k: v for k, v in point.items() if k not in of_recipe}}
        found = replace(base, knobs=mine, set_recipe={**base.set_recipe, **settings})
        found.check()
        return found

    outcomes: list[Outcome] = []
    rows: dict[str, list[Summary]] = {}

    def run(points: list[Point]) -> list[float | None]:
        settings = [job(point) for point in points]
        if not outcomes:
            _check(settings, searches=trials is not None)
        names = [", ".join(f"{k}={v}" for k, v in point.items()) for point in points]
        done = _run(settings, names, seeds, jobs)
        outcomes.extend(done)
        rows.update(_by(done, names))
        found = [[s.val.balanced for s in rows[name] if s.val.balanced is not None] for name in names]
        return [mean(values) if values else None for values in found]

    if trials is None:
        listed = [axis for axis in axes.values() if not isinstance(axis, Range)]
        if (many := math.prod(map(len, listed))) > MOST_POINTS:
            raise InputError(f"--grid makes {many:,} points, more than {MOST_POINTS:,}: --trials chooses among them")
        run([dict(zip(axes, values)) for values in itertools.product(*listed)])
    else:
        for point in ends(axes):
            job(point)
        search(axes, trials, run)
    print_sweep(f"{method} on {base.data}, balanced accuracy in %", rows)
    conclude(outcomes, Path(out), show)


def _axis(name: str, text: str, trials: int | None) -> list[str] | Range:
    if ".." in text:
        if trials is None:
            raise InputError(f"--grid {name}={text} is a range: give --trials N to search it, or values with commas")
        return Range.read(name, text)
    values = [v for v in text.split(",") if v]
    if not values or len({_plain(v) for v in values}) < len(values):
        raise InputError(f"--grid {name} needs different values, separated by commas")
    return values


def _recipe_axes(method: str, names: Iterable[str]) -> list[str]:
    """Those of a grid's names that are fields of the recipe; the others are the method's knobs, or unknown."""
    from .. import methods
    from ..engine.recipe import settable

    known = list(methods.knobs(method))
    for name in names:
        one_of(f"knob of {method!r} or field of a recipe", name, [*known, *settable()])
    return [name for name in names if name not in known]


def _plain(value: str) -> str | float:
    """A value of a grid as it is compared with others: 0.1 and 1e-1 are one."""
    try:
        return float(value)
    except ValueError:
        return value


def _method(text: str) -> tuple[str, dict[str, str]]:
    """A method and its knobs.

    >>> _method("elm:memory=16:lam=0.1")
    ('elm', {'memory': '16', 'lam': '0.1'})
    >>> _method("my_losses:ring:lam=0.1")
    ('my_losses:ring', {'lam': '0.1'})
    """
    from .. import methods

    words = text.split(":")
    # What follows one of our own methods is a knob; otherwise module:function comes first
    named = 1 if words[0] in methods.names() else next((i for i, word in enumerate(words) if "=" in word), len(words))
    return ":".join(words[:named]), pairs(words[named:], "--methods")


def _beginnings(plans: Sequence[Plan], own_head: str) -> dict[int, int]:
    """For plans that begin with the whole of another, as crt's does with ce's: the place of the shortest such."""

    def length(plan: Plan) -> int:
        return len(plan.stages) + len(plan.posthoc)

    found = {}
    for i, plan in enumerate(plans):
        firsts = [j for j, p in enumerate(plans) if length(p) < length(plan) and plan.begins_with(p, own_head)]
        if firsts:
            found[i] = min(firsts, key=lambda j: length(plans[j]))
    return found


def _check(settings: Sequence[Job], searches: bool = False) -> Prepared:
    """What is done once, before any worker starts: the data is read, images are embedded, every configuration is tried
    on the data, and the header says what is about to run. A mistake is one sentence here. Returns the first of them."""
    from ..engine.job import plan_for, prepare
    from ..engine.progress import introduce

    with bar() as progress:
        ready = prepare(settings[0], say, progress)
    for job in settings[1:]:
        plan_for(job, ready.data)
    if searches and ready.data.val is None:
        raise InputError(
            f"--trials searches on validation data, and {ready.job.data} has none: --option holdout=0.1 takes a tenth "
            "of the training data for it"
        )
    introduce(ready, say, methods=list(dict.fromkeys(job.method for job in settings)))
    return ready


def _run(
    settings: Sequence[Job],
    names: Sequence[str],
    seeds: int,
    jobs: int | None,
    begin: Mapping[int, int] | None = None,
) -> list[Outcome]:
    """Do the runs, with a table that follows them on a terminal and plain lines elsewhere; those that ``begin`` with
    another wait for its run."""
    from ..engine.pool import cores, run_all
    from ..engine.process import Interrupted, stop_on_signal
    from ..runs.folder import command_line
    from .board import board

    # Seed by seed, so that an interrupted comparison has something of every setting
    todo = [replace(one, seed=seed) for seed in range(seeds) for one in settings]
    at_a_time = min(jobs or min(cores(), 4), len(todo))
    watch = board(names, seeds, at_a_time)
    first = (begin or {}).items()
    after = {seed * len(names) + i: seed * len(names) + j for seed in range(seeds) for i, j in first}
    of_each = "1 seed" if seeds == 1 else f"{seeds} seeds"
    watch.say(f"{len(todo)} runs in {todo[0].under}: {of_each} of each, {at_a_time} at a time")
    try:
        with stop_on_signal() as stop, watch.screen:
            return run_all(
                todo, at_a_time, after=after, on_done=watch.done, on_step=watch.step, on_tick=watch.tick, stop=stop
            )
    except (Interrupted, KeyboardInterrupt) as stopped:  # the latter at a second Ctrl-C: workers save on their own
        again = shlex.join(word for word in command_line() if word != "--force")
        say(f"longtail: stopped: {watch.saved()}; go on with: {again}")
        raise typer.Exit(128 + getattr(stopped, "signal", SIGINT)) from None


def _by(outcomes: Sequence[Outcome], names: Sequence[str]) -> dict[str, list[Summary]]:
    """The summaries of finished runs by name; runs are in the order of the names, seed after seed."""
    from ..runs.read import read

    rows: dict[str, list[Summary]] = {name: [] for name in names}
    for outcome, name in zip(outcomes, itertools.cycle(names)):
        if outcome.path is not None:
            rows[name].append(read(outcome.path).summary)
    return rows


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation (of the sample) in percent.

    >>> spread([0.5, 0.52]), spread([0.5]), spread([None, None])
    ('51.00 ± 1.41', '50.00', '—')
    """
    known = [100 * v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return "—"
    return f"{mean(known):.2f}" + (f" ± {stdev(known):.2f}" if len(known) > 1 else "")


def print_table(title: str, rows: dict[str, list[Summary]]) -> None:
    lines = []
    for name, summaries in rows.items():
        tests = [s.test for s in summaries]
        by_group = {g: [t.groups.get(g, GroupAccuracy()) for t in tests] for g in GROUPS}
        groups = [
            "no classes" if found and not found[0].classes else spread([one.accuracy for one in found])
            for found in by_group.values()
        ]
        lines.append((name, str(len(tests)), spread([t.balanced for t in tests]), *groups))
    _print(title, ("method", "runs", "balanced", *GROUPS), lines)


def print_sweep(title: str, rows: dict[str, list[Summary]]) -> None:
    vals = {name: [s.val.balanced for s in found if s.val.balanced is not None] for name, found in rows.items()}
    has_val = all(len(vals[name]) == len(found) for name, found in rows.items())
    scores = {name: mean(found) for name, found in vals.items() if found and has_val}
    best = max(scores, key=lambda name: scores[name]) if scores else None
    lines = []
    for name, summaries in rows.items():
        val = spread(vals[name]) if has_val else "—"
        test = spread([s.test.balanced for s in summaries])
        lines.append((name, str(len(summaries)), val, test, "← chosen on val" if name == best else ""))
    _print(title, ("setting", "runs", "val (chooses)", "test (only shown)", ""), lines)
    if not has_val:
        typer.echo("There is no validation data, so nothing is chosen: --option holdout=0.1 takes some from training.")


def _print(title: str, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """A table on standard output; a name that is too long for a terminal goes on below, and is whole in a file."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    columns = [Column(Text(heads[0]), overflow="fold"), *(Column(Text(head), no_wrap=True) for head in heads[1:])]
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for line in lines:
        table.add_row(*map(Text, line))
    console = Console(width=None if sys.stdout.isatty() else 400)
    console.print(Text(f"\n{title}", style="bold"), table, "", soft_wrap=False)


def conclude(outcomes: Sequence[Outcome], out: Path, show: bool) -> None:
    """The report of the runs that were finished, and an error for those that were not."""
    if paths := [outcome.path for outcome in outcomes if outcome.path is not None]:
        from ..report.page import build

        page = build(paths, out / "report")
        typer.echo(f"report: {page}")
        if show:
            import webbrowser

            if not webbrowser.open(page.resolve().as_uri()):
                say("there is no browser here to open it with")
    failed = [outcome for outcome in outcomes if outcome.path is None]
    if not failed:
        return
    reasons = list(dict.fromkeys(outcome.error for outcome in failed))
    message = f"{len(failed)} of {len(outcomes)} runs failed: {'; '.join(reasons)}"
    if len(failed) == len(outcomes) and all(outcome.mistake for outcome in failed):
        raise InputError(reasons[0] if len(reasons) == 1 else message)
    raise RunError(message)
