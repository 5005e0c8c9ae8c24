"""A finished run as something that classifies new inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from . import methods, models, plugins, posthoc
from .data.dataset import Files, Split
from .data.images import open_image
from .data.limits import reason
from .data.loader import Loader
from .engine.recipe import Recipe
from .errors import InputError, whole
from .probabilities import Reading, reading
from .runs.read import Run, read
from .runs.schema import Input
from .runs.tensors import training_embeddings, weights

BATCH = 64


@dataclass(frozen=True, eq=False)
class Restored:
    """What a run learnt, ready for use.

    Attributes:
        kind, shape: what an input is: ``"features"`` (K,), ``"images"`` or ``"files"`` (channels, H, W).
        mean, std: by channel, of pixels in [0, 1]; None leaves them as they are.
        neighbours: training embeddings, their labels and k, where the run ended in k-NN.
    """

    model: nn.Module
    class_names: list[str]
    kind: str
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    reading: Reading
    neighbours: tuple[Tensor, Tensor, int] | None

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
        inputs: Tensor | Files = (
            Files([str(p.absolute()) for p in paths], "/", self.shape[1])
            if self.kind == "files"
            else torch.stack([_whole_image(p, self.shape) for p in paths])
        )
        nothing = torch.zeros(len(paths), dtype=torch.int64)
        loader = Loader(Split(inputs, nothing, nothing, self.mean, self.std), len(paths), train=False)
        return next(loader.epoch(0)).inputs


def _whole_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """A file as uint8 of the shape that an in-memory data set has: resized as a whole, not cropped."""
    try:
        pixels = open_image(path.read_bytes()).pixels(1)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except Exception as error:  # a broken image can make a decoder raise nearly anything
        raise InputError(f"{path} is no readable image: {reason(error)}") from None
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
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
        head = plan.head_of(recipe.model)
        model = models.build(recipe.model, counts.num_classes, shape, head, recipe.standardise, **recipe.model_options)
    try:
        model.load_state_dict(weights(path))
    except RuntimeError as error:
        raise InputError(f"{path} does not hold the weights of this run: {reason(error)}") from None
    neighbours = None
    for step in found.summary.posthoc:
        if step.kind == "knn":
            neighbours = (*training_embeddings(path), whole("k of k-NN", int(step.value or 0), at_least=1))
    return Restored(
        model.eval().requires_grad_(False),
        found.class_names,
        given.kind,
        shape,
        None if given.mean is None else tuple(given.mean),
        None if given.std is None else tuple(given.std),
        reading(plan, counts),
        neighbours,
    )


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
