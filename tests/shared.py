"""Where development data lies, if it lies anywhere: a folder `shared` beside the checkout, or $LONGTAIL_SHARED."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("LONGTAIL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
needs_shared = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="development data (shared/data) is not here")
