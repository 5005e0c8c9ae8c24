"""A finished run as something that classifies new inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from . import methods, models, plugins, posthoc
from .data.dataset import Files
from .data.images import open_image, readable
from .data.limits import reason
from .engine.recipe import Recipe
from .errors import InputError, whole
from .models.pretrained import Backbone, Prepare, Preprocessing, joined
from .probabilities import Reading, reading
from .runs.folder import differences
from .runs.predictions import training_embeddings, weights
from .runs.read import Run, read
from .runs.schema import Input

BATCH = 64


@dataclass(frozen=True, eq=False)
class Restored:
    """What a run learnt, ready for use.

    Attributes:
        kind, shape: what the model takes: ``"features"`` (K,), ``"images"`` or ``"files"`` (channels, H, W).
        mean, std: by channel, of pixels in [0, 1]; None leaves them as they are.
        prepare: decoded images (B, H, W, 3) of any size as the model takes them, where the run was on image files or
            has a backbone.
        neighbours: training embeddings, their labels and k, where the run ended in k-NN.
        columns: the names of features, where the run's data had a table's.
    """

    model: nn.Module
    class_names: list[str]
    kind: str
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    reading: Reading
    neighbours: tuple[Tensor, Tensor, int] | None
    prepare: Prepare | None = None
    backbone: Backbone | None = None
    columns: list[str] | None = None

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Tensor:
        """Probabilities (B, C) of normalised inputs."""
        logits, embeddings = self.model(x)
        if self.neighbours is not None:
            known, labels, k = self.neighbours
            logits = posthoc.knn(embeddings, known, labels, len(self.class_names), k)
        return self.reading.scores(logits).softmax(1)

    def of_images(self, paths: list[Path]) -> Iterator[Tensor]:
        """Probabilities of image files, a batch at a time, prepared as the run's own test images were."""
        if self.kind == "features":
            raise InputError(f"the run was trained on {self.shape[0]} features a sample: give it an .npz, .npy or .csv")
        for start in range(0, len(paths), BATCH):
            yield self.probabilities(self._pixels(paths[start : start + BATCH]))

    def of_features(self, x: Tensor) -> Tensor:
        """Probabilities (N, C) of features (N, K)."""
        if self.kind != "features":
            raise InputError(f"the run was trained on images of shape {self.shape}, not on features")
        if x.ndim != 2 or x.shape[1] != self.shape[0]:
            raise InputError(f"the run was trained on {self.shape[0]} features a sample, got shape {tuple(x.shape)}")
        return torch.cat([self.probabilities(part) for part in x.split(1000)])

    def _pixels(self, paths: list[Path]) -> Tensor:
        if self.prepare is not None:
            return torch.cat([self.prepare(_decoded(path)[None]) for path in paths])
        return self.normalised(torch.stack([_whole_image(path, self.shape) for path in paths]) / 255)

    def normalised(self, x: Tensor) -> Tensor:
        """Images (B, channels, H, W) in [0, 1] as the model takes them; features as they are."""
        for value, apply in ((self.mean, torch.sub), (self.std, torch.div)):
            x = x if value is None else apply(x, torch.tensor(value).view(-1, 1, 1))
        return x


def _decoded(path: Path) -> Tensor:
    """A file's pixels, uint8 (H, W, 3), all of them: what any other program that uses an exported model has."""
    with readable(path):
        return torch.from_numpy(np.ascontiguousarray(open_image(path.read_bytes()).pixels(1)))


def _whole_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """A file as uint8 of the shape that an in-memory data set has: resized as a whole, not cropped."""
    planes = _decoded(path).permute(2, 0, 1)
    if planes.shape[1:] != shape[1:]:
        size = (shape[1], shape[2])
        planes = torch.nn.functional.interpolate(planes[None], size, mode="bilinear", antialias=True)[0]
    return planes.float().mean(0, keepdim=True).round().to(torch.uint8) if shape[0] == 1 else planes


def restore(run: str | Path, trust_code: bool = False) -> Restored:
    """Load a finished run's model and all that is needed to use it; no pickle is read.

    A run of a model, backbone or method of somebody's own (``package.module:name``) names code. ``trust_code`` imports
    and runs it.
    """
    path = Path(run)
    if not path.is_dir():
        raise InputError(f"there is no run folder {path}")
    found = read(path)
    given = _input(found)
    counts, shape = found.counts, tuple(given.shape)
    recipe = Recipe.from_dict(found.recipe)
    with nullcontext() if trust_code else plugins.barred(path, "--trust-code (trust_code=True) imports and runs it"):
        plan = methods.build(found.method, counts, **found.config.knobs)
        head = plan.needed_head
        backbone = _backbone(found)
        takes = shape if backbone is None else (backbone.embedding_size,)
        model = models.build(recipe.model, counts.num_classes, takes, head, recipe.standardise, **recipe.model_options)
    frozen = given.kind == "features"
    if backbone is not None and not frozen:
        model = joined(backbone, model)
    try:
        model.load_state_dict(weights(path))
    except RuntimeError as error:
        raise InputError(f"{path} does not hold the weights of this run: {reason(error)}") from None
    kind, mean, std = given.kind, given.mean, given.std
    if backbone is not None:
        model = joined(backbone, model) if frozen else model
        how = backbone.preprocessing
        kind, shape, mean, std = "files", (3, how.size, how.size), list(how.mean), list(how.std)
    elif kind == "files":
        how = replace(Files((), "", shape[1]).how, mean=tuple(mean or (0.0,) * 3), std=tuple(std or (1.0,) * 3))
    neighbours = None
    for step in found.summary.posthoc:
        if step.kind == "knn":
            neighbours = (*training_embeddings(path), whole("k of k-NN", int(step.value or 0), at_least=1))
    return Restored(
        model.eval().requires_grad_(False),
        found.class_names,
        kind,
        shape,
        None if mean is None else tuple(mean),
        None if std is None else tuple(std),
        reading(plan, counts),
        neighbours,
        Prepare(how) if kind == "files" else None,
        backbone,
        given.columns,
    )


def _backbone(run: Run) -> Backbone | None:
    """The backbone that a run was trained with; where the run holds only its head, with the same weights."""
    stored = run.config.backbone
    if stored is None:
        return None
    backbone = models.pretrained.load(stored.name, Preprocessing.from_dict(stored.preprocessing).size)
    then = {
        "digest": stored.digest if stored.train == "head" else backbone.digest,
        "preprocessing": stored.preprocessing,
    }
    if changed := differences(then, {k: backbone.identity()[k] for k in then}):
        raise InputError(
            f"backbone {stored.name!r} is not the one that {run.path} was trained with: {'; '.join(changed)}"
        )
    return backbone


def _input(run: Run) -> Input:
    """What an input of the run is, checked."""
    given = run.split.input
    if given is None:
        raise InputError(f"{run.path} does not say what its inputs look like (split.json lacks 'input'): run it again")
    dimensions = {"features": 1, "images": 3, "files": 3}
    if len(given.shape) != dimensions.get(given.kind) or not all(0 < n < 2**20 for n in given.shape):
        said = f"{given.kind} of shape {given.shape}"
        raise InputError(f"{run.path} does not say what its inputs look like (split.json says {said}): run it again")
    return given
