"""The page: self-contained, complete, the same bytes each time; and opened in a real browser."""

import base64
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fake_runs import edit, make_run
from longtail.errors import InputError
from longtail.report import page as report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")


class Addresses(HTMLParser):
    """Every address that a page refers to, and the text of its cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.sources += [v for k, v in given.items() if k in ("src", "srcset", "data", "poster", "action")]
        self.sources += [given["href"]] if tag == "link" else []
        self.links += [given["href"]] if tag == "a" else []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A mixture: two data sets, several seeds, a variant, a bad run, hostile names."""
    root = tmp_path_factory.mktemp("mixture")
    names = ["<script>alert(1)</script>", 'ü & "q"', "c|d", "e", "f", "g"]
    for method in ("ce", "logadj", "elm"):
        for seed in range(2):
            make_run(root / f"{method}-{seed}", method, seed=seed, class_names=names, tsne=method != "ce" and seed == 0)
    planar = make_run(root / "moons", "elm", data="planar", counts=(150, 8), dim=2)
    points = json.loads((planar / "summary.json").read_text())["diagnostics"]["embeddings2d"]
    edit(planar, "summary.json", diagnostics={"embeddings2d": points})  # two figures suffice
    make_run(root / "bad", "ce", seed=9).joinpath("summary.json").unlink()
    out = root / "report"
    index = report.build([root], out)
    return out, index.read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_anywhere(made):
    _, page = made
    found = Addresses(page)
    assert found.sources
    assert all(source.startswith("data:") for source in found.sources)
    assert all(link.startswith(("#", "figures/")) for link in found.links)
    assert "default-src 'none'" in unescape(page)
    pictures = [base64.b64decode(s.split(",", 1)[1]) for s in found.sources if s.startswith("data:image/png")]
    assert len(pictures) == page.count("<figure>")
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)


def test_links_lead_somewhere(made):
    out, page = made
    anchors = set(re.findall(r' id="([^"]+)"', page))
    for link in Addresses(page).links:
        assert link[1:] in anchors if link.startswith("#") else (out / link).is_file()


def test_names_are_escaped(made):
    _, page = made
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert Addresses(page).tags.count("script") == 1


def test_every_part_is_on_the_page(made):
    out, page = made
    for words in (
        "Results on digits-lt", "The paper's claims on digits-lt", "Breakdown by head, torso and tail",
        "Embeddings and margins", "Commonest mistakes", "Anchors with a positive", "Theory check", "Every class",
        "Table 1", "What was run", "How to reproduce", "was skipped: it is not finished", "Left out", "no classes",
        "not run",
    ):  # fmt: skip
        assert words in unescape(page), words
    names = {p.name for p in (out / "figures").iterdir()}
    for stem in ("figure2-groups-digits-lt", "figure3-margins-test-digits-lt", "figure3-margins-train-digits-lt",
                 "figure4-dmax-digits-lt", "figure5-tsne-digits-lt", "figure6-margin-cdfs-test-digits-lt",
                 "figure1-embeddings-planar"):  # fmt: skip
        assert {f"{stem}.{kind}" for kind in ("png", "svg", "pdf")} <= names
    assert page.count("<figure>") == len([n for n in names if n.endswith(".png")])
    slugs = {p.stem for p in (out / "tables").glob("*.md")}
    assert slugs == {p.stem for p in (out / "tables").glob("*.csv")} == {p.stem for p in (out / "tables").glob("*.tex")}
    text = (out / "report.md").read_text()
    assert "## digits-lt" in text
    for name in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (out / name).is_file()
    assert {"results-digits-lt", "claims-digits-lt", "per-class-digits-lt", "table1", "runs", "reproduce"} <= slugs


def test_one_bare_run_is_enough_and_the_page_is_reproducible(tmp_path):
    """The five small files only, without embeddings or training predictions: fewer figures, no error."""
    run = make_run(tmp_path / "run", "ce")
    summary = json.loads((run / "summary.json").read_text())
    edit(run, "summary.json", diagnostics={}, theory={}, train=None, tradeoff=None, test={
        k: summary["test"][k] for k in ("balanced", "per_class", "groups")
    })  # fmt: skip
    first, second = (report.build([run], tmp_path / name).read_text() for name in ("a", "b"))
    assert first == second
    assert [p.name for p in (tmp_path / "a" / "figures").glob("*.png")] == ["figure2-groups-digits-lt.png"]
    assert "1 run of 1 configuration" in first
    (tmp_path / "a" / "figures" / "figure5-tsne-old.png").write_text("of an earlier report")
    (tmp_path / "a" / "figures" / "mine.png").write_text("somebody's own")
    report.build([run], tmp_path / "a")
    left = sorted(p.name for p in (tmp_path / "a" / "figures").glob("*.png"))
    assert left == ["figure2-groups-digits-lt.png", "mine.png"]


def test_out_must_be_a_folder(tmp_path):
    run = make_run(tmp_path / "run", "ce")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must name a folder"):
        report.build([run], tmp_path / "file")


def browse(page: Path, profile: Path, *extra: str) -> tuple[str, str]:
    """A page's DOM after its scripts ran, and what the browser logged."""
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
        "--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=3000",
    ]  # fmt: skip
    command = [str(CHROMIUM), *flags, *extra, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


@pytest.mark.browser
@needs_browser
def test_in_a_browser_the_sort_works_without_errors_or_requests(made, tmp_path):
    _, page = made
    probe = """<script>
    const log = [];
    const table = document.getElementById("per-class-digits-lt");
    const column = (i) => [...table.tBodies[0].rows].map((row) => row.cells[i].textContent);
    const click = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
    for (const i of [2, 2, 1, 4]) { click(i); log.push(column(i)); }
    const state = [...table.tHead.rows[0].cells].map((cell) => cell.getAttribute("aria-sort"));
    const broken = [...document.images].filter((image) => !image.complete || !image.naturalWidth).length;
    const fetched = performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 99));
    document.title = JSON.stringify({ log, state, broken, images: document.images.length, fetched });
    </script></body>"""
    copy = tmp_path / "index.html"
    copy.write_text(page.replace("</body>", probe), encoding="utf-8")
    netlog = tmp_path / "net.json"
    dom, messages = browse(copy, tmp_path / "profile", f"--log-net-log={netlog}")
    found = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1]))
    ascending, descending, names, accuracies = found["log"]
    assert ascending == ["6", "12", "30", "60", "120", "200"]
    assert descending == ascending[::-1]
    assert names == ["<script>alert(1)</script>", "c|d", "e", "f", "g", 'ü & "q"']
    values = [float(a) for a in accuracies]
    assert values == sorted(values)
    assert found["state"][4] == "ascending"
    assert found["state"].count("none") == len(found["state"]) - 1
    assert found["broken"] == 0
    assert found["images"] == page.count("<figure>")
    assert [name for name in found["fetched"] if not name.startswith("data:")] == []
    assert "CONSOLE" not in messages, [line for line in messages.splitlines() if "CONSOLE" in line]
    # the browser asks its maker for the time of its own accord; nobody else is asked for anything
    hosts = set(re.findall(r'"url":"(?:https?|wss?|ftp)://([^/"]*)', netlog.read_text(errors="replace")))
    assert {host for host in hosts if not host.endswith((".google.com", ".googleapis.com", ".gvt1.com"))} == set()


@pytest.mark.browser
@needs_browser
def test_the_browser_test_would_notice(tmp_path):
    """An error in a script and a picture from elsewhere are both seen by what the test above looks at."""
    page = tmp_path / "bad.html"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{report.POLICY}">'
    page.write_text(f"<!doctype html>{policy}<img src='http://127.0.0.1:9/x.png'><script>undefinedName()</script>")
    _, messages = browse(page, tmp_path / "profile")
    assert "undefinedName is not defined" in messages
    assert re.search(r"CONSOLE.*Content Security Policy", messages)
