"""`longtail data check`: read everything, and name each bad file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import cifar, fetch
from .catalogue import bad_images, read
from .dataset import Dataset, Files


@dataclass
class Checked:
    """The data set, if it could be read at all; how many files were read; a sentence for each bad one."""

    data: Dataset | None = None
    files: int = 0
    bad: list[str] = field(default_factory=list)


def check(
    name: str, root: str | Path = "data", progress: Callable[[int, int], None] | None = None, **options: Any
) -> Checked:
    """Read every file of a data set, whose ``options`` are `load`'s.

    CIFAR is also compared with the digest of the official images.
    """
    found = Checked()
    if name in cifar.LAYOUTS:
        _check_cifar(name, Path(root), found)
        if found.bad:
            return found
    found.data = read(name, root, **options)
    splits = [split for split in (found.data.train, found.data.val, found.data.test) if split is not None]
    files = [split.inputs for split in splits if isinstance(split.inputs, Files)]
    total = sum(map(len, files))

    def count() -> None:
        found.files += 1
        if progress:
            progress(found.files, total)

    for part in files:
        found.bad.extend(bad_images(part, thoroughly=True, each=count))
    return found


def _check_cifar(name: str, root: Path, found: Checked) -> None:
    layout = cifar.LAYOUTS[name]
    problem = fetch.verify(name, root)
    for folder, (train, test), reader in (
        (layout.binary, layout.binary_files, cifar.read_binary),
        (layout.python, layout.python_files, cifar.read_python),
    ):
        if not (root / folder).is_dir():
            continue
        for file in (*train, test):
            found.files += 1
            if problem is None:
                continue
            try:
                reader(root / folder / file, layout)
            except InputError as error:
                found.bad.append(str(error))
    if problem and found.files == 0:
        raise InputError(problem)
    if problem and not found.bad:
        found.bad.append(problem)
