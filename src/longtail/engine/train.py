"""The only training loop: batch → net → Outputs → Objective → SGD, stage by stage through a plan.

Everything random is a function of (seed, stage, epoch, step): batches come from ``Loader.epoch(e, start)``, and the
generator that dropout draws from is seeded before every step. So a checkpoint needs no generator's state, and a run
that was interrupted between any two steps goes on to the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import Split
from ..data.loader import Batch, Loader
from ..errors import InputError, RunError
from ..plan import Plan, Stage
from ..probabilities import reading
from ..runs.checkpoint import Checkpoint, Position, encode
from ..runs.schema import parse
from .forward import class_means
from .process import Interrupted, Ranks
from .progress import EpochSums, Progress, Watcher
from .recipe import Recipe
from .sgd import SGD
from .stage import (
    Average,
    Trained,
    choose_precision,
    convolves,
    derive,
    fitting,
    needs_logits,
    parameter_groups,
    renew_statistics,
    restore,
)

# Embeddings that no network in training has: their squares leave float32
DIVERGED = 1e15


@dataclass(frozen=True)
class Saving:
    """When and where the state of a run goes, and who may stop it.

    Attributes:
        save: called with the steps done and a checkpoint's bytes at the end of each epoch and stage, and within an
            epoch every ``seconds`` or ``steps``; None keeps nothing.
        stop: asked after every step; a signal's number ends training with ``Interrupted``, after saving.
    """

    save: Callable[[int, bytes], None] | None = None
    seconds: float = 60.0
    steps: int | None = None
    stop: Callable[[], int] = lambda: 0


ALONE, NOWHERE = Ranks(), Saving()


def fit(
    model: nn.Module,
    plan: Plan,
    train: Split,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    ranks: Ranks = ALONE,
    saving: Saving = NOWHERE,
    watchers: Sequence[Watcher] = (),
    state: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Train ``model`` in place through all stages of ``plan``; needs no run folder. See ``Trainer``."""
    trainer = Trainer(model, plan, train, recipe, seed=seed, device=device, ranks=ranks, saving=saving)
    return trainer.run(watchers, state)


class Trainer:
    """The state of a run in memory; the phases are methods so that each can be read alone.

    ``train`` is what is learnt from: validation and test data are never seen here.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        train: Split,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compile: bool = False,
        workers: int = 0,
        ranks: Ranks = ALONE,
        saving: Saving = NOWHERE,
    ) -> None:
        self.device = torch.device(device)
        self.model, self.plan, self.train, self.recipe = model.to(self.device), plan, train, recipe
        self.seed, self.compile, self.workers, self.ranks, self.saving = seed, compile, workers, ranks, saving
        self.bf16 = choose_precision(recipe.precision, model, self.device) == "bf16"
        self.channels_last = convolves(model)
        if self.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.free = {p for p in model.parameters() if p.requires_grad}
        self.epochs = plan.epochs(recipe.epochs)
        self.at = Position(0, 0, 0, 0)
        self.watchers: Sequence[Watcher] = ()
        self.rows: list[dict[str, Any]] = []
        self.sums = EpochSums()
        self.average: Average | None = None
        self.key_average: Average | None = None
        # What a stage that goes on takes up: tensors of the stage before it, or of a checkpoint
        self.carried: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()
        self._start_bias()

    def run(self, watchers: Sequence[Watcher] = (), state: Checkpoint | None = None) -> list[dict[str, Any]]:
        """All stages, or from ``state`` on those that are left.

        Returns:
            one row an epoch, as in ``metrics.jsonl``; a resumed run returns those since.

        Raises:
            RunError: a loss or a weight is not finite; names the step and the parts.
        """
        self.watchers = watchers
        # The caller's generator is none of ours
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            if state is not None:
                self.load(state)
            for index in range(self.at.stage, len(self.plan.stages)):
                self.enter(index)
                for epoch in range(self.at.epoch, self.epochs[index]):
                    self._epoch(index, epoch)
                self._leave(index)
        for p in self.free:
            p.requires_grad_(True)
        return self.rows

    # -- one stage --------------------------------------------------------------------------------------------------

    def enter(self, index: int) -> None:
        """Set up a stage; what changes the model or the objective happens only where it begins."""
        stage, begins = self.plan.stages[index], (self.at.epoch, self.at.step) == (0, 0)
        # Momentum and average go on in the middle of a stage, and into one that shares the schedule before it
        goes_on = not begins or not (stage.restart or index == 0)
        self.objective = stage.objective.to(self.device).train()
        self.objective.distributed = self.ranks.world > 1
        if begins and stage.reset_head:
            self._reset_head(index)
        if begins and stage.centroids:
            self._set_centroids(stage)
        if not begins:
            self._load("objective", self.objective)
        self.net = Trained(self.model, stage.trains, self.free, needs_logits(self.objective)).to(self.device)
        if self.net.scale is not None and not begins:
            restore({"scale": self.net.scale}, self.carried)
        groups = parameter_groups(self.net, self.recipe.weight_decay, self.recipe.backbone_lr)
        self.optimizer = SGD(groups, self.recipe.momentum, self.recipe.nesterov)
        if goes_on:
            self._restore_momentum()
        self.average = None if self.recipe.ema is None else Average(self.net, self.recipe.ema)
        if self.average is not None and goes_on:
            restore(self.average.values, _under(self.carried, "ema."))
        self.key_average = None if stage.key_ema is None else Average(self.net, stage.key_ema)
        if self.key_average is not None and not begins:
            restore(self.key_average.values, _under(self.carried, "key_ema."))
        self.carried = {}
        so_far = replace(self.plan, stages=self.plan.stages[: index + 1])
        self.reading = reading(so_far, self.objective.counts) if needs_logits(self.objective) else None
        self.forward = self.ranks.wrap(self.net)
        if self.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        # Stages of one schedule count their epochs together
        first = max(i for i in range(index + 1) if i == 0 or self.plan.stages[i].restart)
        after = next((i for i in range(index + 1, len(self.epochs)) if self.plan.stages[i].restart), len(self.epochs))
        self.schedule = self.recipe.with_epochs(sum(self.epochs[first:after]))
        self.epochs_before = sum(self.epochs[first:index])
        self.loader = self._loader(stage, index)
        self.net.train()

    def _leave(self, index: int) -> None:
        """Fold into the model what the stage learnt beside it, and save: the next stage starts from the model alone."""
        following = self.plan.stages[index + 1] if index + 1 < len(self.plan.stages) else None
        if self.average is not None and (following is None or following.restart):
            self.average.write()
            self.average = None
            self._seed(derive(self.seed, index, self.epochs[index]))
            with self._precision():
                renew_statistics(self.net, self.loader.epoch(0))
        self.net.fold()
        # DDP that outlived its process group would free it with Python's lock held, and can wait for ever for a thread
        # of the group's that needs that lock
        self.forward = self.net
        self.at = Position(index + 1, 0, 0, self.at.done)
        self._save()
        self.carried = self.tensors()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def _loader(self, stage: Stage, index: int) -> Loader:
        return Loader(
            self.train, self.ranks.share(self.recipe.batch_size), epochs=self.epochs[index],
            seed=self.seed if index == 0 else derive(self.seed, index), sampler=stage.sampler, views=stage.views,
            counts=stage.objective.counts, augment=self.recipe.augment, device=self.device, workers=self.workers,
            rank=self.ranks.rank, world_size=self.ranks.world, channels_last=self.channels_last,
        )  # fmt: skip

    def _reset_head(self, index: int) -> None:
        head: Any = self.model.head
        self._seed(derive(self.seed, index))
        head.reset_parameters()
        self._start_bias()

    def _start_bias(self) -> None:
        head: Any = self.model.head
        if self.plan.head_bias is not None and head.bias is not None:
            nn.init.constant_(head.bias, self.plan.head_bias)

    def _seed(self, seed: int) -> None:
        # Not torch.manual_seed: asking after every kind of device takes longer than a small network's forward pass
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _set_centroids(self, stage: Stage) -> None:
        means = class_means(self.model, self.train, stage.objective.counts.num_classes, self.device, self.workers)
        self.ranks.tensor_from_first(means)
        for _, term in stage.objective.weighted:
            if hasattr(term, "set_centroids"):
                term.set_centroids(means)  # type: ignore[operator]

    # -- one epoch, one step ----------------------------------------------------------------------------------------

    def _epoch(self, index: int, epoch: int) -> None:
        stage, steps = self.plan.stages[index], len(self.loader)
        number = sum(self.epochs[:index]) + epoch + 1
        if self.at.step == 0:
            self.sums = EpochSums()
        started = time.monotonic() - self.sums.seconds
        for step, batch in enumerate(self.loader.epoch(epoch, self.at.step), self.at.step):
            in_schedule = (self.epochs_before + epoch) * steps + step
            lr = self.schedule.lr_at(in_schedule, steps)
            self.step(batch, lr, (index, epoch, step))
            for average in (self.average, self.key_average):
                if average is not None:
                    average.update(in_schedule)
            self.sums.seconds = time.monotonic() - started
            share = (number - 1 + (step + 1) / steps) / sum(self.epochs)
            now = Progress(stage.name, number, sum(self.epochs), step + 1, steps, lr, self.sums, share)
            for watcher in self.watchers:
                watcher.step(now)
            self.at = Position(index, epoch, step + 1, self.at.done + 1)
            if step + 1 < steps:
                self._maybe_save()
        row = {"stage": stage.name, "epoch": number, "stage_epoch": epoch + 1, "step": self.at.done, "lr": lr}
        row |= self.sums.row()
        self.rows.append(row)
        for watcher in self.watchers:
            watcher.epoch(row)
        self.at = Position(index, epoch + 1, 0, self.at.done)
        # The last epoch's checkpoint is the stage's, made when it is left
        if epoch + 1 < self.epochs[index]:
            self._maybe_save(due=True)

    def step(self, batch: Batch, lr: float, where: tuple[int, int, int]) -> None:
        """One step of SGD at ``where``: stage, epoch and step."""
        self._seed(derive(self.seed, *where, self.ranks.rank))
        with self._precision():
            outputs = self.forward(batch.inputs)
            keys = None if self.key_average is None else self.key_average.outputs(self.net, batch.inputs).embeddings
        labels = batch.labels if batch.targets is None else batch.targets
        self.sums.count_alive(self.objective, labels, batch.ids)
        try:
            loss, parts = self.objective(outputs, labels, batch.ids, return_parts=True, key_embeddings=keys)
        except InputError as error:
            # What a loss refuses as its input is no mistake of the caller's if the network's own outputs have diverged
            if float(outputs.embeddings.detach().abs().max()) < DIVERGED:
                raise
            raise RunError(
                f"{self._where(where)}: {error} A lower --lr may help; the last checkpoint is kept"
            ) from None
        self.sums.add(len(batch.labels) * self.ranks.world, loss, parts)
        if self.reading is not None:
            unmixed = slice(None) if batch.targets is None else batch.targets.amax(1) == 1
            scores = self.reading.scores(outputs.logits[unmixed])
            self.sums.count_groups(scores, batch.labels[unmixed], self.objective.counts)
        if not math.isfinite(self.sums.last):
            values = ", ".join(f"{name} = {float(v):g}" for name, v in parts.items())
            raise RunError(
                f"the loss is not finite in {self._where(where)}: {values}; a lower --lr may help, and the last good "
                "checkpoint is kept"
            )
        self.optimizer.zero_grad()
        loss.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.optimizer.parameters, self.recipe.clip)
        self.optimizer.step(lr)

    def _where(self, where: tuple[int, int, int]) -> str:
        return f"step {self.at.done + 1} (stage {self.plan.stages[where[0]].name}, epoch {where[1] + 1})"

    # -- state ------------------------------------------------------------------------------------------------------

    def _maybe_save(self, due: bool = False) -> None:
        """Save where it is time to, and stop where somebody asked for it: all ranks at the same step."""
        signal = self.ranks.any(self.saving.stop())
        if self.saving.steps:
            due = due or self.at.done % self.saving.steps == 0
        if due or signal or time.monotonic() - self._saved_at > self.saving.seconds:
            self._save()
        if signal:
            raise Interrupted(signal)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self.saving.save is None or not self.ranks.first:
            return
        tensors = self.tensors()
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise RunError(
                    f"{name} holds values that are not finite after step {self.at.done}: a lower --lr may help, and "
                    "the last good checkpoint is kept"
                )
        meta = {"format": 1, "at": asdict(self.at), "sums": asdict(self.sums), "processes": self.ranks.world}
        self.saving.save(self.at.done, encode(tensors, meta))

    def tensors(self) -> dict[str, Tensor]:
        """All that the rest of the run depends on, besides the position."""
        groups = {
            "model.": self.model.state_dict(),
            "momentum.": self._momentum(),
            "objective.": self.objective.state_dict(),
            "ema.": {} if self.average is None else self.average.values,
            "key_ema.": {} if self.key_average is None else self.key_average.values,
            "": {} if self.net.scale is None else {"scale": self.net.scale},
        }
        return {prefix + name: tensor for prefix, group in groups.items() for name, tensor in group.items()}

    def problem(self, state: Checkpoint) -> str | None:
        """Why a checkpoint cannot be a state of this run, or None."""
        try:
            parse(EpochSums, state.meta.get("sums"), "sums")
        except InputError as error:
            return f"its sums of the epoch are damaged: {error}"
        processes = state.meta.get("processes", 1)
        if type(processes) is not int or processes < 1:
            return f"it says that {processes!r} processes wrote it"
        steps = [len(self._loader(stage, index)) for index, stage in enumerate(self.plan.stages)]
        return state.at.problem(list(zip(self.epochs, steps)))

    def load(self, state: Checkpoint) -> None:
        """Go on from a checkpoint of the same plan, recipe and data."""
        self.at, self.sums = state.at, parse(EpochSums, state.meta.get("sums"), "sums")
        self.carried = state.tensors
        self._load("model", self.model)
        for name, tensor in self.model.state_dict().items():  # of another type it would have been rounded in silence
            fitting(self.carried, f"model.{name}", tensor)

    def _load(self, what: str, module: nn.Module) -> None:
        try:
            module.load_state_dict(_under(self.carried, f"{what}."))
        except RuntimeError as error:
            said = str(error).splitlines()[-1].strip()
            raise RunError(f"the checkpoint does not fit the {what}, it is of another run ({said})") from error

    def _momentum(self) -> dict[str, Tensor]:
        momenta = self.optimizer.momenta
        return {name: momenta[p] for name, p in self.net.named_parameters() if p in momenta}

    def _restore_momentum(self) -> None:
        momentum = _under(self.carried, "momentum.")
        for name, p in self.net.named_parameters():
            if name in momentum and p.requires_grad:
                self.optimizer.momenta[p] = fitting(momentum, name, p).to(p).clone()


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
