"""What a run can go on from: its own checkpoint, or the end of another run.

The later stages of cRT, LWS or multi-stage DRO-LT work on cross-entropy's network.

Where a method's first stages are the whole of another method (the same objective, data, recipe and seed), training them
again would give the same bits. ``take`` checks that they are the same, and hands over the state at their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from .. import methods, plugins
from ..counts import ClassCounts
from ..data.dataset import Split
from ..data.loader import Loader
from ..errors import InputError
from ..losses.base import Objective
from ..plan import Plan, Stage
from ..runs.checkpoint import Checkpoint
from ..runs.folder import config_and_rows, differences, identity, last_checkpoint
from ..runs.read import UnreadableError, read
from .distributed import Ranks
from .progress import EpochSums
from .recipe import Recipe


@dataclass(frozen=True)
class Begun:
    """A checkpoint, as bytes and decoded, and the rows of the epochs up to it."""

    data: bytes
    state: Checkpoint
    rows: list[dict[str, Any]]


def take(path: Path, plan: Plan, config: Mapping[str, Any], counts: ClassCounts) -> Begun:
    """What a finished run that ``plan`` begins with hands over.

    Raises:
        InputError: there is no such run, or it is not what the plan begins with; says in what they differ.
    """
    try:
        run = read(path)
    except UnreadableError as error:
        raise InputError(f"cannot begin with {path}: {error.reason}") from None
    other, rows = config_and_rows(path)
    of_method = ("method", "knobs")
    mine, its = ({k: v for k, v in identity(c).items() if k not in of_method} for c in (config, other))
    if changed := differences(its, mine):
        raise InputError(f"cannot begin with {path}, which was trained otherwise: {'; '.join(changed)}")
    with plugins.barred(path):
        first = methods.build(run.method, counts, **run.config.knobs)
    if not begins_with(plan, first):
        raise InputError(f"cannot begin with {path}: the stages of {plan.method} do not begin with {first.method}'s")
    found = last_checkpoint(path)
    if found is None or found[1].at.stage != len(first.stages):
        raise InputError(f"cannot begin with {path}: the checkpoint of its last step is not there")
    # Without what its own end was measured to be
    rows = [{k: v for k, v in row.items() if k not in ("val", "test")} for row in rows]
    return Begun(*found, rows)


def state_problem(state: Checkpoint, plan: Plan, train: Split, recipe: Recipe, ranks: Ranks) -> str | None:
    """Why a checkpoint cannot be a state of this run, or None."""
    try:
        EpochSums.from_data(state.meta.get("sums"))
    except ValueError as error:
        return str(error)
    processes = state.meta.get("processes", 1)
    if type(processes) is not int or processes < 1:
        return f"it says that {processes!r} processes wrote it"
    lengths = []
    for stage, epochs in zip(plan.stages, plan.epochs(recipe.epochs)):
        loader = Loader(
            train, ranks.share(recipe.batch_size), sampler=stage.sampler, views=stage.views, augment=recipe.augment,
            rank=ranks.rank, world_size=ranks.world, epochs=epochs, counts=stage.objective.counts,
        )  # fmt: skip
        lengths.append((epochs, len(loader)))
    return state.at.problem(lengths)


def begins_with(plan: Plan, first: Plan) -> bool:
    """Whether the first stages of a plan are the whole of another."""
    n = len(first.stages)
    following = plan.stages[n] if n < len(plan.stages) else None
    return (
        len(plan.stages) >= n
        and (plan.head, plan.head_bias) == (first.head, first.head_bias)
        and all(_same(a, b) for a, b in zip(plan.stages, first.stages))
        # A stage that goes on in the schedule of the one before would have changed that one's
        and (following is None or following.restart)
    )


def _same(a: Stage, b: Stage) -> bool:
    plain = [f.name for f in fields(Stage) if f.name != "objective"]
    return all(getattr(a, n) == getattr(b, n) for n in plain) and _same_objective(a.objective, b.objective)


def _same_objective(a: Objective, b: Objective) -> bool:
    mine, its = dict(a.named_buffers()), dict(b.named_buffers())
    return (
        (str(a), a.coefficients) == (str(b), b.coefficients)
        and mine.keys() == its.keys()
        and all(torch.equal(mine[name], its[name]) for name in mine)
    )
