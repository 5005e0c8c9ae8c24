"""Fetching: real local servers that work, break off, or lie; archives that are not what they should be."""

import hashlib
import http.server
import io
import random
import tarfile
import threading
from dataclasses import replace

import pytest

from cifar_files import write_python_layout
from longtail.data import cifar, fetch, load
from longtail.data.catalogue import check
from longtail.errors import InputError

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves ``content`` at any path; ``breaks`` says after how many bytes each next answer stops."""

    def __init__(self, content, *, ranges=True, breaks=(), length=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.breaks, self.length = content, ranges, list(breaks), length
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_port}/x.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if wanted and self.server.ranges and start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if wanted and self.server.ranges else 200)
        if self.server.length:
            self.send_header("Content-Length", str(len(body)))
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        stop = self.server.breaks.pop(0) if self.server.breaks else len(body)
        self.wfile.write(body[:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    running = []

    def start(content=CONTENT, **options):
        server = Server(content, **options)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_download(serve, tmp_path):
    seen = []
    server = serve()
    path = fetch.download(server.url, tmp_path / "x.bin", MD5, lambda *at: seen.append(at))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (300_000, 300_000)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_broken_download_resumes_at_once(serve, tmp_path):
    server = serve(breaks=[100_000, 50_000])
    assert fetch.download(server.url, tmp_path / "x.bin", MD5).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_download_resumes_in_the_next_run(serve, tmp_path):
    server = serve(breaks=[100_000] + [0] * fetch.TRIES)
    with pytest.raises(InputError, match=r"broke off after 100,000 of 300,000 bytes; run the same command again"):
        fetch.download(server.url, tmp_path / "x.bin", MD5)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin.part"]
    server.asked.clear()
    assert fetch.download(server.url, tmp_path / "x.bin", MD5).read_bytes() == CONTENT
    assert server.asked == ["bytes=100000-"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_server_that_breaks_off_and_cannot_resume_leaves_nothing(serve, tmp_path):
    server = serve(ranges=False, breaks=[100_000] * 9)
    with pytest.raises(InputError, match=r"broke off after 100,000 of 300,000 bytes; nothing was kept"):
        fetch.download(server.url, tmp_path / "x.bin", MD5)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_resume_starts_again(serve, tmp_path):
    server = serve(ranges=False, breaks=[100_000])
    assert fetch.download(server.url, tmp_path / "x.bin", MD5).read_bytes() == CONTENT


def test_a_server_without_a_length(serve, tmp_path):
    server = serve(length=False)
    assert fetch.download(server.url, tmp_path / "x.bin", MD5).read_bytes() == CONTENT


def test_checksum_mismatch_keeps_nothing(serve, tmp_path):
    server = serve(CONTENT[:-1] + b"?")
    with pytest.raises(InputError, match=f"checksum mismatch, md5 [0-9a-f]{{32}} where {MD5} belongs"):
        fetch.download(server.url, tmp_path / "x.bin", MD5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("leftover", [b"something else", CONTENT + b"and more", CONTENT])
def test_a_part_of_something_else_is_given_up(leftover, serve, tmp_path):
    (tmp_path / "x.bin.part").write_bytes(leftover)
    assert fetch.download(serve().url, tmp_path / "x.bin", MD5).read_bytes() == CONTENT


def test_no_server_and_no_file(serve, tmp_path):
    server = serve()
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"no connection \(.*refused.*\) after 0 bytes; nothing was kept"):
        fetch.download(server.url, tmp_path / "x.bin", MD5)

    class Missing(Handler):
        def do_GET(self):
            self.send_error(404)

    lost = serve()
    lost.RequestHandlerClass = Missing
    with pytest.raises(InputError, match="the server answered 404"):
        fetch.download(lost.url, tmp_path / "x.bin", MD5)
    assert list(tmp_path.iterdir()) == []


# Archives


def archive(path, *members):
    """A .tar.gz of (name or TarInfo, content)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def special(name, kind, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("../outside", "'../outside' would be written outside"),
        ("a/../../outside", "would be written outside"),
        ("/tmp/outside", "would be written outside"),
        ("a\\..\\outside", "would be written outside"),
        (special("link", tarfile.SYMTYPE), "'link' is a link"),
        (special("hard", tarfile.LNKTYPE, "good"), "'hard' is a link"),
        (special("pipe", tarfile.FIFOTYPE), "'pipe' is no regular file"),
    ],
)
def test_archives_that_reach_outside(member, message, tmp_path):
    root = tmp_path / "inner" / "root"
    root.mkdir(parents=True)
    path = archive(tmp_path / "evil.tar.gz", ("good", b"1"), (member, b""))
    with pytest.raises(InputError, match=message.replace("\\", "\\\\")):
        fetch.fetch("cifar100-lt", root, source=path)
    assert list(root.iterdir()) == []
    assert {p.name for p in tmp_path.rglob("*")} == {"inner", "root", "evil.tar.gz"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not an archive at all", r"is no complete \.tar or \.tar\.gz: truncated header$"),
        (b"a long text\n" * 500, r"is no complete \.tar or \.tar\.gz: [^\n]*$"),
        (b"", "refused, it is empty$"),
        (b"PK\x03\x04" + bytes(900), "refused, it is a zip file, and a .tar or .tar.gz belongs here$"),
        (b"\x1f\x8b" + bytes(900), r"is no complete \.tar or \.tar\.gz: [^\n]*$"),
        (b"BZh9" + bytes(900), r"is no complete \.tar or \.tar\.gz: [^\n]*$"),
        (b"\xfd7zXZ\x00" + bytes(900), r"is no complete \.tar or \.tar\.gz: [^\n]*$"),
        ("cut", r"is no complete \.tar or \.tar\.gz: unexpected end of data"),
        ("other", "is not cifar100: cifar100-lt: neither cifar-100-binary nor cifar-100-python is in it"),
        ("short", r"is not cifar100: cifar-100-binary.train\.bin has 5 bytes"),
    ],
)
def test_archives_that_are_none(content, message, tmp_path):
    path, root = tmp_path / "a.tar.gz", tmp_path / "root"
    if content == "short":
        archive(path, ("cifar-100-binary/train.bin", b"12345"))
    elif isinstance(content, str):
        archive(path, ("good", random.Random(1).randbytes(50_000)))
        if content == "cut":
            path.write_bytes(path.read_bytes()[:30_000])
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        fetch.fetch("cifar100-lt", root, source=path)
    assert not root.exists()


def test_too_large_archives_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "MOST_BYTES", 1000)
    path = archive(tmp_path / "bomb.tar.gz", ("zeros", bytes(2000)))
    with pytest.raises(InputError, match="refused, it unpacks to more than"):
        fetch.fetch("cifar100-lt", tmp_path / "root", source=path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE, b"7"])
def test_a_header_that_claims_gigabytes_is_refused_before_it_is_read(kind, tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 3 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "bomb.tar"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(3 << 30)  # a hole, not bytes
    with pytest.raises(
        InputError, match=r"bomb\.tar: refused, it (has a header of 3,221,225,472 bytes|unpacks to more)"
    ):
        fetch.fetch("cifar100-lt", tmp_path / "root", source=path)


def test_an_archive_of_endless_members_is_refused(tmp_path):
    path = tmp_path / "many.tar"
    member = tarfile.TarInfo("a")
    member.type = tarfile.DIRTYPE
    path.write_bytes(member.tobuf() * 3000)
    with pytest.raises(InputError, match="refused, it has more than 1,000 members"):
        fetch.fetch("cifar100-lt", tmp_path / "root", source=path)


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    for action in (fetch.fetch, load):
        with pytest.raises(InputError, match=r"--root '.*file' is a file, and a folder belongs there"):
            action("cifar100-lt", root=tmp_path / "file")
        with pytest.raises(InputError, match=r"--root .* is a file|--root .* cannot be a folder"):
            action("cifar100-lt", root=tmp_path / "file" / ("x" * 5000))


@pytest.fixture(scope="module")
def packed(cifar100, tmp_path_factory):
    """The real CIFAR-100 as an archive (stored, which is quicker than compressed)."""
    path = tmp_path_factory.mktemp("packed") / "cifar-100-binary.tar.gz"
    with tarfile.open(path, "w") as tar:
        tar.add(cifar100 / "cifar-100-binary", "cifar-100-binary")
    return path


def test_fetch_from_a_server(packed, serve, tmp_path, monkeypatch):
    content = packed.read_bytes()
    known = replace(cifar.CIFAR100, archive=packed.name, md5=hashlib.md5(content).hexdigest())
    monkeypatch.setitem(cifar.LAYOUTS, "cifar100-lt", known)
    server = serve(content, breaks=[len(content) // 2])
    monkeypatch.setenv(fetch.ADDRESS_VARIABLE, server.url.removesuffix("x.bin"))
    root = tmp_path / "data"
    assert "downloaded, verified and unpacked" in fetch.fetch("cifar100-lt", root)
    assert server.asked == [None, f"bytes={len(content) // 2}-"]
    assert [p.name for p in root.iterdir()] == ["cifar-100-binary"]
    assert load("cifar100-lt", root=root).counts.total == 10_847
    # A good copy stays: no request is made, whatever --from brings.
    assert "already in" in fetch.fetch("cifar100-lt", root, source=tmp_path / "nothing")
    assert len(server.asked) == 2
    # A damaged copy is named by check, survives a failed fetch, and is replaced by a good one.
    damaged = root / "cifar-100-binary" / "train.bin"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-100])
    assert "truncated" in check("cifar100-lt", root).bad[0]
    with pytest.raises(InputError):
        fetch.fetch("cifar100-lt", root, source=archive(tmp_path / "a.tar.gz", ("x", b"")))
    assert damaged.stat().st_size == len(whole) - 100
    fetch.fetch("cifar100-lt", root, source=packed)
    assert check("cifar100-lt", root).bad == []
    assert [p.name for p in root.iterdir()] == ["cifar-100-binary"]
    # Another version of the images, readable but not the official one, is the user's own: it is left alone.
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "not the official one" in check("cifar100-lt", root).bad[0]
    with pytest.raises(InputError, match="move it away"):
        fetch.fetch("cifar100-lt", root, source=packed)
    assert damaged.read_bytes()[-1] == whole[-1] ^ 1


def test_from_an_archive_whose_images_differ(packed, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.LAYOUTS, "cifar100-lt", replace(cifar.CIFAR100, content="0" * 64))
    with pytest.raises(InputError, match="checksum mismatch, its images are not the official ones"):
        fetch.fetch("cifar100-lt", tmp_path / "data", source=packed)
    assert not (tmp_path / "data").exists()


def test_from_an_archive_in_the_python_layout(cifar100, tmp_path):
    binary, python = cifar.CIFAR100.binary.folder, cifar.CIFAR100.python.folder
    write_python_layout(cifar100 / binary, tmp_path / python, 100)
    path = tmp_path / "python.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tmp_path / python, python)
    fetch.fetch("cifar100-lt", tmp_path / "data", source=path)
    assert [p.name for p in (tmp_path / "data").iterdir()] == [python]
    assert check("cifar100-lt", tmp_path / "data").bad == []


def test_what_fetch_says_of_the_others(tmp_path):
    for name in ("imagenet-lt", "places-lt", "inat2018"):
        text = fetch.fetch(name, tmp_path)
        assert len(text.splitlines()) == 3
        assert str(tmp_path / name) in text
    assert fetch.fetch("moons", tmp_path) == "moons needs no download."
    with pytest.raises(InputError, match="cannot be unpacked from one archive"):
        fetch.fetch("places-lt", tmp_path, source=tmp_path / "x")
    with pytest.raises(InputError, match="unknown data set 'cifar'"):
        fetch.fetch("cifar", tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        fetch.fetch("cifar10-lt", tmp_path, source=tmp_path / "x")
