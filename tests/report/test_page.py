"""The page: self-contained, complete, the same bytes each time; and opened in a real browser."""

import base64
import json
import re
import shutil
import subprocess
import tarfile
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fake_runs import edit, make_run
from longtail.errors import InputError
from longtail.report import document
from longtail.report import page as report
from longtail.runs.read import find

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
    assert all(link.startswith(("#", "figures/", "tables/")) for link in found.links)
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


def test_every_part_is_on_the_page_in_the_order_of_somebody_s_questions(made):
    out, page = made
    words = (
        "Take ", "Test accuracy of every class on digits-lt", "Head, torso and tail", "Results on digits-lt",
        "Head against tail", "Training", "Where it fails", "What next", "Laboratory",
        "Breakdown by head, torso and tail", "Every class", "Commonest mistakes", "Embeddings and margins",
        "Anchors with a positive", "Theory check", "What was run", "How to reproduce",
        "was skipped: it is not finished",
    )  # fmt: skip
    text = unescape(page[page.index("<main") :])
    places = [text.index(word) for word in words]
    assert places == sorted(places), [word for word, next_ in zip(words, sorted(places)) if text.index(word) != next_]
    assert "The paper's claims" not in text  # the data are not the paper's
    assert "not shown: the data are not where they were" in text or "have changed" in text
    names = {p.name for p in (out / "figures").iterdir()}
    for stem in ("classes-digits-lt", "tradeoff-digits-lt", "training-digits-lt", "figure2-groups-digits-lt",
                 "figure3-margins-test-digits-lt", "figure4-dmax-digits-lt", "figure5-tsne-digits-lt",
                 "figure6-margin-cdfs-test-digits-lt", "figure1-embeddings-planar"):  # fmt: skip
        assert {f"{stem}.{kind}" for kind in ("png", "svg", "pdf")} <= names
    assert page.count("<figure>") == len([n for n in names if n.endswith(".png")])
    slugs = {p.stem for p in (out / "tables").glob("*.md")}
    assert slugs == {p.stem for p in (out / "tables").glob("*.csv")} == {p.stem for p in (out / "tables").glob("*.tex")}
    assert {"results-digits-lt", "worst-digits-lt", "per-class-digits-lt", "runs", "reproduce"} <= slugs
    text = (out / "report.md").read_text()
    assert "## digits-lt" in text
    for name in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (out / name).is_file()


def test_every_picture_has_an_alternative_text_and_every_control_a_name(made):
    _, page = made
    assert len(re.findall(r"<img [^>]*alt=\"[^\"]{10,}", page)) == page.count("<img ")
    for button in re.findall(r"<button[^>]*>(.*?)</button>", page, re.S):
        assert button.strip()
    assert '<html lang="en">' in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_page_stays_small_and_the_papers_claims_come_if_asked(made):
    out, page = made
    assert len(page.encode()) < 2_000_000
    asked = report.make(find([out.parent]), paper_claims=True)
    assert {"claims-digits-lt", "table1", "coverage"} <= {table.slug for table in asked.tables}


def test_one_bare_run_is_enough_and_the_page_is_reproducible(tmp_path, no_figures):
    """The five small files only, without embeddings or training predictions: fewer figures, no error."""
    run = make_run(tmp_path / "run", "ce")
    summary = json.loads((run / "summary.json").read_text())
    edit(run, "summary.json", diagnostics={}, theory={}, train=None, tradeoff=None, test={
        k: summary["test"][k] for k in ("balanced", "per_class", "groups")
    })  # fmt: skip
    first, second = (report.build([run], tmp_path / name).read_text() for name in ("a", "b"))
    assert first == second
    drawn = ["classes-digits-lt.png", "figure2-groups-digits-lt.png", "training-digits-lt.png"]
    assert sorted(p.name for p in (tmp_path / "a" / "figures").glob("*.png")) == drawn
    assert "1 run of 1 configuration" in first
    (tmp_path / "a" / "figures" / "figure5-tsne-old.png").write_text("of an earlier report")
    (tmp_path / "a" / "figures" / "mine.png").write_text("somebody's own")
    report.build([run], tmp_path / "a")
    left = sorted(p.name for p in (tmp_path / "a" / "figures").glob("*.png"))
    assert left == sorted([*drawn, "mine.png"])


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


def run_in_browser(page: str, folder: Path, probe: str, *extra: str) -> tuple[dict, str]:
    """What a script finds on the page (it sets ``found``), and what the browser logged."""
    copy = folder / "index.html"
    script = f"<script>let found; {probe}; document.title = JSON.stringify(found);</script></body>"
    copy.write_text(page.replace("</body>", script), encoding="utf-8")
    dom, messages = browse(copy, folder / "profile", *extra)
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1])), messages


@pytest.mark.browser
@needs_browser
def test_in_a_browser_tables_sort_and_sections_open_without_errors_or_requests(made, tmp_path):
    _, page = made
    probe = """
    const log = [];
    const table = document.getElementById("per-class-digits-lt");
    const column = (i) => [...table.tBodies[0].rows].map((row) => row.cells[i].textContent);
    const click = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
    for (const i of [2, 2, 1, 4]) { click(i); log.push(column(i)); }
    const closed = table.closest("details").open;
    location.hash = "#section-per-class-digits-lt";
    dispatchEvent(new Event("hashchange"));
    found = {
      log, closed, opened: table.closest("details").open,
      state: [...table.tHead.rows[0].cells].map((cell) => cell.getAttribute("aria-sort")),
      broken: [...document.images].filter((image) => !image.complete || !image.naturalWidth).length,
      images: document.images.length,
      copied: document.querySelector("button.copy[data-copy]").dataset.copy.split("\\n")[0],
      fetched: performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 99)),
    }"""
    netlog = tmp_path / "net.json"
    found, messages = run_in_browser(page, tmp_path, probe, f"--log-net-log={netlog}")
    ascending, descending, names, accuracies = found["log"]
    assert ascending == ["6", "12", "30", "60", "120", "200"]
    assert descending == ascending[::-1]
    assert names == ["<script>alert(1)</script>", "c|d", "e", "f", "g", 'ü & "q"']
    values = [float(a) for a in accuracies]
    assert values == sorted(values)
    assert found["state"][4] == "ascending"
    assert found["state"].count("none") == len(found["state"]) - 1
    assert (found["closed"], found["opened"]) == (False, True)
    assert found["copied"].startswith("Method,")
    assert found["broken"] == 0
    assert found["images"] == page.count("<figure>")
    assert [name for name in found["fetched"] if not name.startswith("data:")] == []
    assert "CONSOLE" not in messages, [line for line in messages.splitlines() if "CONSOLE" in line]
    # the browser asks its maker for the time of its own accord; nobody else is asked for anything
    hosts = set(re.findall(r'"url":"(?:https?|wss?|ftp)://([^/"]*)', netlog.read_text(errors="replace")))
    assert {host for host in hosts if not host.endswith((".google.com", ".googleapis.com", ".gvt1.com"))} == set()


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("size", ["390,800", "1280,800"])
def test_the_first_screen_holds_the_answer_and_nothing_is_wider_than_the_screen(size, made, tmp_path):
    _, page = made
    probe = """
    for (const details of document.querySelectorAll("main details")) details.open = true;
    const wide = [...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll"))
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + " " + e.className);
    const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
    found = { wide, page: document.documentElement.scrollWidth, width: innerWidth, height: innerHeight,
              said: bottom(".said"), shown: bottom(".shown img"),
              contents: document.querySelector(".contents").open }"""
    found, _ = run_in_browser(page, tmp_path, probe, f"--window-size={size}", "--hide-scrollbars")
    assert found["wide"] == []
    assert found["page"] <= found["width"]
    assert found["said"] <= 800
    if size.startswith("1280"):
        assert found["shown"] <= 800
    assert found["contents"] == size.startswith("1280")


@pytest.mark.browser
@needs_browser
def test_the_browser_test_would_notice(tmp_path):
    """An error in a script and a picture from elsewhere are both seen by what the test above looks at."""
    page = tmp_path / "bad.html"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{document.POLICY}">'
    page.write_text(f"<!doctype html>{policy}<img src='http://127.0.0.1:9/x.png'><script>undefinedName()</script>")
    _, messages = browse(page, tmp_path / "profile")
    assert "undefinedName is not defined" in messages
    assert re.search(r"CONSOLE.*Content Security Policy", messages)


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """axe-core's source from npm; a machine without npm or its registry skips the test."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("no npm on PATH")
    try:
        subprocess.run(
            [npm, "pack", "--silent", "axe-core@4"], cwd=folder, check=True, capture_output=True, timeout=120
        )
        with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
            return archive.extractfile("package/axe.min.js").read().decode("utf-8")
    except (subprocess.SubprocessError, OSError, StopIteration, KeyError, tarfile.TarError) as error:
        pytest.skip(f"axe-core cannot be had from npm ({type(error).__name__})")


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_that_shuts_anybody_out(colours, axe, made, tmp_path):
    _, page = made
    probe = """<script>
    for (const details of document.querySelectorAll("main details")) details.open = true;
    axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "best-practice"] }).then((result) => {
      document.title = JSON.stringify(result.violations.map((v) => [v.id, v.impact, v.nodes[0].html.slice(0, 200)]));
    });</script></body>"""
    copy = tmp_path / "index.html"
    copy.write_text(page.replace("</body>", f"<script>{axe}</script>{probe}"), encoding="utf-8")
    flag = ["--blink-settings=preferredColorScheme=0"] if colours == "dark" else []
    dom, _ = browse(copy, tmp_path / "profile", "--virtual-time-budget=20000", *flag)
    found = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1]))
    assert [v for v in found if v[1] in ("serious", "critical")] == []
    assert found == []
