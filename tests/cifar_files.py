"""The real CIFAR for tests: written from the development data, and again in the python layout."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shared import SHARED


def make_cifar(name: str, folder: Path) -> Path:
    script = SHARED / "data" / "make-cifar"
    if not script.is_file():
        pytest.skip("development data (shared/data) is not here")
    subprocess.run([sys.executable, script, folder, name], check=True, capture_output=True)
    return folder


def write_python_layout(binary: Path, folder: Path, classes: int) -> None:
    """The official python files of the images in the official binary ones: dictionaries with bytes as keys."""
    folder.mkdir(parents=True)
    if classes == 100:
        for split in ("train", "test"):
            records = np.fromfile(binary / f"{split}.bin", np.uint8).reshape(-1, 3074)
            content = {
                b"filenames": [b"x.png"] * len(records),
                b"batch_label": b"training batch 1 of 1",
                b"fine_labels": records[:, 1].tolist(),
                b"coarse_labels": records[:, 0].tolist(),
                b"data": records[:, 2:],
            }
            dump(content, folder / split)
        names = (binary / "fine_label_names.txt").read_text().split()
        dump({b"fine_label_names": [name.encode() for name in names]}, folder / "meta")
        return
    for k in range(6):
        name = f"data_batch_{k + 1}" if k < 5 else "test_batch"
        records = np.fromfile(binary / f"{name}.bin", np.uint8).reshape(-1, 3073)
        dump({b"labels": records[:, 0].tolist(), b"data": records[:, 1:]}, folder / name)
    names = (binary / "batches.meta.txt").read_text().split()
    dump({b"label_names": [name.encode() for name in names], b"num_cases_per_batch": 10000}, folder / "batches.meta")


def dump(content: object, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=3)
