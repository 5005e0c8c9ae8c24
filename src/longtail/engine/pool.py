"""Many runs in a few worker processes; one that fails, or dies with its process, does not take the others with it.

A worker (``python -m longtail.engine.pool``) does one run after the other: settings come as JSON lines on stdin, news
goes out on stdout. One interpreter for many runs: importing torch takes longer than a run on the digits. It ends when
stdin does, and stops its run (saved, resumable) on SIGTERM or when the process that started it is gone. Ctrl-C, which a
terminal sends to all of them, is for the parent alone, which then asks each worker once.
"""

from __future__ import annotations

import functools
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ..errors import InputError, RunError
from ..runs.folder import has_checkpoint
from .job import Job, Prepared, execute
from .process import Interrupted, StopOnSignal
from .progress import Progress, Watcher, tracker


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its folder, or why there is none; ``mistake`` if the settings were wrong."""

    job: Job
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
    todo = _Todo(jobs, after or {})
    news: queue.Queue[tuple[int, Outcome | float]] = queue.Queue()
    crew: list[_Worker] = []
    lines = [threading.Thread(target=_serve, args=(todo, news, crew, threads), daemon=True) for _ in range(workers)]
    for line in lines:
        line.start()
    outcomes: dict[int, Outcome] = {}
    asked = 0
    while any(line.is_alive() for line in lines) or not news.empty():
        asked = asked or stop()
        if asked:
            todo.close()
            for worker in crew:
                worker.stop()
        on_tick(asked)
        try:
            index, what = news.get(timeout=0.1)
        except queue.Empty:
            continue
        if isinstance(what, float):
            on_step(index, what)
        elif what.path is not None or not asked:
            outcomes[index] = what
            on_done(index, what)
    if asked and len(outcomes) < len(jobs):
        raise Interrupted(asked)
    return [outcomes[index] for index in range(len(jobs))]


class _Todo:
    """Jobs handed out in their order, but for those that wait for another's run to begin with."""

    def __init__(self, jobs: Sequence[Job], after: Mapping[int, int]) -> None:
        self.jobs, self.after, self.left = jobs, after, list(range(len(jobs)))
        self.ended: dict[int, Outcome] = {}
        self.changed = threading.Condition()

    def take(self) -> tuple[int, Job] | None:
        """The next job and its place; waits while all that are left have to, None where none is left."""
        with self.changed:
            while self.left:
                for index in self.left:
                    first = self.after.get(index)
                    if first is None or first in self.ended:
                        self.left.remove(index)
                        return index, self._begun(self.jobs[index], first)
                self.changed.wait()
            return None

    def close(self) -> None:
        """Hand out no more."""
        with self.changed:
            self.left = []
            self.changed.notify_all()

    def end(self, index: int, outcome: Outcome) -> None:
        with self.changed:
            self.ended[index] = outcome
            self.changed.notify_all()

    def _begun(self, job: Job, first: int | None) -> Job:
        path = None if first is None else self.ended[first].path
        if path is None or not has_checkpoint(path):
            return job  # it trains all stages itself
        return replace(job, begin_with=str(path))


def _serve(todo: _Todo, news: queue.Queue[Any], crew: list[_Worker], threads: int) -> None:
    """Feed one worker until nothing is left; a worker that died is replaced."""
    worker: _Worker | None = None
    while (taken := todo.take()) is not None:
        index, job = taken
        if worker is None:
            worker = _Worker(threads)
            crew.append(worker)

        def step(share: float, index: int = index) -> None:
            news.put((index, share))

        try:
            outcome = worker.run(job, step)
        except _WorkerDied as error:
            outcome, worker = Outcome(job, None, str(error)), None
        todo.end(index, outcome)
        news.put((index, outcome))
    if worker is not None:
        worker.close()


class _WorkerDied(Exception):  # noqa: N818
    pass


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
            self.process.stdin.write(json.dumps(job.to_dict()) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        for line in self.process.stdout:
            said = json.loads(line)
            if said["kind"] == "step":
                on_step(float(said["share"]))
            elif said["kind"] == "done":
                return Outcome(job, Path(said["path"]))
            elif said["kind"] == "failed":
                return Outcome(job, None, said["error"], said["mistake"])
        raise self._death()

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

    def _death(self) -> _WorkerDied:
        code = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return _WorkerDied(f"its process ended with {how}{': ' + last[0] if last else ''}")


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

    def watchers(job: Job, ready: Prepared, path: Path) -> list[Watcher]:
        return [News(), *(tracker(name, path, ready.config) for name in job.track)]

    with StopOnSignal(signal.SIGTERM) as stop:

        def stopped() -> int:
            return stop() or (signal.SIGTERM if os.getppid() != parent else 0)

        for line in sys.stdin:
            try:
                job = Job(**json.loads(line))
                tell(kind="step", share=0)
                path = execute(job, say=lambda text: None, watchers=functools.partial(watchers, job), stop=stopped)
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
