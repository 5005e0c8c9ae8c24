"""One run from its settings to its folder: data, plan, recipe, model; train; evaluate; write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__, methods, models
from ..data import Dataset, load, names
from ..data.augment import of_images, stored_name
from ..errors import InputError
from ..margins import from_data
from ..plan import Plan
from ..runs.checkpoint import Checkpoint, decode
from ..runs.folder import RunFolder, default_folder, environment
from . import beginning, distributed, recipe
from .finish import finish, too_many_logits
from .net import choose_precision
from .recipe import Recipe
from .settings import Job
from .train import Interrupted, Watcher, fit


@dataclass(frozen=True)
class Prepared:
    """A job with everything that it names at hand."""

    data: Dataset
    plan: Plan
    recipe: Recipe
    model: nn.Module
    device: torch.device
    config: dict[str, Any]


def prepare(job: Job) -> Prepared:
    """Load the data, build plan, recipe and model, and write the config; every mistake in the settings shows here."""
    # scikit-learn, which draws the t-SNE at the end, takes 32 bits
    if isinstance(job.seed, bool) or not isinstance(job.seed, int) or not 0 <= job.seed < 2**32:
        raise InputError(f"seed must be a whole number in [0, 2^32), got {job.seed!r}")
    if job.threads is not None:
        if job.threads < 1:
            raise InputError(f"threads must be at least 1, got {job.threads}")
        torch.set_num_threads(job.threads)
    device = distributed.pick_device(job.device)
    if job.recipe is not None:
        recipe.get(job.recipe)
    methods.knobs(job.method)
    data = load(job.data, root=job.root, **job.options)
    plan = methods.build(job.method, data.counts, data=data.name, **job.knobs)
    for step in plan.posthoc:
        if data.val is None:
            raise InputError(
                f"{job.method} chooses {step.knob} on validation data, and {job.data} has none: "
                "--option holdout=0.1 takes a tenth of the training data for it"
            )
        if step.kind == "knn" and too_many_logits(data):
            raise InputError(f"{job.data} is too large for k-NN: --set classifier=linear learns a linear head instead")
    how = _recipe(job, data)
    torch.manual_seed(job.seed)
    options = {k: v for k, v in how.model_options.items() if k != "head"}
    model = models.build(how.model, data.num_classes, data.input_shape, head=plan.head, **options)
    precision = choose_precision(job.precision or how.precision, model, device)
    how = how.replace(precision=precision)
    config = {
        "format": 1,
        "longtail": __version__,
        "method": job.method,
        "knobs": dict(plan.knobs),
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
        "decisions": [*how.decisions(), *_augmentation(how, data), *plan.notes],
    }
    return Prepared(data, plan, how, model, device, config)


def _recipe(job: Job, data: Dataset) -> Recipe:
    # By what was asked for, not by the data's own name: somebody's folder may be called images, features or moons
    name = job.data if job.data in names() else ""
    chosen = recipe.default_for(name, data.kind) if job.recipe is None else recipe.get(job.recipe)
    if job.recipe is None and job.batch_size is None:
        chosen = chosen.for_samples(len(data.train))
    fields = ("model", "batch_size", "lr", "clip", "ema", "augment")
    changes = {field: getattr(job, field) for field in fields if getattr(job, field) is not None}
    chosen = chosen.replace(**changes) if changes else chosen
    if data.kind != "features":
        chosen = chosen.replace(augment=stored_name(chosen.augment, data.train))
    return chosen if job.epochs is None else chosen.with_epochs(job.epochs)


def _augmentation(how: Recipe, data: Dataset) -> list[str]:
    return [] if data.kind == "features" else [of_images(how.augment, data.train).sentence()]


def folder_of(job: Job, ready: Prepared) -> Path:
    """Where the run goes: ``--out``, or a name of its own under ``runs/``."""
    return Path(job.out) if job.out is not None else default_folder(ready.config, Path(job.under))


def execute(
    job: Job,
    *,
    say: Callable[[str], None],
    watchers: Callable[[Prepared, Path], Sequence[Watcher]] = lambda ready, path: (),
    stop: Callable[[], int] = lambda: 0,
) -> Path:
    """Do a run, go on with it, or find that it is finished; returns its folder.

    Raises:
        InputError: a mistake in the settings, or a folder that must not be written.
        RunError: a run that failed.
        Interrupted: ``stop`` named a signal; the state is saved.
    """
    ready = prepare(job)
    path = folder_of(job, ready)
    with distributed.ranks(ready.device) as ranks:
        ranks.share(ready.recipe.batch_size)
        if not ranks.first:
            _follow(job, ready, ranks, stop)
            return path
        run = RunFolder(path, ready.config)
        if not job.force:
            run.refuse_foreign_files()
        with run:
            found = run.open(resume=job.resume, force=job.force, need=space_needed(ready))
            if found == "finished":
                say(f"{path} is finished: nothing to do (--force runs it again)")
                ranks.bytes_from_first(b"finished")
                return path
            try:
                _lead(job, ready, ranks, run, found == "resume", say, lambda: watchers(ready, path), stop)
            except BaseException as error:
                # A mistake that shows only now must not leave a run behind that was never begun, and nothing that goes
                # wrong before there is a checkpoint may cost the run that was to be replaced
                if found == "fresh" and (isinstance(error, InputError) or run.replaces):
                    run.withdraw()
                raise
    return path


def _lead(
    job: Job,
    ready: Prepared,
    ranks: distributed.Ranks,
    run: RunFolder,
    goes_on: bool,
    say: Callable[[str], None],
    watchers: Callable[[], Sequence[Watcher]],
    stop: Callable[[], int],
) -> None:
    """What the first rank does: train, and write everything."""
    saved = run.latest(lambda text: say(f"warning: {text}")) if goes_on else None
    if job.resume:
        say(f"going on from {run.path}" if saved else f"{run.path} has no usable checkpoint: starting afresh")
    about = environment(str(ready.device), job.command())
    begun = None
    if saved is None and job.begin_with is not None:
        begun = beginning.take(Path(job.begin_with), ready.plan, ready.config, ready.data.counts)
        about["begun_with"] = Path(job.begin_with).resolve().name
        say(f"beginning with what {job.begin_with} trained")
    run.start(_split_facts(ready.data), about, keep=goes_on)
    if begun is not None:
        saved = begun.state
        run.forget_after(0)
        for row in begun.rows:
            run.log(row)
        run.save(begun.steps, saved)
    ranks.bytes_from_first(b"" if saved is None else saved)
    state = decode(saved) if saved else None
    run.forget_after(_epochs_done(ready.plan, ready.recipe, state.meta["at"]) if state else 0)
    _introduce(ready, say)
    _fit(job, ready, ranks, state, stop, watchers=[_Log(run), *watchers()], save=run.save)
    distributed.leave()
    if signal := stop():
        raise Interrupted(signal)
    finish(run, ready.model, ready.plan, ready.data, ready.device, job.seed, job.workers)


def _follow(job: Job, ready: Prepared, ranks: distributed.Ranks, stop: Callable[[], int]) -> None:
    """What every rank but the first does: the same steps, and no file is written."""
    saved = ranks.bytes_from_first(None)
    if saved == b"finished":
        return
    _fit(job, ready, ranks, decode(saved) if saved else None, stop)
    distributed.leave()


def _fit(
    job: Job,
    ready: Prepared,
    ranks: distributed.Ranks,
    state: Checkpoint | None,
    stop: Callable[[], int],
    watchers: Sequence[Watcher] = (),
    save: Callable[[int, bytes], None] | None = None,
) -> None:
    fit(
        ready.model, ready.plan, ready.data.train, ready.recipe,
        seed=job.seed, device=ready.device, compile=job.compile, workers=job.workers, ranks=ranks, watchers=watchers,
        state=state, save=save, save_seconds=job.save_seconds, save_steps=job.save_steps, stop=stop,
    )  # fmt: skip


class _Log:
    """The watcher that writes metrics.jsonl."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def step(self, now: Any) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        self.run.log(row)


def _epochs_done(plan: Plan, how: Recipe, at: Mapping[str, int]) -> int:
    return sum(plan.epochs(how.epochs)[: at["stage"]]) + at["epoch"]


def space_needed(ready: Prepared) -> int:
    """Bytes that the run will write: three checkpoints at once (weights, momentum, average), and the predictions."""
    weights = 4 * models.parameter_count(ready.model)
    data, width = ready.data, ready.data.num_classes + int(ready.model.embedding_size)  # type: ignore[arg-type]
    whole = [data.val, data.test] if too_many_logits(data) else [data.train, data.val, data.test]
    samples = sum(len(split) for split in whole if split is not None)
    return 10 * weights + 4 * samples * width + 1_000_000


def _split_facts(data: Dataset) -> dict[str, Any]:
    return {
        "fingerprint": data.fingerprint,
        "counts": data.counts.n.tolist(),
        "class_names": list(data.class_names),
        "train": len(data.train),
        "val": 0 if data.val is None else len(data.val),
        "test": len(data.test),
        "input": {
            "kind": data.kind,
            "shape": list(data.input_shape),
            "mean": None if data.train.mean is None else list(data.train.mean),
            "std": None if data.train.std is None else list(data.train.std),
        },
        "notes": list(data.notes),
    }


def _introduce(ready: Prepared, say: Callable[[str], None]) -> None:
    """What is about to run, and what was decided where the paper leaves it open."""
    data, how, model = ready.data, ready.recipe, ready.model
    val = f", {len(data.val)} val" if data.val is not None else ", no val"
    say(f"{data.name}: {data.num_classes} classes, {len(data.train)} train{val}, {len(data.test)} test")
    for note in data.notes:
        say(f"  {note}")
    say(
        f"{ready.plan.method} with {how.model} ({models.parameter_count(model):,} parameters), recipe {how.name}: "
        f"{sum(ready.plan.epochs(how.epochs))} epochs, batch {how.batch_size}, lr {how.lr:g}, {how.precision} "
        f"on {ready.device}, {torch.get_num_threads()} thread(s)"
    )
    if ready.plan.knobs:
        shown = {k: from_data(v) if isinstance(v, dict) else v for k, v in ready.plan.knobs.items()}
        say("  " + ", ".join(f"{k} = {v}" for k, v in shown.items()))
    for decision in ready.config["decisions"]:
        say(f"  {decision}")
