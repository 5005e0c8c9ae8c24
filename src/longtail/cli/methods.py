"""`longtail methods`: what there is, with the ticks of the paper's Table 1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..plan import Plan


def methods(
    name: Annotated[str | None, typer.Argument(help="One method: its knobs and stages.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain data instead of a table.")] = False,
) -> None:
    """List the methods, with the ticks of the paper's Table 1, computed from the plans."""
    from .. import methods as known
    from ..counts import ClassCounts

    counts = ClassCounts([500, 50, 5])  # with a head, a torso and a tail: the ticks do not depend on which
    if name is not None:
        _one(known.build(name, counts), as_json)
        return
    plans = {n: known.build(n, counts) for n in known.names()}
    if as_json:
        typer.echo(json.dumps({n: p.traits() for n, p in plans.items()}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "long tail", "logit loss", "logit margin", "embedding loss", "embedding margin", "stages")
    for n, plan in plans.items():
        ticks = ["—" if t is None else "✓" if t else "×" for t in plan.traits().values()]
        steps = [s.name for s in plan.stages] + [p.kind for p in plan.posthoc]
        table.add_row(n, *ticks, " → ".join(steps))
    Console().print(table)
    typer.echo("longtail methods NAME shows a method's knobs.")


def _one(plan: Plan, as_json: bool) -> None:
    from .. import methods as known
    from ..margins import short

    name = plan.method
    if as_json:
        typer.echo(json.dumps({"method": name, "knobs": plan.knobs, "traits": plan.traits()}, indent=1))
        return
    typer.echo(f"{name}: {known.describe(name)}")
    for knob, default in known.knobs(name).items():
        typer.echo(f"  --set {knob}={short(default)}")
    for stage in plan.stages:
        terms = " + ".join(f"{w:g}·{type(t).__name__}" for w, t in stage.objective.weighted)
        extra = "".join(
            f", {text}"
            for text, shown in (
                (f"trains the {stage.trains}", stage.trains != "all"),
                (f"{stage.sampler} sampling", stage.sampler != "instance"),
                (f"{stage.views} views", stage.views > 1),
                ("frozen centroids", stage.centroids),
            )
            if shown
        )
        typer.echo(f"  stage {stage.name}: {terms}, {stage.share:.0%} of the epochs{extra}")
    for step in plan.posthoc:
        typer.echo(f"  then {step.kind}, {step.knob} from validation data")
    for data, settings in known.settings(name).items():
        typer.echo(f"  for {data}: " + " ".join(f"--set {k}={short(v)}" for k, v in settings.items()))
