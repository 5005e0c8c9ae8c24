"""Many runs in a few worker processes; one that fails, or dies with its process, does not take the others with it.

A worker (``python -m longtail.engine.pool``) does one run after the other: settings come as JSON lines on stdin, news
goes out on stdout. One interpreter for many runs: importing torch takes longer than a run on the digits. It ends when
stdin does, and stops its run (saved, resumable) on SIGTERM or when the process that started it is gone. Ctrl-C, which a
terminal sends to all of them, is for the parent alone, which then asks each worker once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from ..errors import InputError, RunError
from ..runs.folder import has_checkpoint
from .job import execute
from .process import Interrupted, stop_on_signal
from .progress import Progress, Watcher
from .settings import Job


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its folder, or why there is none; ``mistake`` if the settings were wrong."""

    path: Path | None
    error: str = ""
    mistake: bool = False


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_all(
    jobs: Sequence[Job],
    workers: int,
    *,
    after: Mapping[int, int] | None = None,
    on_done: Callable[[int, Outcome], None] = lambda index, outcome: None,
    on_step: Callable[[int, float], None] = lambda index, share: None,
    on_tick: Callable[[int], None] = lambda signal: None,
    stop: Callable[[], int] = lambda: 0,
) -> list[Outcome]:
    """Do all jobs, ``workers`` at a time with the cores shared among them; outcomes in the order of the jobs.

    Args:
        after: jobs, by their place in the list, that begin with the run of another.
        on_done, on_step: called from this thread, with the job's place in the list and the share of its steps done: 0
            as a worker takes it up.
        on_tick: called some times a second, with the signal that ``stop`` named.

    Raises:
        Interrupted: ``stop`` named a signal; runs that were under way are saved, and ``on_done`` was told the finished.
    """
    workers = max(1, min(workers, len(jobs)))
    threads = max(1, cores() // workers)
    first, left, asked = after or {}, list(range(len(jobs))), 0
    idle: list[_Worker] = []
    busy: dict[int, _Worker] = {}
    outcomes: dict[int, Outcome] = {}
    news: queue.Queue[tuple[int, Outcome | float]] = queue.Queue()

    def serve(worker: _Worker, index: int, job: Job) -> None:
        news.put((index, worker.run(job, lambda share: news.put((index, share)))))

    while left or busy:
        asked = asked or stop()
        if asked:
            left = []
            for worker in busy.values():
                worker.stop()
        can_begin = [index for index in left if index not in first or first[index] in outcomes]
        for index in can_begin[: workers - len(busy)]:
            left.remove(index)
            job = _begun(jobs[index], outcomes[first[index]]) if index in first else jobs[index]
            busy[index] = idle.pop() if idle else _Worker(threads)
            threading.Thread(target=serve, args=(busy[index], index, job), daemon=True).start()
        on_tick(asked)
        try:
            index, what = news.get(timeout=0.1)
        except queue.Empty:
            continue
        if isinstance(what, float):
            on_step(index, what)
            continue
        worker = busy.pop(index)
        if worker.process.poll() is None:  # otherwise it died, and another takes its place
            idle.append(worker)
        if what.path is not None or not asked:
            outcomes[index] = what
            on_done(index, what)
    for worker in idle:
        worker.close()
    if len(outcomes) < len(jobs):
        raise Interrupted(asked)
    return [outcomes[index] for index in range(len(jobs))]


def _begun(job: Job, first: Outcome) -> Job:
    """The job as it begins with the run of another, or as it trains all stages itself where that one left no state."""
    if first.path is None or not has_checkpoint(first.path):
        return job
    return replace(job, begin_with=str(first.path))


class _Worker:
    def __init__(self, threads: int) -> None:
        number = str(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
        self.asked = False
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "longtail.engine.pool"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment,
        )  # fmt: skip

    def run(self, job: Job, on_step: Callable[[float], None]) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(asdict(job)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._death()
        for line in self.process.stdout:
            said = json.loads(line)
            if said["kind"] == "step":
                on_step(float(said["share"]))
            elif said["kind"] == "done":
                return Outcome(Path(said["path"]))
            elif said["kind"] == "failed":
                return Outcome(None, said["error"], said["mistake"])
        return self._death()

    def stop(self) -> None:
        """Ask it to save its run and end: once, as a second signal acts at once."""
        if not self.asked:
            self.asked = True
            self.process.terminate()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()

    def _death(self) -> Outcome:
        code = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome(None, f"its process ended with {how}{': ' + last[0] if last else ''}")


def work() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever prints in this process must not get between the lines that the parent reads
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    parent = os.getppid()

    def tell(**news: Any) -> None:
        out.write(json.dumps(news) + "\n")
        out.flush()

    class News(Watcher):
        told = 0.0

        def step(self, now: Progress) -> None:
            if now.done >= 1 or time.monotonic() - self.told > 0.2:
                self.told = time.monotonic()
                tell(kind="step", share=now.done)

    with stop_on_signal(signal.SIGTERM) as stop:

        def stopped() -> int:
            return stop() or (signal.SIGTERM if os.getppid() != parent else 0)

        for line in sys.stdin:
            try:
                job = Job(**json.loads(line))
                tell(kind="step", share=0)
                path = execute(job, say=lambda text: None, watchers=[News()], stop=stopped)
                tell(kind="done", path=str(path))
            except (InputError, RunError) as error:
                tell(kind="failed", error=str(error), mistake=isinstance(error, InputError))
            except Interrupted:
                break
            except Exception as error:  # one run's accident must not take the others with it
                import traceback

                traceback.print_exc()
                tell(kind="failed", error=f"{type(error).__name__}: {error}", mistake=False)


if __name__ == "__main__":
    work()
