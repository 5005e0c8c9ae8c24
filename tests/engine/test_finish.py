"""What a run leaves behind of its last pass."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from longtail.engine import job
from longtail.engine.job import Job


def test_ldam_s_predictions_are_logits_not_bare_cosines(tmp_path):
    path = job.execute(Job("ldam-drw", epochs=2, out=str(tmp_path / "run"), threads=1), say=lambda text: None)
    kept = load_file(path / "predictions.safetensors")
    cosines = F.normalize(kept["test_embeddings"]) @ F.normalize(kept["head_weight"]).T
    torch.testing.assert_close(kept["test_logits"], 30 * cosines, rtol=1e-4, atol=1e-4)


def test_too_many_training_logits_are_kept_as_margins(tmp_path, monkeypatch):
    def kept(folder):
        job.execute(Job("ldam-drw", epochs=1, out=str(tmp_path / folder), threads=1), say=lambda text: None)
        return load_file(tmp_path / folder / "predictions.safetensors")

    whole = kept("whole")
    monkeypatch.setattr("longtail.engine.finish.MOST_LOGITS", 100)
    brief = kept("brief")
    assert "train_logits" not in brief
    logits, labels = whole["train_logits"], whole["train_labels"]
    expected = [f[y] - max(v for c, v in enumerate(f) if c != y) for f, y in zip(logits.tolist(), labels.tolist())]
    torch.testing.assert_close(brief["train_margins"], torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert torch.equal(brief["train_predicted"], logits.argmax(1))
    assert torch.equal(brief["train_labels"], labels)
