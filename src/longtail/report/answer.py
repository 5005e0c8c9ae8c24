"""The answer to the first question: which model to take, how sure that is, what it gets wrong, and what to do next."""

from __future__ import annotations

import base64
import io
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..runs.read import Run
from .comparison import LEVEL, Difference, Source, accuracy_difference, half_width, holm, right_and_labels
from .document import Cells, Mistakes, Table, Thumbnail
from .grouping import DataSet, Group
from .paper import Number
from .tables import class_cells, table_of, taken_for

if TYPE_CHECKING:
    from ..data.dataset import Dataset, Split

MOST_NAMES = 4
MOST_SEEDS = 100
CLASSES, EACH = 6, 6  # classes that are shown, and mistaken images of each
SIDE = 64
MOST_BYTES = 150_000  # of all thumbnails, before base64 adds a third


@dataclass(frozen=True)
class Rival:
    """A configuration that was not taken: how far the best is above it, and whether that can be told from chance."""

    group: Group
    difference: Difference
    apart: bool


@dataclass(frozen=True)
class Answer:
    """The configuration to take, the run of it, and what was said of them."""

    best: Group
    run: Run
    sentences: list[str]
    warning: str
    commands: list[str]


def answer(data: DataSet) -> Answer:
    """Judge the configurations of one data set; the best is chosen on validation data where every run has it."""
    by_val = all(run.summary.val.balanced is not None for run in data.runs)

    def score(run: Run) -> float:
        on_val = run.summary.val.balanced
        return run.balanced if on_val is None or not by_val else on_val

    best = max(data.groups, key=lambda group: group.mean(score) or 0.0)
    run = max(best.runs, key=score)
    sentences = [_taken(data, best, run, by_val)]
    found = [(g, gap) for g in data.groups if g is not best and (gap := accuracy_difference(best, g)) is not None]
    if found:
        levels = holm([gap.p for _, gap in found])
        rivals = [Rival(g, gap, p is not None and p <= LEVEL and gap.value > 0) for (g, gap), p in zip(found, levels)]
        sentences += [_over_cross_entropy(data, best, rivals), _not_told_apart(best, rivals)]
    return Answer(best, run, [said for said in sentences if said], warning(data, best), _commands(run))


def _taken(data: DataSet, best: Group, run: Run, by_val: bool) -> str:
    mean, std, seeds = best.balanced
    spread = ", one seed" if std is None else f" ± {100 * std:.1f} over {seeds} seeds"
    said = f"{100 * mean:.1f} % balanced test accuracy{spread}"
    if len(data.groups) == 1:
        return f"{best.label} ({run.path}) has {said}."
    how = "chosen on validation data" if by_val else "chosen on these test data, which flatters it a little"
    return f"Take {best.label} ({run.path}): {said}, {how}."


def _over_cross_entropy(data: DataSet, best: Group, rivals: Sequence[Rival]) -> str:
    if best.method == "ce":
        return "That is plain cross-entropy: no other method did better."
    plain = data.plain("ce")
    rival = next((r for r in rivals if plain and r.group is plain[0]), None)
    if rival is None:
        return "Plain cross-entropy was not run, so that the gain over it is not known."
    gap = rival.difference
    said = f"It is {abs(100 * gap.value):.1f} points {'above' if gap.value >= 0 else 'below'} plain cross-entropy"
    if gap.interval is None or gap.p is None:
        return f"{said}, but with one seed of a method nobody knows what chance did in training: run more seeds."
    low, high = max(gap.interval[0], -1.0), min(gap.interval[1], 1.0)
    chance = "" if rival.apart else ", which may be chance"
    return f"{said} (95 % interval {100 * low:+.1f} to {100 * high:+.1f}, over test samples and seeds){chance}."


def _not_told_apart(best: Group, rivals: Sequence[Rival]) -> str:
    unclear = sorted((r for r in rivals if not r.apart), key=lambda r: -r.group.balanced.mean)
    size, seeds = best.first.summary.test.n, len(best.runs)
    having = f"with {f'{size:,} test samples and ' if size else ''}{seeds} seed{'' if seeds == 1 else 's'}"
    if not unclear:
        return f"It can be told apart from all {len(rivals)} others {having}." if len(rivals) > 1 else ""
    names = _some([r.group.label for r in unclear])
    return f"It cannot be told apart {having} from {names}. {_needed(best, unclear[0])}"


def _needed(best: Group, rival: Rival) -> str:
    """How many seeds, or else test samples, would tell the best from a rival, if they differ as measured."""
    gap, size = rival.difference, best.first.summary.test.n
    stds = [std for group in (best, rival.group) if (std := group.balanced.std) is not None]
    if len(stds) < 2:
        return f"Run at least three seeds of {best.label} and of {rival.group.label}."
    spread, of_test = math.hypot(*stds), next((s.error for s in gap.sources if math.isinf(s.freedom)), 0.0)
    apart, ahead = abs(gap.value), "it" if gap.value > 0 else rival.group.label
    as_measured = (
        f"If the difference to {rival.group.label} is what was measured ({100 * apart:.1f} points, {ahead} ahead)"
    )
    for seeds in range(3, MOST_SEEDS + 1):
        if half_width((Source(spread / math.sqrt(seeds), seeds), Source(of_test))) < apart:
            return f"{as_measured}, about {seeds} seeds of each would tell."
    samples = 2 * (size or 0) * (1.96 * of_test / apart) ** 2 if apart else math.inf  # half is left to the seeds
    if size and samples < 100 * size:
        unit = 10 ** max(len(str(int(samples))) - 2, 0)
        about = math.ceil(samples / unit) * unit
        return f"{as_measured}, it would take about {about:,} test samples, and more seeds, to tell."
    return f"{as_measured}, no reasonable number of seeds or test samples would tell."


def warning(data: DataSet, best: Group) -> str:
    """The one thing that is most likely to be wrong, or nothing."""
    names, classes = data.first.class_names, data.counts.num_classes
    if untested := [names[c] for c in data.members["tail"] if data.groups[0].tested(c) == 0]:
        return (
            f"{len(untested)} of {data.sizes['tail']} tail classes have no test samples "
            f"({_some(untested)}): their accuracy is not known and not part of any mean."
        )
    if collapsed := [g.label for g in data.groups if g.balanced.mean <= 1.5 / classes and classes > 2]:
        return (
            f"{_some(collapsed)} did no better than guessing: where an embedding term is that strong, lower its weight "
            "(lam)."
        )
    for group in sorted(data.groups, key=lambda group: group is not best):
        for run in group.runs:
            if run.summary.concerns:
                return f"{group.label}: {run.summary.concerns[0]}."
    if never := [names[c] for c in range(classes) if all(run.summary.test.per_class[c] == 0 for run in best.runs)]:
        return f"{best.label} never recognises {_some(never)}."
    return ""


def _some(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _commands(run: Run) -> list[str]:
    """What one does with a run next."""
    folder = shlex.quote(str(run.path))
    if not (run.path / "config.json").is_file():
        return []  # a line of a bundle, or somebody's predictions: there is no model
    # Without validation data nothing can be chosen: cross-entropy has a known best value, others a method without knobs
    unchosen = "logit-adjust --value 1" if run.method == "ce" else "ncm"
    return [
        f"longtail predict {folder} NEW_DATA",
        f"longtail posthoc {folder} --method {unchosen if run.summary.val.balanced is None else 'logit-adjust'}",
        f"longtail export {folder} --to torch",
    ]


def worst_classes(data: DataSet, group: Group) -> list[int]:
    """Labels of the classes with the lowest test accuracy, mean over seeds."""
    means = [(mean, c) for c in range(data.counts.num_classes) if (mean := group.class_accuracy(c)) is not None]
    return [c for mean, c in sorted(means)[:CLASSES] if mean < 1]


def worst(data: DataSet, group: Group) -> Table | None:
    """The worst classes of one configuration and what they are taken for."""
    taken = taken_for(group)

    def mostly(c: int) -> str | None:
        found = Counter({predicted: n for (label, predicted), n in taken.items() if label == c}).most_common(2)
        return ", ".join(data.first.class_names[predicted] for predicted, _ in found) or None

    def row(c: int) -> Cells:
        cells = class_cells(data, c)
        return {
            **{title: cells[title] for title in ("Class", "Group", "Training samples")},
            "Test samples": group.tested(c),
            "Accuracy": Number(100 * (group.class_accuracy(c) or 0.0)),
            "Mostly taken for": mostly(c),
        }

    note = f"The classes that {group.label} recognises least, test accuracy in per cent, mean over seeds."
    return table_of(data, "worst", "Where it fails", map(row, worst_classes(data, group)), note)


def mistakes(data: DataSet, group: Group, run: Run) -> Mistakes:
    """Mistaken test images of the worst classes, of one run."""
    try:
        test, known = data_again(run).test, right_and_labels(run)
        if test.kind == "features":
            raise InputError("the data are numbers, not images")
        if known is None or not np.array_equal(known[1], test.labels.numpy()):
            raise InputError("the run did not keep which test samples were right")
    except (InputError, OSError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        return Mistakes(f"Pictures of mistaken test samples are not shown: {why}.", [])
    right, labels = known
    predicted, names, left = _predicted(run, labels), data.first.class_names, MOST_BYTES
    rows = []
    for c in worst_classes(data, group):
        found = []
        for i in np.flatnonzero((labels == c) & ~right)[:EACH].tolist():
            image = _thumbnail(test, i)
            if image is not None and (left := left - len(image)) > 0:
                address = f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
                found.append(Thumbnail(address, None if predicted is None else names[predicted[i]]))
        if found:
            rows.append((names[c], found))
    return Mistakes(f"Mistaken test images of {group.label}, {run.path.name}.", rows)


def data_again(run: Run) -> Dataset:
    """A run's data, where they are still there and the same."""
    from ..data.catalogue import read

    try:
        made = read(run.data, run.config.data.root or "data", **run.options)
    except TypeError:
        raise InputError("the data's options are of another version") from None
    except InputError:
        raise InputError("the data are not where they were when the run was made") from None
    if made.fingerprint != run.fingerprint:
        raise InputError("the data have changed since the run was made")
    return made


def _predicted(run: Run, labels: np.ndarray) -> np.ndarray | None:
    """The predicted labels, where the run's predictions are still beside it."""
    from ..runs.predictions import predictions

    try:
        test = predictions(run.path).test
    except InputError:
        return None
    if test is None or not np.array_equal(test.labels.numpy(), labels):
        return None
    found: np.ndarray = test.logits.argmax(1).numpy()
    return found


def _thumbnail(test: Split, i: int) -> bytes | None:
    """A test sample as a small JPEG; None where its file cannot be read any more."""
    from PIL import Image

    from ..data.dataset import Files
    from ..data.images import open_image

    try:
        if isinstance(test.inputs, Files):
            opened = open_image(test.inputs.read(i))
            pixels = opened.pixels(8 if min(opened.width, opened.height) > 8 * SIDE else 1)
        else:
            pixels = np.moveaxis(np.asarray(test.inputs[i]), 0, -1)
            pixels = np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels
    except (OSError, ValueError):
        return None
    image, made = Image.fromarray(pixels), io.BytesIO()
    scale = SIDE / max(image.size)
    image.resize([max(round(side * scale), 1) for side in image.size]).save(made, "JPEG", quality=70)
    return made.getvalue()
