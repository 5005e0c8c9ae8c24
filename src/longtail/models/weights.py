"""Weights from files: safetensors, or torch's own read without running any code from it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import InputError
from .heads import Classifier
from .wrap import Wrapped


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Load a state dict into ``model`` and say, one sentence each, what of it was not used.

    ``path`` is a ``.safetensors`` file, or one of ``torch.save`` (read with ``weights_only=True``) holding a state
    dict, also under a key ``state_dict`` or ``model``, also with DDP's prefix ``module.``. A head of another number of
    classes is left as initialised; any other missing, unexpected or misshapen parameter is an error.
    """
    target = model.module if isinstance(model, Wrapped) else model
    state = _read(Path(path))
    own = target.state_dict()
    if not any(k in own for k in state):
        state = {k.removeprefix("module."): v for k, v in state.items()}
    head = f"{model.head_name}." if isinstance(model, (Classifier, Wrapped)) else ""
    said: list[str] = []
    for key in [k for k in state if head and k.startswith(head)]:
        if key not in own or own[key].shape != state[key].shape:
            want = f"has shape {tuple(own[key].shape)} here" if key in own else "does not exist here"
            said.append(f"{key} of shape {tuple(state[key].shape)} was skipped: it {want}")
            del state[key]
    missing = [k for k in own if k not in state and not (head and k.startswith(head))]
    # Old torch files have no counters of batches in their batch norms.
    missing = [k for k in missing if not k.endswith("num_batches_tracked")]
    extra = [k for k in state if k not in own]
    wrong = [k for k in state if k in own and own[k].shape != state[k].shape]
    for what, keys in (("lacks", missing), ("has the unknown", extra), ("has another shape for", wrong)):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise InputError(f"{path} does not fit {type(target).__name__}: it {what} {', '.join(keys[:3])}{more}")
    target.load_state_dict({**own, **state})
    return said


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no weight file {path}")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as e:
        raise InputError(
            f"{path} cannot be read as weights: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
        ) from e
    except SafetensorError as e:
        raise InputError(f"{path} is not a whole safetensors file: {e}") from e
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path} holds no state dict (names with tensors), but {type(state).__name__}")
    return dict(state)
