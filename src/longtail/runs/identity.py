"""What makes two runs seeds of one another, on the same data, or made under the same circumstances."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .read import Run


def condition(run: Run, without: Collection[str] = ()) -> list[Any]:
    """What must be equal for two runs to be seeds of one another; knobs of the names ``without`` are left out."""
    knobs = {name: value for name, value in run.knobs.items() if name not in without}
    return [*data_identity(run), run.method, knobs, *circumstances(run).values()]


def data_identity(run: Run) -> list[Any]:
    """What must be equal for two runs to be on the same data.

    A path may be written in many ways (photos, photos/, /home/me/photos), so its last part and the fingerprint count.
    """
    from ..data import names

    known = run.data in names() or not run.fingerprint
    which = [run.data] if known else [PurePath(run.data).name, run.fingerprint]
    return [which, run.options, run.split.counts]


def circumstances(run: Run) -> dict[str, Any]:
    """Everything but data, method and seed. A recipe's name is no part of it: its fields say all."""
    given = {"model": run.model, "epochs": run.epochs, "precision": run.precision}  # as run, whatever the recipe says
    if (backbone := run.config.backbone) is not None:
        how = f"{backbone.preprocessing.get('size')} pixels, weights {backbone.digest[:6]}"
        given["backbone"] = f"{backbone.name} (train {backbone.train}, {how})"
    return {**given, **{f"recipe {k}": v for k, v in sorted(run.recipe.items()) if k != "name" and k not in given}}
