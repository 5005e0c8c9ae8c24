"""This process: its place among those that torchrun started, its device, and the signals that ask it to stop.

One run on many processes is DDP over gloo on CPUs and nccl on GPUs. Every rank holds the model and draws its slice of
each global batch. The objective sees the samples of all ranks (``Objective(distributed=True)``); only rank 0 writes. A
rank that dies closes its connections: the others fail in their next exchange with an error, and torchrun ends the job.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import InputError, RunError

# The longest that one rank may wait for another in an exchange
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Ranks:
    """This process among all; alone it is rank 0 of 1, and every exchange is the identity."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch_size: int) -> int:
        """What each rank takes of a global batch."""
        if batch_size % self.world:
            raise InputError(f"a batch of {batch_size} cannot be shared evenly among {self.world} processes")
        return batch_size // self.world

    def any(self, flag: int) -> int:
        """The largest flag of all ranks: whether any wants to stop."""
        if self.world == 1:
            return flag
        value = torch.tensor([flag], device=_device())
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def bytes_from_first(self, data: bytes | None) -> bytes | None:
        """Rank 0's bytes on every rank."""
        box = [data]
        if self.world > 1:
            dist.broadcast_object_list(box, 0)
        return box[0]

    def tensor_from_first(self, x: Tensor) -> None:
        """Overwrite a tensor by rank 0's."""
        if self.world > 1:
            dist.broadcast(x, 0)

    def wrap(self, net: nn.Module) -> nn.Module:
        """The module whose gradients are averaged over ranks."""
        if self.world == 1 or not any(p.requires_grad for p in net.parameters()):
            return net
        device = next(net.parameters()).device
        on_gpu = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(net, device_ids=on_gpu)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """The ranks of this job: what torchrun's environment says, or one process alone."""
    rank, world = _place()
    if world == 1:
        yield Ranks()
        return
    options: dict[str, Any] = {"timeout": TIMEOUT}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **options)
        yield Ranks(rank, world)
    except RuntimeError as error:
        if _is_lost_peer(error):
            what = "did not answer" if "timed out" in str(error).lower() else "is gone"
            raise RunError(f"another process of this job {what}: start them all again with --resume") from error
        raise
    else:  # not after an error: destroying waits for the ranks that are gone
        if dist.is_initialized():
            dist.destroy_process_group()


def _place() -> tuple[int, int]:
    """This process's rank and how many there are, as torchrun puts them into the environment."""
    most = {"RANK": 10**6, "WORLD_SIZE": 10**6, "MASTER_PORT": 65535}
    said = {name: os.environ[name] for name in most if name in os.environ}
    for name, text in said.items():
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most[name]):
            limit = f"a whole number of at most {most[name]}"
            raise InputError(f"the environment's {name} must be {limit}, got {text!r}: torchrun sets it")
    rank, world = int(said.get("RANK", "0")), int(said.get("WORLD_SIZE", "1"))
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT") if world > 1 else ()
    if missing := [name for name in needed if name not in os.environ]:
        names = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        raise InputError(
            f"WORLD_SIZE is {world}, but {names} not set: start the processes with torchrun, or unset WORLD_SIZE to "
            "train in one"
        )
    if rank >= world:
        raise InputError(f"RANK is {rank}, but must be less than WORLD_SIZE, which is {world}: torchrun sets both")
    return rank, world


def leave() -> None:
    """After the last exchange: rank 0 goes on alone with the evaluation."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _is_lost_peer(error: RuntimeError) -> bool:
    text = f"{type(error).__name__} {error}"
    signs = ("DistBackendError", "DistNetworkError", "gloo", "Connection", "Timed out", "NCCL", "Socket")
    return not isinstance(error, RunError) and any(sign in text for sign in signs)


def pick_device(name: str | None) -> torch.device:
    """The device asked for, or a GPU where there is one; under torchrun each process takes its own GPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device must be cpu, cuda, cuda:0 and so on, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be cpu, cuda, cuda:0 and so on, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device {name!r} was asked for, but torch {torch.__version__} sees no GPU here: use --device cpu"
        )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; its state is saved where there is a place for it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


@contextmanager
def stop_on_signal(*numbers: int) -> Iterator[Callable[[], int]]:
    """While active, the first SIGINT or SIGTERM, or of ``numbers``, is only noted: a call of what this gives says its
    number, or 0.

    A second one acts at once, as if nobody listened. Outside the main thread, where Python takes no handlers, it does
    nothing.
    """
    before: dict[int, Any] = {}
    noted = 0

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        noted = number
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in numbers or (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    try:
        yield lambda: noted
    finally:
        restore()
