"""Arrows between rooms go down only: a module imports from rooms above its own in this list, lazily or not."""

import ast
from pathlib import Path

import longtail

SOURCE = Path(longtail.__file__).parent
ROOMS = [
    "errors",
    "_version",
    "numeric",
    "plugins",
    "counts",
    "margins",
    "knobs",
    "losses",
    "plan",
    "methods",
    "probabilities",
    "models",
    "data",
    "evaluate",
    "priors",
    "posthoc",
    "summary",
    "runs",
    "embed",
    "engine",
    "report",
    "inference",
    "export",
    "estimator",
    "cli",
]
PACKAGE = {"ClassCounts": "counts", "methods": "methods"}  # what `from longtail import …` may name


def arrows():
    """(room, room imported, where) of every import within the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts in (("__init__",), ("__main__",)):
            continue
        package = parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [a.name.split(".") for a in node.names]
                targets = [n[1:] for n in names if n[0] == "longtail" and len(n) > 1]
            elif isinstance(node, ast.ImportFrom):
                module = tuple(node.module.split(".")) if node.module else ()
                if node.level:
                    module = package[: len(package) - node.level + 1] + module
                elif module[:1] != ("longtail",):
                    continue
                else:
                    module = module[1:]
                targets = [module] if module else [(PACKAGE.get(a.name, a.name),) for a in node.names]
            else:
                continue
            for target in targets:
                yield (
                    parts[0],
                    "_version" if target[0] == "__version__" else target[0],
                    f"{'/'.join(parts)}.py:{node.lineno}",
                )


def test_every_module_has_a_room():
    assert {a for a, _, _ in arrows()} | {b for _, b, _ in arrows()} <= set(ROOMS)


def test_no_arrow_goes_up():
    upward = [f"{where} imports {b}" for a, b, where in arrows() if ROOMS.index(b) > ROOMS.index(a)]
    assert not upward


def test_losses_know_numbers_and_counts_alone():
    assert {b for a, b, _ in arrows() if a == "losses"} <= {"losses", "counts", "margins", "errors", "numeric"}


def test_every_public_name_is_there():
    for name in longtail.__all__:
        assert getattr(longtail, name) is not None
