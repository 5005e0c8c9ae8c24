"""The documentation is true: its code runs, its commands exist, its cards name every method and knob.

Python blocks of a page run in order and share their names. Lines of shell blocks that call `longtail` run in order in
the same folder, with one epoch and one seed; after `<!-- test: parse -->` they are only checked for commands and
options that exist, because they need data or machines that a test has not got.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from longtail import margins, methods

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.read_text().strip()]
# The page of results is generated, and its commands reproduce runs of hours.
PARSE_ONLY = {"results.md"}
OTHER_COMMANDS = {"git", "cd", "pip", "python3", "python", "."}

BLOCK = re.compile(r"(<!-- test: parse -->\n)?^( *)```(\w+)[^\n]*\n(.*?)^\2```", re.M | re.S)


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
        arguments = smaller(arguments, {"--epochs": "1"} | ({"--seeds": "1"} if arguments[0] == "compare" else {}))
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
def desk(tmp_path, monkeypatch):
    """A folder with what the pages speak of: class folders of real digits, new images, a CSV, features."""
    from PIL import Image
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
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
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python" and block.code.startswith("--8<--"):
            example = ROOT / block.code.split('"')[1]
            assert example.parent == ROOT / "examples", "test_examples.py runs these"
            assert example.is_file(), where
        elif block.language == "python":
            exec(compile(block.code, where, "exec"), names)
        elif block.language in ("bash", "sh", "shell", "console"):
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


def test_the_loss_of_twenty_lines_keeps_the_contract(desk):
    """Exact against a loop, right gradients, any dtype, permutations, degenerate batches, bad input."""
    names: dict = {"__name__": "docs"}
    code = next(b.code for b in blocks(ROOT / "docs" / "add-a-loss.md") if b.language == "python")
    exec(compile(code, "add-a-loss.md", "exec"), names)
    body = code[code.index("class ") :].strip().splitlines()
    assert len([line for line in body if line.strip()]) <= 20
    contract(names["Ring"])


def contract(loss) -> None:
    from longtail import ClassCounts
    from longtail.errors import InputError
    from longtail.margins import Power

    torch.manual_seed(0)
    counts = ClassCounts([500, 50, 5, 0])
    term = loss(counts, radius=Power(0.25, of="count"))
    labels = torch.tensor([0, 0, 1, 2, 2, 3])
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    naive = [(float(v.norm()) - float(counts.n[y]) ** 0.25) ** 2 for v, y in zip(x.detach(), labels)]
    torch.testing.assert_close(term((None, x), labels), torch.tensor(naive, dtype=torch.float64), rtol=1e-9, atol=0)
    assert torch.autograd.gradcheck(lambda e: term((None, e), labels), (x,))
    order = torch.randperm(6)
    torch.testing.assert_close(term((None, x[order]), labels[order]), term((None, x), labels)[order])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert term((None, x.detach().to(dtype)), labels).dtype == torch.float32
    for degenerate in (torch.zeros(6, 5), torch.full((6, 5), 1e3), torch.ones(6, 5)):
        e = degenerate.requires_grad_()
        term((None, e), labels).sum().backward()
        assert bool(torch.isfinite(e.grad).all())
    assert term((None, torch.zeros(0, 5)), labels[:0]).shape == (0,)
    for outputs, wrong in (((None, None), labels), ((None, x), labels[:2]), ((None, x), labels + 1)):
        with pytest.raises(InputError):
            term(outputs, wrong)
