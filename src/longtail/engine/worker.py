"""A process that does one run after the other: settings come as JSON lines on stdin, news goes out on stdout.

One interpreter for many runs: importing torch takes longer than a run on the digits. It ends when stdin does, and stops
its run (saved, resumable) when the process that started it is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from ..errors import InputError, RunError
from .settings import Job
from .signals import StopOnSignal


def main() -> None:
    # Whatever prints in this process must not get between the lines that the parent reads
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    parent = os.getppid()

    def tell(**news: Any) -> None:
        out.write(json.dumps(news) + "\n")
        out.flush()

    from .job import execute
    from .train import Interrupted, Progress

    class News:
        def step(self, now: Progress) -> None:
            pass

        def epoch(self, row: dict[str, Any]) -> None:
            tell(kind="epoch", epoch=row["epoch"])

    tell(kind="ready")
    with StopOnSignal() as stop:

        def stopped() -> int:
            return stop() or (signal.SIGTERM if os.getppid() != parent else 0)

        for line in sys.stdin:
            said: list[str] = []
            try:
                path = execute(Job(**json.loads(line)), say=said.append, watchers=lambda *_: [News()], stop=stopped)
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
    main()
