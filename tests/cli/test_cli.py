"""The command as a user meets it: help that helps, exit codes, no tracebacks, nothing imported for nothing."""

import json
import subprocess
import sys

import pytest


def process(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "longtail", *args], capture_output=True, text=True)


def test_without_arguments_it_shows_help_and_exits_2():
    done = process()
    assert done.returncode == 2
    assert "compare" in done.stdout
    assert "Traceback" not in done.stderr


def test_help_and_version():
    assert process("--help").returncode == 0
    version = process("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("longtail 0.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian", "elm"], "No such command 'trian'"),
        (["methods", "--jsn"], "No such option"),
        (["methods", "elmm"], "did you mean 'elm'?"),
        (["train"], "Missing argument"),
        (["report", "no-such-folder"], "no-such-folder"),
        (["evaluate", "no-such-file.npz"], "no-such-file.npz"),
        (["train", "elm", "--data", "no-such-data"], "no-such-data"),
        (["train", "elm", "--set", "lamb=1"], "did you mean 'lam'?"),
        (["train", "elm", "--set", "lam"], "lam"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(args, message, tmp_path, longtail, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = longtail(*args)
    assert code == 2
    assert message in err
    assert not any(tmp_path.iterdir()), "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import longtail", ["torch", "sklearn", "matplotlib", "typer", "PIL"]),
        ("from longtail import ELM, ClassCounts, methods", ["sklearn", "matplotlib", "typer", "PIL", "torch._dynamo"]),
        ("import longtail.cli", ["torch", "sklearn", "matplotlib", "numpy"]),
        (
            "import numpy as np; from longtail.estimator import LongTailClassifier; "
            "LongTailClassifier(epochs=1).fit(np.eye(12), np.arange(12) % 3)",
            ["matplotlib", "typer", "PIL", "torch._dynamo"],
        ),
    ],
)
def test_nothing_is_imported_for_nothing(code, absent):
    check = f"{code}; import sys; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_methods_prints_the_table_and_one_method(longtail):
    table = json.loads(longtail("methods", "--json")[1])
    assert table["elm"] == dict.fromkeys(table["elm"], True)
    assert "✓" in longtail("methods")[1]
    one = longtail("methods", "elm")[1]
    assert "--set lam=0.01" in one
    assert "for imagenet-lt: --set alpha=10*prior^0.5 --set lam=0.001" in one
