"""The documentation is true: its code runs, its commands exist, its cards name every method and knob.

Python blocks of a page run in order and share their names. Lines of shell blocks that call `longtail` run in order in
the same folder, with one epoch and one seed; after `<!-- test: parse -->` they are only checked for commands and
options that exist, because they need data or machines that a test has not got.
"""

import importlib
import itertools
import math
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import loss_cases
from longtail import margins, methods
from longtail.margins import Power

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.read_text().strip()]
# The page of results is generated, and its commands reproduce runs of hours.
PARSE_ONLY = {"results.md"}
OTHER_COMMANDS = {"git", "cd", "pip", "python3", "python", "."}

BLOCK = re.compile(r"(<!-- test: parse -->\n)?^( *)```(\w*)[^\n]*\n(.*?)^\2```$", re.M | re.S)


class Block(NamedTuple):
    language: str
    code: str
    line: int
    parse_only: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(m[3], re.sub(f"^{m[2]}", "", m[4], flags=re.M), text[: m.start()].count("\n") + 2, bool(m[1]))
        for m in BLOCK.finditer(text)
    ]


def commands(code: str) -> list[list[str]]:
    lines = code.replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in line.split("#")[0].removeprefix("$ ").split("&&")]
    return [shlex.split(part) for part in parts if part]


def arguments_of(command: list[str]) -> list[str] | None:
    """What `longtail` is given, also as `python -m longtail` or under torchrun; None for other programs."""
    if command[0] == "longtail" or command[0].endswith("/longtail"):
        return command[1:]
    if "-m" in command and command[command.index("-m") + 1] == "longtail":
        return command[command.index("-m") + 2 :]
    return None


def parse(arguments: list[str]) -> None:
    """Raises where a command or an option does not exist."""
    import typer.main

    from longtail.cli import app

    command = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments:
        assert arguments[0] in command.commands, f"longtail has no command {arguments[0]!r}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("longtail", list(arguments))


def run(arguments: list[str]) -> None:
    from longtail.cli import main

    if arguments and arguments[0] in ("train", "compare", "sweep"):
        arguments = smaller(arguments, {"--epochs": "1"} | ({} if arguments[0] == "train" else {"--seeds": "1"}))
        if "photos" in arguments:
            arguments = [*arguments, "--option", "size=32"]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0, f"longtail {shlex.join(arguments)} exits with {done.value.code}"


def smaller(arguments: list[str], options: dict[str, str]) -> list[str]:
    for name, value in options.items():
        if name in arguments:
            arguments = [value if i and arguments[i - 1] == name else a for i, a in enumerate(arguments)]
        else:
            arguments = [*arguments, name, value]
    return arguments


@pytest.fixture
def desk(tmp_path, monkeypatch, no_figures, no_workers):
    """A folder with what the pages speak of: class folders of real digits, new images, a CSV, features."""
    from PIL import Image
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    pixels, labels = load_digits(return_X_y=True)
    rows = ["image,label"]
    (tmp_path / "new").mkdir()
    for label, count in enumerate((12, 8, 6)):
        (tmp_path / "photos" / f"digit-{label}").mkdir(parents=True)
        for i, image in enumerate(pixels[labels == label][: count + 1].reshape(-1, 8, 8)):
            path = f"photos/digit-{label}/{i}.png" if i < count else f"new/{label}.png"
            Image.fromarray((image * 255 / 16).astype(np.uint8)).resize((16, 16)).save(tmp_path / path)
            if i < count:
                rows.append(f"{path},digit-{label}")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    np.savez(tmp_path / "features.npz", features=pixels[:60].astype(np.float32) / 16, labels=labels[:60])
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_code_block_runs(page, desk):
    names: dict = {"__name__": "docs"}
    code = ""
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python" and block.code.startswith("# examples/"):
            # Shown as it is, or a part of it: test_examples.py runs the file
            name, _, shown = block.code.partition("\n")
            example = (ROOT / name.removeprefix("# ")).read_text()
            assert all(part.strip() in example for part in shown.split("# …\n")), where
        elif block.language == "python":
            exec(compile(block.code, where, "exec"), names)
            code += block.code
        elif block.language in ("bash", "sh", "shell", "console", ""):
            if "my_losses:" in block.code:  # the file that the page has its reader write
                (desk / "my_losses.py").write_text(code)
            for command in commands(block.code):
                arguments = arguments_of(command)
                if arguments is None:
                    check_other(command)
                elif block.parse_only or page.name in PARSE_ONLY or command[0] == "torchrun":
                    parse(arguments)
                else:
                    run(arguments)
        else:
            assert block.language in ("text", "json"), f"{where}: nothing checks a block of {block.language!r}"


def check_other(command: list[str]) -> None:
    if command[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(command[1:]) <= set(targets)
    else:
        assert command[0] in OTHER_COMMANDS, f"nothing checks the command {shlex.join(command)!r}"


CARDS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##|\Z)", (ROOT / "docs" / "methods.md").read_text(), re.M | re.S))


def test_there_is_one_card_a_method():
    assert sorted(CARDS) == sorted(methods.names())


@pytest.mark.parametrize("name", methods.names())
def test_a_card_is_complete_and_its_defaults_are_right(name):
    card = CARDS[name]
    for part in ("```text", "**From:**", "**Knobs:**", "**Measured:**", "**Where we differ:**"):
        assert part in card
    defaults = methods.knobs(name)
    told = dict(re.findall(r"`(\w+)` \(`([^`]+)`\)", card.split("**Knobs:**")[1]))
    assert sorted(told) == sorted(defaults)
    for knob, default in defaults.items():
        said = margins.parse(told[knob]) if isinstance(default, margins.PerClass) else told[knob]
        assert said == (default if isinstance(default, margins.PerClass) else str(default))


def test_pages_name_no_machine():
    for page in (*PAGES, *ROOT.glob("examples/*.py")):
        assert not re.search(r"(?<![\w.])/(work|tmp|opt|home|root|usr)/", page.read_text()), page


def test_the_loss_of_twenty_lines_keeps_the_contract(tmp_path, monkeypatch):
    """The page's class in a module of a user's own, put through what every term of the library goes through."""
    code = next(b.code for b in blocks(ROOT / "docs" / "add-a-loss.md") if b.language == "python")
    lines = code[code.index("class ") :].splitlines()
    assert len([line for line in lines if line.strip()]) <= 20
    (tmp_path / "my_losses.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ring = importlib.import_module("my_losses").Ring

    contract = importlib.import_module("losses.test_contract")
    radius = [n**0.25 for n in loss_cases.N]
    case = loss_cases.Case(
        "ring",
        lambda: ring(loss_cases.COUNTS, radius=Power(0.25, of="count")),
        lambda x, y: [(math.hypot(*row) - radius[label]) ** 2 for row, label in zip(x, y)],
    )
    every, first = contract.CASES, [c for c in contract.CASES if c.first]
    ran = 0
    for name, test in vars(contract).items():
        axes = {m.args[0]: m.args[1] for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"}
        if name.startswith("test_") and axes.pop("case", None) in (every, first):
            for values in itertools.product(*axes.values()):
                test(case=case, **dict(zip(axes, values)))
            ran += 1
    assert ran >= 10
