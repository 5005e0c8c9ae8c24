"""What a run leaves behind of its last pass."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from longtail.engine import job
from longtail.engine.settings import Job


def test_ldam_s_predictions_are_logits_not_bare_cosines(tmp_path):
    path = job.execute(Job("ldam-drw", epochs=2, out=str(tmp_path / "run"), threads=1), say=lambda text: None)
    kept = load_file(path / "predictions.safetensors")
    cosines = F.normalize(kept["test_embeddings"]) @ F.normalize(kept["head_weight"]).T
    torch.testing.assert_close(kept["test_logits"], 30 * cosines, rtol=1e-4, atol=1e-4)


def test_too_many_training_logits_are_kept_as_margins(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.engine.finish.MOST_LOGITS", 100)
    path = job.execute(Job("ldam-drw", epochs=1, out=str(tmp_path / "run"), threads=1), say=lambda text: None)
    kept = load_file(path / "predictions.safetensors")
    assert "train_logits" not in kept
    assert {"train_margins", "train_predicted", "train_labels"} <= set(kept)
    right = kept["train_predicted"] == kept["train_labels"]
    assert torch.equal(right, kept["train_margins"] > 0) or bool((kept["train_margins"] == 0).any())
    assert float(kept["train_margins"].abs().max()) > 2  # more than cosines can differ by
