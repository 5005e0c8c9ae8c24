from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Commands of this module, on their way."""
