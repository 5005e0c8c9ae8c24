"""A pretrained backbone in a run: which one, what of it trains, and the data as it takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import Dataset, Split, names
from ..data.dataset import Files
from ..data.folder import TAKEN_AT
from ..embed import Precision, Progress, embed
from ..errors import InputError, one_of
from ..models import pretrained
from ..models.pretrained import PARTS, Backbone
from ..runs.folder import config_and_rows
from .process import pick_device
from .stage import has_bf16

if TYPE_CHECKING:
    from .settings import Job


@dataclass(frozen=True, eq=False)
class Use:
    """A backbone, the part of it that trains (``"head"`` is none), all images as its features, and what is trained on:
    these features, or the images."""

    backbone: Backbone
    part: str
    features: Dataset
    data: Dataset
    precision: str

    @property
    def tuned(self) -> bool:
        return self.part != "head"

    def config(self) -> dict[str, Any]:
        """What a run says of it."""
        return {**self.backbone.identity(), "train": self.part, "embedded": self.precision}

    def sentence(self) -> str:
        """What of it trains, in words."""
        name = f"The backbone {self.backbone.name} starts from its weights (digest {self.backbone.digest})"
        parts = {
            "head": "and stays as it is: its embeddings were computed once",
            "norms": "and trains its biases and normalisation layers",
            "last": "and trains its last block and what follows it",
            "all": "and trains as a whole",
        }
        free = [p.numel() for p in self.backbone.parameters() if p.requires_grad]
        how = f" ({sum(free):,} parameters, running statistics as they are)" if self.tuned else ""
        return f"{name} {parts[self.part]}{how}; images: {self.backbone.preprocessing}."


def choose(job: Job, kind: str) -> tuple[str | None, str, str]:
    """A backbone's name or None, what of it trains, and a line to print where nobody asked for what is done."""
    part = "head" if job.train is None else one_of("part of a backbone to train", job.train, PARTS)
    if job.backbone not in (None, "none"):
        return job.backbone, part, ""
    own_photos = kind == "files" and job.data not in names() and job.backbone is None
    if own_photos and job.recipe is None and "model" not in job.recipe_fields():
        if job.train is not None or pretrained.available():
            line = f"{job.data} holds images: training starts from {pretrained.DEFAULT} with ImageNet's weights"
            return pretrained.DEFAULT, part, f"{line} (--train {part}); --backbone none starts from scratch"
        return None, part, f"training from scratch; a pretrained backbone would help: {pretrained.install()}"
    if job.train is not None:
        raise InputError(f"--train {part} is about a backbone: give one, such as --backbone {pretrained.DEFAULT}")
    return None, part, ""


def settle(
    job: Job, data: Dataset, say: Callable[[str], None], progress: Progress | None = None
) -> tuple[Job, Use | None]:
    """The job with its backbone named, or ``"none"``, and that backbone with all images embedded, through the cache, or
    None where training starts from scratch. What is decided without being asked for is said."""
    job = _as_begun(job)
    name, part, line = choose(job, data.kind)
    if "backbone_lr" in job.recipe_fields() and (name is None or part == "head"):
        raise InputError("backbone_lr is for a backbone that trains: --train norms, last or all")
    if line:
        say(line)
    if name is None:
        return (job if job.data in names() else replace(job, backbone="none", train=None)), None
    if data.kind == "features":
        raise InputError(f"{job.data} holds features already, and a backbone takes images: leave --backbone out")
    device = pick_device(job.device)
    network = pretrained.load(name, job.options.get("size"))
    if part != "head":
        network.check_trainable()
    precision: Precision = "bf16" if job.precision != "fp32" and has_bf16(device) else "fp32"
    features = embed(data, network, precision=precision, device=device, progress=progress).data
    trained_on = features if part == "head" else _prepared(data, network)
    notes = [note for note in data.notes if not note.startswith(TAKEN_AT)]
    # Not the paper's data, and none of the defaults for them: features, or images as another network takes them
    trained_on = replace(trained_on, name=f"{data.name} by {name}", notes=notes)
    return replace(job, backbone=name, train=part), Use(network, part, features, trained_on, precision)


def _as_begun(job: Job) -> Job:
    """The job with the backbone that its run began with, where it goes on with one of one's own data and names none."""
    config = Path(job.out or "") / "config.json"
    if not job.resume or job.out is None or job.backbone is not None or job.data in names() or not config.is_file():
        return job
    before = config_and_rows(Path(job.out))[0].get("backbone")
    if before is None:
        return replace(job, backbone="none")
    return replace(job, backbone=before["name"], train=before["train"])


def _prepared(data: Dataset, backbone: Backbone) -> Dataset:
    """The images as a backbone takes them: files resized and cut by its rules, three channels, its normalisation."""
    how = backbone.preprocessing

    def split(old: Split) -> Split:
        inputs = old.inputs.prepared(how) if isinstance(old.inputs, Files) else old.inputs.expand(-1, 3, -1, -1)
        return replace(old, inputs=inputs, mean=how.mean, std=how.std)

    val = None if data.val is None else split(data.val)
    return replace(data, train=split(data.train), val=val, test=split(data.test))
