"""``longtail embed``: images to features, by a pretrained backbone, through a cache."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..engine.recipe import PRECISIONS
from ..errors import InputError, one_of
from .options import Device, Options, Root, plain_pairs
from .streams import bar

Backbone = Annotated[
    str,
    typer.Option("--backbone", help="efficientnet-lite0, hf:NAME-or-FOLDER, timm:NAME, onnx:FILE, package.module:f."),
]


def embed(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Built-in data, or the path of a folder or a CSV.")],
    backbone: Backbone = "efficientnet-lite0",
    out: Annotated[Path, typer.Option("--out", help="The .npz to write.")] = Path("features.npz"),
    root: Root = "data",
    option: Options = None,
    views: Annotated[
        int, typer.Option("--views", min=0, max=1000, help="Cropped copies of each training image besides.")
    ] = 0,
    flip: Annotated[bool, typer.Option(help="Mirror every other copy; not for signs and text.")] = True,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Images at a time: 4 on a processor, 64 elsewhere.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, max=1024, help="Processes that decode images.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16, or auto: bf16 where it helps.")] = "auto",
    device: Device = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Folder of the cache; $LONGTAIL_CACHE or ~/.cache/longtail.")
    ] = None,
) -> None:
    """Turn images into features with a pretrained backbone: an .npz that --data reads, splits and names included.

    What was embedded once is taken from the cache; a command that was killed goes on where it was.
    """
    from ..data import load
    from ..embed import embed as compute
    from ..engine.process import pick_device
    from ..engine.stage import has_bf16
    from ..models import pretrained

    one_of("precision", precision, PRECISIONS)
    if out.suffix != ".npz":
        raise InputError(f"a file of embeddings must end in .npz, got {out.name!r}")
    found = load(data, root=root, **plain_pairs(option, "--option"))
    network, where = pretrained.load(backbone), pick_device(device)
    half = precision == "bf16" or (precision == "auto" and has_bf16(where))
    start = time.perf_counter()
    with bar() as progress:
        result = compute(
            found, network, views=views, flip=flip, batch_size=batch_size, workers=workers,
            precision="bf16" if half else "fp32", device=where, cache=cache, progress=progress,
        )  # fmt: skip
    result.save(out)
    seconds = time.perf_counter() - start
    new = result.data
    total = sum(len(split) for split in (new.train, new.val, new.test) if split is not None) + views * len(new.train)
    how = f"{result.computed:,} images in {seconds:.1f} s" if result.computed else "all from the cache"
    typer.echo(
        f"{out}: {total:,} × {network.embedding_size} features of {new.num_classes} classes by {backbone} "
        f"({network.preprocessing}), {how}"
    )
