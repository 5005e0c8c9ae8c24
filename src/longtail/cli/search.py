"""`longtail sweep --trials N`: optuna chooses the points that a grid would list.

A search is a function of its ranges and of what its runs reach on validation data: the sampler has a fixed seed, and
rounds a fixed size. So nothing is stored beside the runs: the same command again asks for the same points, finds their
runs finished, and goes on where it was; more trials begin with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InputError

Point = dict[str, str]
# Trials between two looks at the results, however many run at a time
ROUND = 4


class Range(NamedTuple):
    """Numbers from low to high: whole ones where both are, by their logarithm where they span a factor of ten."""

    low: float
    high: float

    @classmethod
    def read(cls, name: str, text: str) -> Range:
        try:
            low, high = (int(word) if word.isdecimal() else float(word) for word in text.split(".."))
        except ValueError:
            low, high = 1, 0
        if not -1e300 < low < high < 1e300:
            raise InputError(f"--grid {name} takes a range from a smaller to a larger number: 0.001..0.1, got {text!r}")
        return cls(low, high)

    def distribution(self, kinds: Any) -> Any:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        kind = kinds.IntDistribution if whole else kinds.FloatDistribution
        return kind(*self, log=self.low > 0 and self.high >= 10 * self.low)


Axes = Mapping[str, Sequence[str] | Range]


def ends(axes: Axes) -> list[Point]:
    """The lowest and the highest point, by which a range that leads out of what is allowed shows before any run."""
    return [{name: _text(axis[i]) for name, axis in axes.items()} for i in (0, -1)]


def search(axes: Axes, trials: int, run: Callable[[list[Point]], list[float | None]]) -> None:
    """Run ``trials`` points, each chosen by what those of the rounds before it scored; None is a run that failed."""
    optuna = _optuna()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    kinds = optuna.distributions
    space = {
        name: axis.distribution(kinds) if isinstance(axis, Range) else kinds.CategoricalDistribution(axis)
        for name, axis in axes.items()
    }
    scores: dict[tuple[tuple[str, str], ...], float | None] = {}
    for start in range(0, trials, ROUND):
        asked = [study.ask(space) for _ in range(min(ROUND, trials - start))]
        points = [tuple((name, _text(value)) for name, value in trial.params.items()) for trial in asked]
        if new := [point for point in dict.fromkeys(points) if point not in scores]:
            scores |= dict(zip(new, run([dict(point) for point in new])))
        for trial, point in zip(asked, points):
            score = scores[point]
            study.tell(trial, score, None if score is not None else optuna.trial.TrialState.FAIL)


def _text(value: Any) -> str:
    """A value as it is typed, three digits of a fraction: the rest of them changes no run for the better."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _optuna() -> Any:
    try:
        import optuna
    except (ImportError, RuntimeError, OSError):
        raise InputError(
            "--trials searches with optuna, which is not installed: pip install 'longtail[tune]', or list the values "
            "without --trials"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
