"""``longtail posthoc``: what can still be done for a trained model's rare classes, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, RunError, one_of

if TYPE_CHECKING:
    from ..evaluate.accuracy import Summary
    from ..evaluate.predictions import Predictions


def posthoc(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or predictions (.npz, .safetensors).")
    ],
    method: Annotated[str, typer.Option(help="tau-norm, logit-adjust, lws, ncm or knn.")],
    value: Annotated[
        float | None, typer.Option(help="Set the knob (tau, strength, k) instead of choosing it on validation data.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Values to choose from, as in 0,0.5,1.")] = None,
    counts: Annotated[str | None, typer.Option(help="Training counts: 500,210,5 or a file of numbers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the new predictions here (.npz, .safetensors).")] = None,
) -> None:
    """Adjust, normalise or replace the head of a trained model: before and after, by group.

    Chosen on the validation part; test labels are used for the table only.
    """
    from safetensors import SafetensorError

    from .. import posthoc as tools
    from ..evaluate import accuracy
    from ..evaluate.predictions import read_counts

    kind = tools.KINDS[one_of("post-hoc method", method, tools.KINDS)]
    if value is not None and grid is not None:
        raise InputError("give --value or --grid, not both: a value that is set is not chosen")
    if kind.counts_samples and value is not None and not (value >= 1 and value.is_integer()):
        raise InputError(f"--value is {kind.knob} for {method}, a whole number of at least 1, got {value:g}")
    if out is not None and out.suffix not in (".npz", ".safetensors"):
        raise InputError(f"--out must end in .npz or .safetensors, got {out.name!r}")
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--out cannot be written: there is no folder {out.parent}")
    predictions, has_logits = _load(source, None if counts is None else read_counts(counts), kind.uses == "train")
    if doubts := predictions.doubts():
        typer.echo(f"warning: {source}: {doubts}", err=True)
    applied = tools.apply(predictions, method, grid=_numbers(grid), value=value)
    step = applied.step
    known = predictions.counts
    if known is None:
        note = f"; {kind.without_counts}" if kind.without_counts else ""
        typer.echo(f"Training counts are unknown, so there are no groups{note}.")
    if step["knob"] is not None:
        how = "as set"
        if predictions.val is not None and step["val"]:
            how = f"chosen on {len(predictions.val)} validation samples"
            if kind.unjudged is not None and predictions.train is None:
                how = "scales learnt on the validation part, for want of a training part"
        typer.echo(f"{method}: {step['knob']} = {step['value']:g} ({how})")
        if len(step["val"]) > 1:
            tried = ", ".join(f"{v}: {100 * score:.2f}" for v, score in step["val"].items())
            typer.echo(f"balanced accuracy on validation data, by {step['knob']}: {tried}")
    else:
        typer.echo(f"{method}: nothing to choose")
    rows: list[tuple[str, Summary]] = []
    uses = tools.counts_or_ones(known, predictions.num_classes)
    for name, new in applied.predictions.parts("val", "test").items():
        if has_logits:
            old = predictions.parts()[name]
            rows.append((f"{name} before", accuracy.summary(old.logits, old.labels, uses)))
        rows.append((f"{name} {method}", accuracy.summary(new.logits, new.labels, uses)))
    if not rows:
        raise InputError(f"{source} has neither a validation nor a test part to apply {method} to")
    typer.echo(_table(rows, groups=known is not None))
    if out is not None:
        try:
            applied.predictions.save(out)
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write {out}: {getattr(error, 'strerror', None) or error}") from error
        typer.echo(f"written to {out}")


def _load(source: Path, counts: object, without_logits: bool) -> tuple[Predictions, bool]:
    """Predictions, and whether they hold logits, which some methods do without: then features and labels will do."""
    from ..data.arrays import read_arrays
    from ..evaluate.predictions import Predictions
    from ..runs.predictions import predictions

    if without_logits and source.is_file():
        import torch

        from ..numeric import class_labels

        try:
            tensors = read_arrays(source)
            if not any(name.endswith("logits") for name in tensors) and "head_weight" not in tensors:
                if counts is not None:
                    tensors["counts"] = counts
                labels = {k: class_labels(v, k) for k, v in tensors.items() if k.endswith("labels") and len(v)}
                given = tensors.get("counts")
                c = len(given) if given is not None else 1 + max((int(y.max()) for y in labels.values()), default=0)
                for name, y in labels.items():
                    tensors[name.removesuffix("labels") + "logits"] = torch.zeros(1, c).expand(len(y), c)
                return Predictions.from_tensors(tensors), False
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    return predictions(source, counts), True


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--grid must be numbers separated by commas, as in 0,0.5,1, got {text!r}") from None


def _table(rows: list[tuple[str, Summary]], groups: bool) -> str:
    """Percentages, one line a part before and after."""
    names = list(rows[0][1].groups) if groups else []
    heads = [f"{name} ({rows[0][1].groups[name][1]})" for name in names]
    table = [["", "balanced", *heads, "worst class", "accuracy"]]
    for label, s in rows:
        by_group = [s.groups[name][0] for name in names]
        cells = [f"{100 * v:.2f}" if v is not None else "no classes" for v in by_group]
        table.append(
            [label, f"{100 * s.balanced:.2f}", *cells, f"{100 * s.worst.accuracy:.2f}", f"{100 * s.accuracy:.2f}"]
        )
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))) for r in table]
    lacking = {label.split()[0]: s for label, s in rows if s.evaluated < s.counts.num_classes}
    for part, s in lacking.items():
        lines.append(f"{part}: means over the {s.evaluated} of {s.counts.num_classes} classes that have samples there")
    return "\n".join(lines)
