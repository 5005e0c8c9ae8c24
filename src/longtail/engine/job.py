"""One run from its settings to its folder: data, plan, recipe, model; train; evaluate; write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__, methods, models, plugins
from ..data import Dataset, load, names
from ..data.augment import of_images, stored_name
from ..embed import Progress
from ..errors import InputError
from ..evaluate import accuracy
from ..plan import Plan
from ..runs.checkpoint import Checkpoint, decode
from ..runs.folder import (
    RunFolder,
    config_and_rows,
    default_folder,
    differences,
    environment,
    identity,
    last_checkpoint,
)
from ..runs.read import UnreadableError, read
from . import process, recipe
from .backbone import Use, settle
from .finish import finish, space_needed, split_facts, too_many_logits
from .forward import outputs
from .process import Interrupted, Ranks, pick_device
from .progress import Watcher, introduce, tracker
from .recipe import BACKBONE_LR, Recipe
from .settings import Job
from .stage import choose_precision
from .train import Saving, Trainer


@dataclass(frozen=True)
class Prepared:
    """A job with everything that it names at hand, and its backbone decided."""

    job: Job
    data: Dataset
    plan: Plan
    recipe: Recipe
    model: nn.Module
    device: torch.device
    config: dict[str, Any]


def ignore(text: str) -> None:
    """Say nothing."""


def prepare(job: Job, say: Callable[[str], None] = ignore, progress: Progress | None = None) -> Prepared:
    """Load the data, build plan, recipe and model, and write the config; every mistake in the settings shows here.

    ``progress`` is told of images that a backbone embeds."""
    job.check()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    device = pick_device(job.device)
    data = load(job.data, root=job.root, **job.options)
    job, use = settle(job, data, say, progress)
    data = data if use is None else use.data
    plan = plan_for(job, data)
    # So that a report need not ask a later version what the default was
    default = methods.build(job.method, data.counts, data=data.name)
    how = _recipe(job, data, use)
    torch.manual_seed(job.seed)
    options = {k: v for k, v in how.model_options.items() if k != "head"}
    inputs = data if use is None else use.features
    model = models.build(how.model, data.num_classes, inputs.input_shape, plan.needed_head, how.standardise, **options)
    if how.standardise:
        models.fit_standardise(model, inputs.train.inputs, data.train.labels, alike=how.standardise == "alike")
    if use is not None and use.tuned:
        model = models.pretrained.tuned(use.backbone, model, use.part)
    precision = choose_precision(how.precision, model, device)
    how = how.replace(precision=precision)
    augmented = [] if data.kind == "features" else [of_images(how.augment, data.train).sentence()]
    config = {
        "format": 1,
        "longtail": __version__,
        "method": job.method,
        "knobs": dict(plan.knobs),
        "changed": {k: v for k, v in plan.knobs.items() if default.knobs.get(k) != v},
        "data": {
            "name": job.data,
            "root": job.root,
            "options": dict(job.options),
            "fingerprint": data.fingerprint,
        },
        "model": how.model,
        "recipe": how.to_dict(),
        "seed": job.seed,
        "epochs": how.epochs,
        "precision": precision,
        "compile": job.compile,
        "threads": torch.get_num_threads(),
        "decisions": [
            *how.decisions(None if use is None else use.sentence()), *augmented, *plan.notes
        ],
    }  # fmt: skip
    if use is not None:
        config["backbone"] = use.config()
    return Prepared(job, data, plan, how, model, device, config)


def plan_for(job: Job, data: Dataset) -> Plan:
    """The job's method on these data; refuses what the data cannot serve."""
    plan = methods.build(job.method, data.counts, data=data.name, **job.knobs)
    asking = [f"{job.method} chooses {step.knob} on" for step in plan.posthoc]
    asking += ["--validate-every looks at"] if job.validate_every else []
    if data.val is None and asking:
        raise InputError(
            f"{asking[0]} validation data, and {job.data} has none: "
            "--option holdout=0.1 takes a tenth of the training data for it"
        )
    for step in plan.posthoc:
        if step.kind == "knn" and too_many_logits(data):
            raise InputError(f"{job.data} is too large for k-NN: --set classifier=linear learns a linear head instead")
    return plan


def _recipe(job: Job, data: Dataset, use: Use | None) -> Recipe:
    tuned = use is not None and use.tuned
    # By what was asked for, not by the data's own name: somebody's folder may be called images, features or moons
    name = job.data if use is None and job.data in names() else ""
    small = data.kind == "files" and max(data.input_shape) <= recipe.SMALL_IMAGE
    kind: str = "images" if small else data.kind
    if use is not None:
        kind = "tuned" if tuned else "embeddings"
    chosen = recipe.default_for(name, kind) if job.recipe is None else recipe.get(job.recipe)
    changes = job.recipe_fields()
    width = data.input_shape[0] if data.kind == "features" else 0
    chosen = chosen.for_samples(len(data.train), changes.get("batch_size"), width).set(changes)
    chosen = chosen.replace(backbone_lr=(chosen.backbone_lr or BACKBONE_LR) if tuned else None)
    if data.kind != "features":
        standardise = chosen.standardise if tuned else False
        chosen = chosen.replace(augment=stored_name(chosen.augment, data.train), standardise=standardise)
    return chosen


def execute(
    job: Job,
    *,
    say: Callable[[str], None],
    watchers: Sequence[Watcher] = (),
    stop: Callable[[], int] = lambda: 0,
) -> Path:
    """Do a run, go on with it, or find that it is finished; returns its folder.

    Raises:
        InputError: a mistake in the settings, or a folder that must not be written.
        RunError: a run that failed.
        Interrupted: ``stop`` named a signal; the state is saved.
    """
    return perform(prepare(job, say), say=say, watchers=watchers, stop=stop)


def perform(
    ready: Prepared,
    *,
    say: Callable[[str], None],
    watchers: Sequence[Watcher],
    stop: Callable[[], int],
) -> Path:
    """``execute`` for a job that is prepared."""
    job = ready.job
    path = Path(job.out) if job.out is not None else default_folder(ready.config, Path(job.under))
    with process.ranks(ready.device) as ranks:
        ranks.share(ready.recipe.batch_size)
        if not ranks.first:
            _follow(ready, ranks, stop)
            return path
        with RunFolder(path, ready.config, force=job.force) as run:
            found = run.open(resume=job.resume, need=space_needed(ready.data, ready.model))
            if found == "finished":
                say(f"{path} is finished: nothing to do (--force runs it again)")
                ranks.bytes_from_first(b"finished")
                return path
            try:
                _lead(ready, ranks, run, found == "resume", say, watchers, stop)
            except BaseException as error:
                # A mistake that shows only now must not leave a run behind that was never begun, and nothing that goes
                # wrong before there is a checkpoint may cost the run that was to be replaced
                if found == "fresh" and (isinstance(error, InputError) or run.replaces):
                    run.withdraw()
                raise
    return path


def _lead(
    ready: Prepared,
    ranks: Ranks,
    run: RunFolder,
    goes_on: bool,
    say: Callable[[str], None],
    watchers: Sequence[Watcher],
    stop: Callable[[], int],
) -> None:
    """What the first rank does: train, and write everything."""
    job = ready.job
    trainer = _trainer(ready, ranks, Saving(run.save, job.save_seconds, job.save_steps, stop))
    saved = last_checkpoint(run.path, lambda text: say(f"warning: {text}"), trainer.problem) if goes_on else None
    before = saved[1].meta.get("processes", ranks.world) if saved else ranks.world
    if before != ranks.world:  # sums over other parts of a batch round otherwise
        raise InputError(
            f"{run.path} was begun by {before} process(es) and cannot go on with {ranks.world} to the same bits: use "
            f"torchrun --nproc-per-node {before}, or --force to start it afresh"
        )
    if job.resume:
        say(f"going on from {run.path}" if saved else f"{run.path} has no usable checkpoint: starting afresh")
    about = environment(str(ready.device), job.command())
    rows: list[dict[str, Any]] = []
    if saved is None and job.begin_with is not None:
        saved, rows = _begin_with(Path(job.begin_with), ready)
        about["begun_with"] = Path(job.begin_with).resolve().name
        say(f"beginning with what {job.begin_with} trained")
    run.start(split_facts(ready.data), about, keep=goes_on)
    data, state = saved or (b"", None)
    if state is not None and rows:
        run.forget_after(0)
        for row in rows:
            run.log(row)
        run.save(state.at.done, data)
    ranks.bytes_from_first(data)
    run.forget_after(0 if state is None else sum(trainer.epochs[: state.at.stage]) + state.at.epoch)
    introduce(ready, say)
    trackers = [tracker(name, run.path, ready.config) for name in job.track]
    trainer.run([_Validate(ready), _Log(run), *watchers, *trackers], state)
    process.leave()
    if signal := stop():
        raise Interrupted(signal)
    for concern in finish(run, ready):
        say(f"warning: {concern}")


def _follow(ready: Prepared, ranks: Ranks, stop: Callable[[], int]) -> None:
    """What every rank but the first does: the same steps, and no file is written."""
    saved = ranks.bytes_from_first(None)
    if saved == b"finished":
        return
    _trainer(ready, ranks, Saving(stop=stop)).run(state=decode(saved) if saved else None)
    process.leave()


def _trainer(ready: Prepared, ranks: Ranks, saving: Saving) -> Trainer:
    job = ready.job
    return Trainer(
        ready.model, ready.plan, ready.data.train, ready.recipe, seed=job.seed, device=ready.device,
        compile=job.compile, workers=job.workers, ranks=ranks, saving=saving,
    )  # fmt: skip


def _begin_with(path: Path, ready: Prepared) -> tuple[tuple[bytes, Checkpoint], list[dict[str, Any]]]:
    """The last checkpoint of a finished run whose stages are the job's first ones, and the rows of its epochs: what the
    later stages of cRT, LWS or multi-stage DRO-LT work on is cross-entropy's network.

    Raises:
        InputError: there is no such run, or it is not what the plan begins with; says in what they differ.
    """
    try:
        run = read(path)
    except UnreadableError as error:
        raise InputError(f"cannot begin with {path}: {error.reason}") from None
    other, rows = config_and_rows(path)
    of_method = ("method", "knobs")
    mine, its = ({k: v for k, v in identity(c).items() if k not in of_method} for c in (ready.config, other))
    if changed := differences(its, mine):
        raise InputError(f"cannot begin with {path}, which was trained otherwise: {'; '.join(changed)}")
    with plugins.barred(path):
        first = methods.build(run.method, ready.data.counts, **run.config.knobs)
    if not ready.plan.begins_with(first, models.own_head(ready.recipe.model)):
        raise InputError(
            f"cannot begin with {path}: the stages of {ready.plan.method} do not begin with {first.method}'s"
        )
    found = last_checkpoint(path)
    if found is None or found[1].at.stage != len(first.stages):
        raise InputError(f"cannot begin with {path}: the checkpoint of its last step is not there")
    # Without what its own end was measured to be
    return found, [{k: v for k, v in row.items() if k not in ("val", "test")} for row in rows]


class _Validate(Watcher):
    """Adds to the row of every so manieth epoch how the network, as it is then, does on the validation data."""

    def __init__(self, ready: Prepared) -> None:
        self.ready = ready

    def epoch(self, row: dict[str, Any]) -> None:
        every, val = self.ready.job.validate_every, self.ready.data.val
        if every and val is not None and row["epoch"] % every == 0:
            logits, _ = outputs(self.ready.model, val, self.ready.device, self.ready.job.workers)
            found = accuracy.summary(logits, val.labels, self.ready.data.counts)
            groups = {name: value for name, (value, _) in found.groups.items()}
            row["val"] = {"balanced": found.balanced, "accuracy": found.accuracy, "groups": groups}


class _Log(Watcher):
    """Writes metrics.jsonl."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def epoch(self, row: dict[str, Any]) -> None:
        self.run.log(row)
