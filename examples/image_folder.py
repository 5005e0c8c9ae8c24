"""From a folder of images to predictions, with the command alone: real digits written as long-tailed class folders."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write_folders(folder: Path, counts: list[int], new: Path, held_back: int = 3, side: int = 32) -> None:
    """``folder/<class>/*.png`` with so many images a class, and some that nobody trains on in ``new``."""
    pixels, labels = load_digits(return_X_y=True)
    new.mkdir(parents=True, exist_ok=True)
    for label, count in enumerate(counts):
        images = (pixels[labels == label] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
        (folder / f"digit-{label}").mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images[: count + held_back]):
            picture = Image.fromarray(image).resize((side, side))
            picture.save(folder / f"digit-{label}" / f"{i}.png" if i < count else new / f"digit-{label}-{i}.png")


def longtail(*arguments: object) -> None:
    print("$ longtail", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "longtail", *map(str, arguments)], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        write_folders(here / "digits", [40, 20, 10], here / "new")
        # Small images and a small network: seconds. Leave out --option, --model and --epochs for photographs.
        small = ("--option", "size=16", "--model", "resnet20", "--epochs", 5, "--batch-size", 16)
        longtail("train", "elm", "--data", here / "digits", *small, "--out", here / "elm")
        longtail("predict", here / "elm", here / "new")
        longtail("report", here / "elm", "--out", here / "report")
        # longtail compare --data digits --methods ce,logadj,elm    trains several, with a table and the report
