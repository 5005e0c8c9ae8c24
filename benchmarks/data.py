"""How fast data is fed, as ratios taken in one run on one thread.

    python benchmarks/data.py [--root data]

1. in-memory CIFAR batches with crop and flip, against a DataLoader over PIL images with the same transforms;
2. JPEG files of 500 × 400, random resized crop and flip, against plain `Image.open` and resized crop;
3. start-up of a list of 437,513 lines (the size of iNaturalist 2018's training list): seconds and memory.

The two sides of a ratio are timed in turn, round after round, and the median of the rounds' ratios is printed, so
that other work on the machine hits both alike. With --root the real CIFAR-100 is used; otherwise random pixels,
which cost the same.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longtail.data import Files, Loader, Split, load

MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


def ratio(ours: Callable[[], int], theirs: Callable[[], int], rounds: int) -> tuple[float, float, float]:
    """Median of (our rate / their rate) over rounds, and the two median rates in images a second."""

    def rate(run: Callable[[], int]) -> float:
        start = time.process_time()  # of this thread's work, not of what else the machine does
        images = run()
        return images / (time.process_time() - start)

    ours(), theirs()  # warm up
    rates = [(rate(ours), rate(theirs)) for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*rates))
    return statistics.median(a / b for a, b in rates), mine, other


def to_tensor(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
    return pixels.sub(torch.tensor(MEAN).view(3, 1, 1)).div(torch.tensor(STD).view(3, 1, 1))


class PilCifar(Dataset):
    """What everybody writes: one PIL image at a time."""

    def __init__(self, split: Split) -> None:
        self.images = split.inputs.permute(0, 2, 3, 1).numpy()
        self.labels = split.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[i])
        padded = Image.new("RGB", (40, 40))
        padded.paste(image, (4, 4))
        left, top = random.randrange(9), random.randrange(9)
        image = padded.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_tensor(image), self.labels[i]


def count(batches: object) -> int:
    return sum(len(batch[0]) for batch in batches)  # type: ignore[attr-defined]


def cifar(root: str | None) -> None:
    if root:
        split = load("cifar100-lt", root=root).train
    else:
        pixels = torch.randint(0, 256, (10_847, 3, 32, 32), dtype=torch.uint8)
        split = Split(pixels, torch.zeros(10_847, dtype=torch.long), torch.arange(10_847), MEAN, STD)
    loader = Loader(split, 128)
    plain = DataLoader(PilCifar(split.take(torch.arange(1280))), 128, shuffle=True)
    gain, mine, other = ratio(lambda: count(loader.epoch(0)), lambda: count(plain), rounds=9)
    print(
        f"CIFAR, crop + flip, batch 128: {mine:,.0f} images/s, PIL + DataLoader {other:,.0f}: {gain:.1f} × (want ≥ 25)"
    )


class PilFiles(Dataset):
    """`Image.open`, a random resized crop, flip, tensor."""

    def __init__(self, files: Files) -> None:
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = Image.open(self.files[i]).convert("RGB")
        width, height = image.size
        for _ in range(10):
            area, shape = width * height * random.uniform(0.08, 1), (4 / 3) ** random.uniform(-1, 1)
            w, h = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
            if w <= width and h <= height:
                break
        else:
            w, h = width, height
        left, top = random.randint(0, width - w), random.randint(0, height - h)
        image = image.crop((left, top, left + w, top + h)).resize((224, 224), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_tensor(image), 0


def photograph(rng: np.random.RandomState) -> Image.Image:
    """Noise whose spectrum falls off as that of photographs does (1/f)."""
    rows, columns = np.fft.fftfreq(400)[:, None], np.fft.rfftfreq(500)
    amplitude = 1 / np.maximum(np.hypot(rows, columns), 1 / 500)
    base = np.fft.irfft2(amplitude * np.fft.rfft2(rng.randn(400, 500)), (400, 500))
    colour = np.fft.irfft2(amplitude**1.5 * np.fft.rfft2(rng.randn(3, 400, 500)), (400, 500))
    pixels = base[..., None] / base.std() + 0.5 * np.moveaxis(colour / colour.std(), 0, 2)
    return Image.fromarray((pixels * 45 + 120).clip(0, 255).astype(np.uint8))


def jpeg(quality: int) -> None:
    try:
        import simplejpeg  # noqa: F401

        decoder = "simplejpeg"
    except (ImportError, RuntimeError, OSError):
        decoder = "Pillow"
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.RandomState(0)
        for k in range(64):
            photograph(rng).save(Path(folder, f"{k}.jpg"), quality=quality)
        size = statistics.mean(path.stat().st_size for path in Path(folder).iterdir())
        files = Files([f"{k}.jpg" for k in range(64)], folder)
        split = Split(files, torch.zeros(64, dtype=torch.long), torch.arange(64), MEAN, STD)
        loader, plain = Loader(split, 32), DataLoader(PilFiles(files), 32, shuffle=True)
        gain, mine, other = ratio(lambda: count(loader.epoch(0)), lambda: count(plain), rounds=15)
    print(
        f"JPEG 500 × 400, quality {quality} ({size / 1000:.0f} kB), decoded by {decoder}: {mine:,.0f} images/s a core, "
        f"Image.open + resized crop {other:,.0f}: {gain:.2f} × (want ≥ 1.5)"
    )


STARTUP = """
import sys, time
def memory():  # not ru_maxrss, which starts at the parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
start = time.perf_counter()
from longtail.data import load
imported, cpu = time.perf_counter(), time.process_time()
base = memory()
data = load("inat2018", root=sys.argv[1])
done, cpu = time.perf_counter(), time.process_time() - cpu
peak = memory()
assert len(data.train) == 437_513 and data.num_classes == 8142
print(f"list of 437,513 lines: {done - imported:.2f} s ({cpu:.2f} s of work; want < 3 s), "
      f"after {imported - start:.2f} s of imports; "
      f"peak {peak:.0f} MB, of which imports {base:.0f} MB (want < 300 MB)")
"""


def startup() -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "inat2018")
        folder.mkdir()
        rng = random.Random(0)
        for file, lines in (("iNaturalist18_train.txt", 437_513), ("iNaturalist18_val.txt", 24_426)):
            labels = [rng.randrange(8142) for _ in range(lines)]
            text = "".join(f"train_val2018/Plantae/{y}/{rng.getrandbits(128):032x}.jpg {y}\n" for y in labels)
            (folder / file).write_text(text)
            first = folder / text.split(" ", 1)[0]
            first.parent.mkdir(parents=True, exist_ok=True)
            first.touch()
        subprocess.run([sys.executable, "-c", STARTUP, root], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder with the real CIFAR-100")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cifar(arguments.root)
    jpeg(quality=75)  # Pillow's default
    jpeg(quality=90)
    startup()


if __name__ == "__main__":
    main()
