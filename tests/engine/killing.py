"""A process that starts runs in children of its own and kills them: `python killing.py FOLDER SEED JOB-AS-JSON…`.

Children are forked after the imports, so that a life costs milliseconds and many moments can be tried. Every other one
kills itself inside a write (at a flush to the disk), the others are killed from outside at a random time. Prints what
happened as a line of JSON for each job, whose runs lie in FOLDER/0, FOLDER/1, ….
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from longtail.engine import finish
from longtail.engine.job import Job, execute


class Slow:
    """Makes a step last long enough to be interrupted."""

    def step(self, now: object) -> None:
        time.sleep(0.002)

    def epoch(self, row: object) -> None:
        pass


def life(job: Job, log: Path, slow: bool = False, die_at_flush: int = 0) -> int:
    """Run in a child; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if die_at_flush:
            flush, left = os.fsync, [die_at_flush]

            def deadly(descriptor: int) -> None:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                flush(descriptor)

            os.fsync = deadly
        with open(log, "a") as file:
            execute(job, say=lambda text: print(text, file=file), watchers=[Slow()] * slow)
        code = 0
    finally:
        os._exit(code)


def kill(folder: Path, seed: int, settings: dict[str, object]) -> None:
    folder.mkdir()
    chance = random.Random(seed)
    log = folder / "log"
    whole = Job(**settings, out=str(folder / "whole"))
    assert os.waitpid(life(whole, log), 0)[1] == 0, log.read_text()
    broken = Job(**settings, out=str(folder / "broken"), resume=True, save_steps=3)
    kills = {"outside": 0, "in a write": 0}
    while True:
        enough = min(kills.values()) >= 3
        inside = sum(kills.values()) % 2 == 1
        child = life(broken, log, not enough, chance.randint(2, 40) if inside and not enough else 0)
        if not inside and not enough:
            time.sleep(chance.uniform(0.02, 0.25))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            kills["in a write" if inside else "outside"] += 1
            continue
        assert status == 0, log.read_text()
        if enough or (folder / "broken" / "summary.json").exists():
            break
    print(json.dumps({"kills": kills, "log": log.read_text()}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    finish.summarise = functools.partial(finish.summarise, tsne=False)  # takes longer than the training
    for i, job in enumerate(sys.argv[3:]):
        kill(Path(sys.argv[1]) / str(i), int(sys.argv[2]), json.loads(job))
