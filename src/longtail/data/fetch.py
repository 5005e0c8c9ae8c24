"""Getting CIFAR: download with resume, verify, unpack safely, and only then put it in its place."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import lzma
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ..errors import InputError, one_of
from . import cifar
from .catalogue import folder_of, names
from .limits import check_regular, reason, shown
from .lists import LISTINGS

OFFICIAL = "https://www.cs.toronto.edu/~kriz/"
ADDRESS_VARIABLE = "LONGTAIL_CIFAR_URL"
MOST_BYTES = 1 << 28  # unpacked; CIFAR has 185 MB
MOST_HEADER, MOST_MEMBERS = 1 << 16, 1000
TRIES = 5
CHUNK = 1 << 20

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


def fetch(
    name: str,
    root: str | Path = "data",
    *,
    source: str | Path | None = None,
    progress: Progress | None = None,
) -> str:
    """Get a data set; returns what to tell the user.

    Args:
        source: an archive already on disk, in either official layout.

    Archives come from the official address, or from $LONGTAIL_CIFAR_URL. A good copy that is already there stays as it
    is. Nothing appears under its final name before it is complete and verified; a broken download leaves its ``.part``
    file only where the server can resume it.
    """
    one_of("data set", name, names())
    root = folder_of(root)
    if name in LISTINGS:
        if source is not None:
            raise InputError(
                f"{name} cannot be unpacked from one archive: fetch it without --from to see what it needs"
            )
        return "\n".join(line.format(folder=root / name) for line in LISTINGS[name].help)
    layout = cifar.LAYOUTS.get(name)
    if layout is None:
        return f"{name} needs no download."
    problem = cifar.verify(layout, root)
    if problem is None:
        return f"{name} is already in {root}, and complete."
    if "not the official one" in problem:  # somebody's own version: theirs to move
        raise InputError(f"{problem}; move it away to fetch the official one")
    if source is not None and not Path(source).is_file():
        raise InputError(f"there is no file {source}: --from takes an archive such as {layout.archive}")
    new = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if source is not None:
            # An archive packed anew has another checksum but may hold the same images: the content decides.
            install(Path(source), root, layout)
            return f"{name}: unpacked from {source} and verified in {root}."
        base = os.environ.get(ADDRESS_VARIABLE) or OFFICIAL
        path = download(base.rstrip("/") + "/" + layout.archive, root / layout.archive, layout.md5, progress)
        try:
            install(path, root, layout)
        finally:
            path.unlink()
        return f"{name}: downloaded, verified and unpacked in {root}."
    except (NotADirectoryError, PermissionError) as error:
        raise InputError(f"{root} cannot be written: {reason(error)}") from None
    finally:
        if new:  # gone again where nothing came of it
            with contextlib.suppress(OSError):
                root.rmdir()


def install(path: Path, root: Path, layout: cifar.Layout) -> None:
    """Unpack beside the target, compare the content's digest, then move into place; a bad old copy goes last."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as temporary:
        fresh = Path(temporary)
        unpack(path, fresh)
        try:
            digest = cifar.content_digest(layout, fresh)
        except InputError as error:
            text = str(error).replace(temporary + os.sep, "").split("; `longtail")[0].replace(repr(temporary), "it")
            raise InputError(f"{path} is not {layout.name.removesuffix('-lt')}: {text}") from None
        if digest != layout.content:
            raise InputError(f"{path}: checksum mismatch, its images are not the official ones")
        form = layout.form(fresh)
        assert form is not None  # what could be read is there
        # The reader prefers the binary form, so a bad binary copy must not stay in front of a good python one.
        for old in {form.folder, layout.binary.folder}:
            if (root / old).exists():
                (root / old).rename(fresh / f"old-{old}")
        (fresh / form.folder).rename(root / form.folder)


def unpack(path: Path, target: Path) -> None:
    """Regular files and folders only, all inside ``target``, without owners, modes or times."""
    try:
        if check_regular(path) == 0:
            raise InputError("it is empty")
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise InputError("it is a zip file, and a .tar or .tar.gz belongs here")
        with tarfile.open(path, "r|*", tarinfo=_Member) as tar:
            size = 0
            for count, member in enumerate(tar, 1):
                size += member.size
                where = PurePosixPath(member.name)
                if count > MOST_MEMBERS:
                    raise InputError(f"it has more than {MOST_MEMBERS:,} members")
                if size > MOST_BYTES:
                    raise InputError("it unpacks to more than CIFAR's size")
                if where.is_absolute() or ".." in where.parts or "\\" in member.name:
                    raise InputError(f"{member.name!r} would be written outside the target folder")
                if member.isdir():
                    (target / where).mkdir(parents=True, exist_ok=True)
                    continue
                if not member.isreg():
                    kind = "a link" if member.issym() or member.islnk() else "no regular file"
                    raise InputError(f"{member.name!r} is {kind}")
                (target / where).parent.mkdir(parents=True, exist_ok=True)
                inside = tar.extractfile(member)
                assert inside is not None
                with inside, (target / where).open("xb") as out:
                    shutil.copyfileobj(inside, out, CHUNK)
    except InputError as error:
        raise InputError(f"{path}: refused, {error}") from None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path} cannot be unpacked: {shown(reason(error))}") from None
        raise InputError(f"{path} is no complete .tar or .tar.gz: {shown(reason(error))}") from None


class _Member(tarfile.TarInfo):
    """A member whose header is small: longer ones, which name nothing that is wanted, would be read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        plain = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE)
        if member.type == tarfile.GNUTYPE_SPARSE or (member.type not in plain and member.size > MOST_HEADER):
            raise InputError(f"it has a header of {member.size:,} bytes, or a sparse file")
        return member


def download(url: str, target: Path, md5: str, progress: Progress | None = None) -> Path:
    """Fetch ``url`` to ``target``, resuming from ``target.part``; ends only with the right checksum."""
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _complete(url, part, progress)
    if resumed and _md5(part) != md5:
        part.unlink()  # what an earlier run left may have been of another file: once more from the start
        _complete(url, part, progress)
    found = _md5(part)
    if found != md5:
        part.unlink()
        raise InputError(f"{url}: checksum mismatch, md5 {found} where {md5} belongs; nothing was kept")
    part.replace(target)
    return target


def _complete(url: str, part: Path, progress: Progress | None) -> None:
    """Ask for what is missing until all is there; give up when several tries in a row bring nothing."""
    fruitless = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        total, resumable, why = _attempt(url, part, progress)
        have = part.stat().st_size if part.exists() else 0
        if total is not None and have == total:
            return
        fruitless = 0 if have > before and resumable else fruitless + 1
        if fruitless >= TRIES or (not resumable and fruitless >= 2):
            if resumable and have:
                hint = "run the same command again to go on from there"
            else:
                part.unlink(missing_ok=True)
                hint = "nothing was kept"
            of = f" of {total:,}" if total is not None else ""
            raise InputError(f"{url}: {why} after {have:,}{of} bytes; {hint}")


def _attempt(url: str, part: Path, progress: Progress | None) -> tuple[int | None, bool, str]:
    """One request: (size in all if known, whether the server can resume, what went wrong if anything did)."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            resumed = response.status == 206
            length = response.headers.get("Content-Length")
            total = int(length) + (have if resumed else 0) if length else None
            resumable = resumed or response.headers.get("Accept-Ranges") == "bytes"
            with part.open("ab" if resumed else "wb") as out:
                done = have if resumed else 0
                for chunk in _chunks(response):
                    out.write(chunk)
                    done += len(chunk)
                    if progress:
                        progress(done, total)
            if total is None:
                total = done  # without a length the checksum alone decides
            return total, resumable, "the connection broke off"
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # more is there than the server has: start again
            part.unlink(missing_ok=True)
            return None, True, "the server refused to resume"
        raise InputError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return None, have > 0, f"no connection ({reason})"


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """What arrives, until the end or until the connection breaks."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while chunk := response.read(CHUNK):
            yield chunk


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
