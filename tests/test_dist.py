"""What `make dist` built: all that a user needs and nothing else. Skipped where nothing was built."""

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIST = os.environ.get("LONGTAIL_DIST")
pytestmark = pytest.mark.skipif(DIST is None, reason="make dist builds a wheel and an sdist and runs this")
PACKAGE = {
    str(p.relative_to(ROOT / "src"))
    for p in (ROOT / "src" / "longtail").rglob("*")
    if p.is_file() and p.suffix != ".pyc"
}


def built(ending: str) -> Path:
    (path,) = Path(str(DIST)).glob(f"*{ending}")
    return path


def test_the_wheel_is_the_package_and_nothing_else() -> None:
    with zipfile.ZipFile(built(".whl")) as wheel:
        sizes = {info.filename: info.file_size for info in wheel.infolist()}
    assert {name for name in sizes if ".dist-info/" not in name} == PACKAGE
    assert {"longtail/py.typed", "longtail/report/page.css", "longtail/report/page.js"} <= set(sizes)
    assert any(name.endswith(".j2") for name in sizes)
    assert any(name.endswith("LICENSE") for name in sizes)
    assert max(sizes.values()) < 100_000
    assert sum(sizes.values()) < 2_000_000


def test_the_sdist_has_sources_and_tests_but_no_results_and_no_figures() -> None:
    with tarfile.open(built(".tar.gz")) as sdist:
        sizes = {m.name.partition("/")[2]: m.size for m in sdist.getmembers() if m.isfile()}
    assert {f"src/{name}" for name in PACKAGE} <= set(sizes)
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "tests/test_dist.py"} <= set(sizes)
    assert {name.split("/")[0] for name in sizes if "/" in name} == {"src", "tests"}
    assert max(sizes.values()) < 200_000
    assert sum(sizes.values()) < 5_000_000
