"""`longtail data check`: read everything, and name each bad file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from . import cifar, fetch
from .catalogue import read
from .dataset import Dataset, Files
from .images import open_image, reason


@dataclass
class Checked:
    """The data set, if it could be read at all; how many files were read; a sentence for each bad one."""

    data: Dataset | None = None
    files: int = 0
    bad: list[str] = field(default_factory=list)


def check(name: str, root: str | Path = "data", progress: Callable[[int, int], None] | None = None) -> Checked:
    """Read every file of a data set.

    CIFAR is also compared with the digest of the official images.
    """
    found = Checked()
    if name in cifar.LAYOUTS:
        _check_cifar(name, Path(root), found)
        if found.bad:
            return found
    found.data = read(name, root)
    splits = [split for split in (found.data.train, found.data.val, found.data.test) if split is not None]
    files = [split.inputs for split in splits if isinstance(split.inputs, Files)]
    total = sum(map(len, files))
    for part in files:
        for i in range(len(part)):
            try:
                open_image(part.read(i)).pixels(1)
            except FileNotFoundError:
                found.bad.append(f"{part.where(i)}: there is no such file")
            except Exception as error:  # a broken image can make a decoder raise nearly anything
                found.bad.append(f"{part.where(i)}: {reason(error)}")
            found.files += 1
            if progress:
                progress(found.files, total)
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
