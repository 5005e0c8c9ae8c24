"""A finished run as one file that runs without this package: torch.export's, or ONNX."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError, RunError, one_of
from .inference import Restored, restore
from .runs.files import cannot_write

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-4


class Exported(nn.Module):
    """Inputs to probabilities (B, C). Of a run on image files or with a backbone an input is a decoded image, uint8 (H,
    W, 3) of any size, and all preprocessing is inside; of one on images in memory float32 in [0, 1] of their size;
    features are taken as they are."""

    def __init__(self, run: Restored) -> None:
        super().__init__()
        self.model, self.reading, self.run = run.model, run.reading, run
        self.prepare = run.normalised if run.prepare is None else run.prepare

    def forward(self, inputs: Tensor) -> Tensor:
        return self.reading.scores(self.model(self.prepare(inputs)).logits).softmax(1)


def export(run: str | Path, to: str, out: str | Path | None = None, trust_code: bool = False) -> Path:
    """Write a run's model and check that the file says what the model says.

    Args:
        run: folder of a finished run.
        to: ``"torch"`` (``torch.export``, read with ``torch.export.load``) or ``"onnx"``.
        out: the file; by default ``model.pt2`` or ``model.onnx`` in the run folder.
        trust_code: import and run a model or method of somebody's own that the run names.

    The batch size is free. Class names and what an input is are inside: for torch an extra file ``longtail.json``, for
    ONNX metadata under the key ``longtail``, JSON both.

    Raises:
        RunError: the written file disagrees with the model.
    """
    one_of("format", to, FORMATS)
    if to == "onnx":
        _need_onnx()
    restored = restore(run, trust_code)
    if restored.neighbours is not None:
        raise InputError(
            f"{run} ended in k-NN, which needs all training embeddings: export a run with a head, trained with "
            "--set classifier=linear"
        )
    if restored.backbone is not None and not any(True for _ in restored.backbone.parameters()):
        raise InputError(
            f"the backbone {restored.backbone.name!r} is no network of torch, so that its run cannot become one file: "
            "longtail predict uses it"
        )
    path = Path(out) if out is not None else Path(run) / f"model{FORMATS[to]}"
    if path.suffix != FORMATS[to]:
        raise InputError(f"a file for {to} must end in {FORMATS[to]}, got {path.name!r}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} to")
    module = Exported(restored).eval()
    facts = {"class_names": restored.class_names, "input": _described(restored), "output": "probabilities"}
    if restored.backbone is not None:
        facts["backbone"] = restored.backbone.name
    try:
        # Beside its place first: a file that is wrong or half written never takes it.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
            made = Path(folder) / f"model{path.suffix}"
            write = _write_torch if to == "torch" else _write_onnx
            write(module, made, facts)
            _check(module, made, to)
            os.replace(made, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def _described(run: Restored) -> dict[str, Any]:
    """What an input of the file is, and what is to be done to an image before, or was put into the file."""
    if run.prepare is not None:
        return {
            "shape": ["height", "width", 3], "dtype": "uint8", "range": [0, 255],
            "decode": "RGB at full size, as stored (no EXIF rotation); images of a batch have one size",
            "inside": {**run.prepare.how.to_dict(), "words": f"{run.prepare.how}, then (x/255 - mean)/std"},
        }  # fmt: skip
    given: dict[str, Any] = {"shape": list(run.shape), "dtype": "float32"}
    if run.kind == "images":
        colours = "the mean of RGB" if run.shape[0] == 1 else "RGB"
        before = f"{colours}, the whole image resized to height and width (bilinear, antialiased), divided by 255"
        given |= {"range": [0, 1], "before": before, "inside": {"mean": run.mean, "std": run.std}}
    return given


def _inputs(run: Restored, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    if run.prepare is None:
        return torch.rand((batch, *run.shape), generator=generator)
    return torch.randint(0, 256, (batch, 50 + 7 * batch, 40 + 13 * batch, 3), generator=generator, dtype=torch.uint8)


def _program(module: Exported) -> torch.export.ExportedProgram:
    free = {0: torch.export.Dim("batch", min=1)}
    if module.run.prepare is not None:
        free |= {1: torch.export.Dim("height", min=1), 2: torch.export.Dim("width", min=1)}
    return torch.export.export(module, (_inputs(module.run, 2),), dynamic_shapes={"inputs": free})


def _write_torch(module: Exported, path: Path, facts: dict[str, Any]) -> None:
    torch.export.save(_program(module), path, extra_files={"longtail.json": json.dumps(facts)})


def _write_onnx(module: Exported, path: Path, facts: dict[str, Any]) -> None:
    import onnx

    # The exporter speaks of its own deprecations, and of torchvision's operators, which nobody uses here.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _program(module), input_names=["inputs"], output_names=["probabilities"], dynamo=True, verbose=False
        )
    assert program is not None
    model = program.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = "longtail", json.dumps(facts)
    onnx.save_model(model, path)


def _need_onnx() -> None:
    missing = []
    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except (ImportError, RuntimeError, OSError):
            missing.append(package)
    if missing:
        raise InputError(
            f"export to onnx needs {' and '.join(missing)}: pip install 'longtail[export]', or use --to torch"
        )


def _check(module: Exported, path: Path, to: str) -> None:
    """Run the file on batches, and images, of other sizes than it was traced with."""
    run = _runner(path, to)
    for batch in (1, 5):
        x = _inputs(module.run, batch)
        with torch.no_grad():
            expected = module(x)
        got = run(x)
        if got.shape != expected.shape or not torch.allclose(got, expected, atol=TOLERANCE, rtol=0):
            worst = float((got - expected).abs().max()) if got.shape == expected.shape else float("nan")
            raise RunError(
                f"the exported model disagrees with the original by {worst:.2g} in a probability: not written"
            )


def _runner(path: Path, to: str) -> Any:
    if to == "torch":
        module = torch.export.load(path).module()
        return lambda x: module(x).detach()
    try:
        import onnxruntime
    except (ImportError, RuntimeError, OSError):
        # Slow, but part of onnx itself: a file is never written unchecked.
        from onnx.reference import ReferenceEvaluator

        evaluator: Any = ReferenceEvaluator(str(path))
        return lambda x: torch.from_numpy(evaluator.run(None, {"inputs": x.numpy()})[0])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])
