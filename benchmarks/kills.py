"""Kill runs at random moments, go on with them, and compare what they end in with runs that were left alone.

    python benchmarks/kills.py [--kills 200] [--seed 0] [--only alone,ranks,compare] [--folder DIR]

Three kinds of runs, on `digits-lt` and (compare) on a few features, killed with SIGKILL, which no process can notice:

- alone: one process; every other kill comes from within, in the middle of a write to the disk;
- ranks: two processes that train one model over gloo; one of them or both are killed, and one that is left has a minute
  to end by itself;
- compare: `longtail compare --jobs 2`, of which the command, one of its workers, or everything is killed.

A run is killed up to six times, at a moment drawn from the whole length of a life, its start and its last writes
included; then it goes on to the end. Model, predictions and metrics (but for timings) must equal, byte for byte, those
of a run that was left alone. Ends with exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from longtail.cli import main as longtail
from longtail.engine import finish
from longtail.engine.job import Job, execute

SHARES = {"alone": 0.6, "ranks": 0.25, "compare": 0.15}
TIMING = ("images_per_second", "seconds")
PATIENCE = 60.0
ARGUMENTS = ["compare", "--methods", "ce,elm:memory=4", "--seeds", "1", "--jobs", "2", "--epochs", "60"]
JOBS = [
    Job("elm", knobs={"memory": 4, "memory_ema": 0.9}, ema=0.9, epochs=8, save_steps=3),
    Job("dro-lt-multistage", epochs=6, save_steps=3),
    Job("ldam-drw", epochs=8, save_steps=3),
]


def fork(work: Callable[[], object], log: Path, **environment: str) -> int:
    """Do something in a child with a group of its own; its process id. The imports are there already."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.environ |= environment
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(words, 1)
        os.dup2(words, 2)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def die_in_a_write(number: int) -> None:
    """End this process in the middle of the given flush to the disk."""
    flush, left = os.fsync, [number]

    def deadly(descriptor: int) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(descriptor)

    os.fsync = deadly


def ended(child: int, seconds: float) -> int | None:
    """How a child ended, or None if it did not within this time."""
    until = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


def kill_group(child: int) -> None:
    """Kill a child and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def import_all(folder: Path) -> None:
    """Import what a run imports as it goes, so that children need not, each for seconds.

    Which modules these are is found in a child: a process that has trained had better not fork.
    """
    names = folder / "modules"

    def train_one() -> None:
        execute(replace(JOBS[0], epochs=1, out=str(folder / "first")), say=lambda text: None)
        names.write_text("\n".join(sys.modules))

    assert os.waitpid(fork(train_one, folder / "log"), 0)[1] == 0, (folder / "log").read_text()
    for name in names.read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


class Kind:
    """One kind of run. A life is one attempt at it: how many kills hit it, and whether it came to its end."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.log = folder, chance, folder / "log"
        self.notes: Counter[str] = Counter()
        folder.mkdir(parents=True)

    def start(self, out: Path, resume: bool, flush: int = 0) -> list[int]:
        """The processes of a new life."""
        raise NotImplementedError

    def strike(self, children: list[int]) -> None:
        """Kill some of them."""
        raise NotImplementedError

    def whole(self, out: Path) -> float:
        """A life that is left alone, and how long it took."""
        begun = time.monotonic()
        for child in self.start(out, resume=False):
            if os.waitpid(child, 0)[1] != 0:
                raise SystemExit(f"a run that was left alone failed: {self.log.read_text()[-2000:]}")
        return time.monotonic() - begun

    def life(self, out: Path, length: float, deadly: bool) -> tuple[int, bool]:
        inside = deadly and type(self) is Alone and self.chance.random() < 0.5
        children = self.start(out, True, self.chance.randint(1, 60) if inside else 0)
        if deadly and not inside:
            time.sleep(self.chance.uniform(0, length))
            self.strike(children)
        statuses = []
        for child in children:
            status = ended(child, PATIENCE if deadly and not inside else 600)
            if status is None:
                self.notes["had to be ended after a minute"] += 1
                kill_group(child)
                status = os.waitpid(child, 0)[1]
            statuses.append(status)
        for child in children:
            self.wait_for_orphans(child)
        hit = any(os.WIFSIGNALED(s) and os.WTERMSIG(s) == signal.SIGKILL for s in statuses)
        return int(hit), not any(statuses)

    def wait_for_orphans(self, group: int) -> None:
        """Workers whose parent is gone save and end by themselves."""
        until = time.monotonic() + PATIENCE
        while alive(group):
            if time.monotonic() > until:
                self.notes["orphans had to be ended after a minute"] += 1
                kill_group(group)
            time.sleep(0.02)

    def differences(self, whole: Path, broken: Path) -> list[str]:
        return [f"{broken}: {name}" for name in ("model.safetensors", "predictions.safetensors", "metrics.jsonl")
                if contents(whole / name) != contents(broken / name)]  # fmt: skip


class Alone(Kind):
    def start(self, out: Path, resume: bool, flush: int = 0) -> list[int]:
        return [fork(functools.partial(train, self.job(out, resume), flush), self.log)]

    def job(self, out: Path, resume: bool) -> Job:
        return replace(JOBS[int(out.parent.name) % len(JOBS)], out=str(out), resume=resume)

    def strike(self, children: list[int]) -> None:
        kill_group(children[0])


class Ranks(Alone):
    def start(self, out: Path, resume: bool, flush: int = 0) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [fork(functools.partial(train, self.job(out, resume)), self.log, RANK=str(r), **place) for r in (0, 1)]

    def strike(self, children: list[int]) -> None:
        victims = self.chance.choice([children, children[:1], children[1:]])
        running = not any(has_ended(child) for child in children)
        for child in victims:
            kill_group(child)
        survivors = [c for c in children if c not in victims]
        if running and survivors:
            self.notes["one of two was left"] += 1
            until = time.monotonic() + PATIENCE
            while not has_ended(survivors[0]) and time.monotonic() < until:
                time.sleep(0.02)
            self.notes["and ended by itself within a minute"] += has_ended(survivors[0])


class Compare(Kind):
    def start(self, out: Path, resume: bool, flush: int = 0) -> list[int]:
        data = self.folder / "features.npz"
        if not data.exists():
            write_features(data)
        return [fork(lambda: longtail([*ARGUMENTS, "--data", str(data), "--out", str(out)]), self.log)]

    def strike(self, children: list[int]) -> None:
        workers = [p for p in alive(children[0]) if p != children[0]]
        victim = self.chance.choice(["everything", "the command", "a worker"])
        if victim == "a worker" and workers:
            os.kill(self.chance.choice(workers), signal.SIGKILL)
            self.notes["killed a worker only"] += 1
        elif victim == "the command":
            os.kill(children[0], signal.SIGKILL)
        else:
            kill_group(children[0])

    def differences(self, whole: Path, broken: Path) -> list[str]:
        runs = sorted(p.parent.name for p in whole.glob("*/summary.json"))
        assert len(runs) == 2, runs
        return [line for run in runs for line in super(Compare, self).differences(whole / run, broken / run)]


def write_features(path: Path) -> None:
    """Data so small that training, not the last evaluation, takes most of a life."""
    chance = np.random.default_rng(0)
    labels = {"train": np.repeat(np.arange(3), [200, 60, 20]), "test": np.repeat(np.arange(3), 20)}
    features = {f"{k}_features": chance.normal(size=(len(y), 8)) + y[:, None] for k, y in labels.items()}
    np.savez(path, **features, **{f"{k}_labels": y for k, y in labels.items()})


def train(job: Job, flush: int = 0) -> None:
    if flush:
        die_in_a_write(flush)
    execute(job, say=lambda text: print(text, flush=True))


def has_ended(child: int) -> bool:
    """Whether a child has ended, which is left for ``waitpid`` to see."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def alive(group: int) -> list[int]:
    """The processes of a group, but for those that have ended and wait to be counted."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def contents(path: Path) -> object:
    if path.suffix != ".jsonl":
        return path.read_bytes()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


def rounds(kind: Kind, kills: int) -> Iterator[tuple[int, list[str]]]:
    """Runs that were killed again and again until there were this many kills: kills, and what differs at the end."""
    done, number = 0, 0
    wholes: dict[int, tuple[Path, float]] = {}
    while done < kills:
        which = number % len(JOBS) if isinstance(kind, Alone) else 0
        if which not in wholes:
            path = kind.folder / "whole" / str(which) / "run"
            path.parent.mkdir(parents=True)
            wholes[which] = path, kind.whole(path)
        whole, length = wholes[which]
        broken = kind.folder / str(number) / "run"
        broken.parent.mkdir()
        hits, finished = 0, False
        wanted = min(kind.chance.randint(1, 6), kills - done)
        while not finished or hits == 0:
            if finished:  # it was too quick for us: again from the beginning
                shutil.rmtree(broken)
            hit, finished = kind.life(broken, length, deadly=hits < wanted)
            hits += hit
        yield hits, kind.differences(whole, broken)
        shutil.rmtree(broken.parent)
        done, number = done + hits, number + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(SHARES))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    kinds = {"alone": Alone, "ranks": Ranks, "compare": Compare}
    chosen = given.only.split(",")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    finish.summarise = functools.partial(finish.summarise, tsne=False)  # takes longer than the training
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    import_all(folder)
    total = sum(SHARES[name] for name in chosen)
    failed: list[str] = []
    for name in chosen:
        kind = kinds[name](folder / name, random.Random(given.seed))
        kills = runs = 0
        begun = time.monotonic()
        for hits, differences in rounds(kind, round(given.kills * SHARES[name] / total)):
            kills, runs, failed = kills + hits, runs + 1, failed + differences
            print(f"{name}: {kills} kills, {runs} runs, {len(failed)} differences", file=sys.stderr, flush=True)
        notes = "".join(f"; {note}: {n}" for note, n in sorted(kind.notes.items()))
        minutes = (time.monotonic() - begun) / 60
        print(f"{name}: {kills} kills in {runs} runs, {minutes:.0f} min{notes}", flush=True)
    print(f"differences: {len(failed)}", *failed, sep="\n", flush=True)
    if failed:
        sys.exit(1)
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
