"""What the chosen model gets wrong: its worst classes, and pictures of mistaken test images where data are images."""

from __future__ import annotations

import base64
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..runs.read import Run
from .comparison import right_and_labels
from .grouping import DataSet, Group, slug
from .table import Column, Percent, Stat, Table

if TYPE_CHECKING:
    from ..data.dataset import Split

CLASSES, EACH = 6, 6
SIDE = 64
MOST_BYTES = 150_000  # of all thumbnails, before base64 adds a third


@dataclass(frozen=True)
class Thumbnail:
    """A mistaken test image as the address of a small picture, and what it was taken for (None: not known)."""

    image: str
    predicted: str | None


@dataclass(frozen=True)
class Mistakes:
    """Thumbnails by class, and a sentence that says what they are, or why there are none."""

    said: str
    rows: list[tuple[str, list[Thumbnail]]]


def worst(data: DataSet, group: Group) -> list[int]:
    """Labels of the classes with the lowest test accuracy, mean over seeds."""
    means = {c: Stat.of([run.summary.test.per_class[c] for run in group.runs]) for c in range(data.counts.num_classes)}
    known = [(stat.mean, c) for c, stat in means.items() if stat is not None and stat.mean < 1]
    return [c for _, c in sorted(known)[:CLASSES]]


def table(data: DataSet, group: Group) -> Table | None:
    """The worst classes of one configuration and what they are taken for."""
    taken: dict[int, Counter[int]] = {}
    for run in group.runs:
        for label, predicted, n in run.summary.test.confusion.top:
            taken.setdefault(label, Counter())[predicted] += n
    names, first = data.first.class_names, group.first

    def mostly(c: int) -> str | None:
        found = taken.get(c, Counter()).most_common(2)
        return ", ".join(names[predicted] for predicted, _ in found) or None

    columns: list[Column[int]] = [
        Column("Class", lambda c: names[c]),
        Column("Group", lambda c: data.class_group[c]),
        Column("Training samples", lambda c: data.first.split.counts[c]),
        Column("Test samples", lambda c: (first.summary.test.per_class_n or {c: None})[c]),
        Column("Accuracy", lambda c: Percent(group.mean(lambda run: run.summary.test.per_class[c]) or 0.0)),
        Column("Mostly taken for", mostly),
    ]
    classes = worst(data, group)
    note = f"The classes that {group.label} recognises least, test accuracy in per cent, mean over seeds."
    return Table.of(f"worst-{slug(data.title)}", "Where it fails", classes, columns, note) if classes else None


def pictures(data: DataSet, group: Group, run: Run) -> Mistakes:
    """Mistaken test images of the worst classes, of one run."""
    try:
        test = _test_split(run)
        known = right_and_labels(run)
        if known is None or not np.array_equal(known[1], test.labels.numpy()):
            raise InputError("the run did not keep which test samples were right")
    except (InputError, OSError) as error:
        return Mistakes(
            f"Pictures of mistaken test samples are not shown: {str(error).splitlines()[0].rstrip('.')}.", []
        )
    right, labels = known
    predicted, names, left = _predicted(run, labels), data.first.class_names, MOST_BYTES
    rows = []
    for c in worst(data, group):
        found = []
        for i in np.flatnonzero((labels == c) & ~right)[:EACH].tolist():
            image = _thumbnail(test, i)
            if image is not None and (left := left - len(image)) > 0:
                address = f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
                found.append(Thumbnail(address, None if predicted is None else names[predicted[i]]))
        if found:
            rows.append((names[c], found))
    return Mistakes(f"Mistaken test images of {group.label}, {run.path.name}.", rows)


def _test_split(run: Run) -> Split:
    from ..data.catalogue import read

    try:
        made = read(run.data, run.config.data.root or "data", **run.options)
    except TypeError:
        raise InputError("the data's options are of another version") from None
    except InputError:
        raise InputError("the data are not where they were when the run was made") from None
    if made.fingerprint != run.fingerprint:
        raise InputError("the data have changed since the run was made")
    if made.test.kind == "features":
        raise InputError("the data are numbers, not images")
    return made.test


def _predicted(run: Run, labels: np.ndarray) -> np.ndarray | None:
    """The predicted labels, where the run's predictions are still beside it."""
    from ..runs.tensors import predictions

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
