"""The tensors of a run, read with its training counts."""

import json

import numpy as np
import pytest

from longtail.errors import InputError
from longtail.evaluate.predictions import Predictions
from longtail.runs.predictions import predictions, training_embeddings, weights


def test_a_run_folder_and_a_file(tmp_path):
    logits, labels = np.random.default_rng(0).normal(size=(4, 3)), [0, 1, 2, 0]
    Predictions.from_tensors({"test_logits": logits, "test_labels": labels}).save(tmp_path / "predictions.safetensors")
    (tmp_path / "split.json").write_text(json.dumps({"counts": [7, 5, 3]}))
    assert predictions(tmp_path).counts.n.tolist() == [7, 5, 3]
    assert predictions(tmp_path, [9, 8, 7]).counts.n.tolist() == [9, 8, 7]
    assert predictions(tmp_path / "predictions.safetensors").counts is None
    with pytest.raises(InputError, match="does not hold 'train_embeddings', which k-NN needs"):
        training_embeddings(tmp_path)
    for text, said in (("{}", "no 'counts'"), ("[" * 100_000, "nested too deeply"), ("[]", "holds no mapping")):
        (tmp_path / "split.json").write_text(text)
        with pytest.raises(InputError, match=rf"split\.json.*{said}"):
            predictions(tmp_path)


def test_what_is_not_there_or_damaged_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"holds no predictions\.safetensors"):
        predictions(tmp_path)
    with pytest.raises(InputError, match=r"has no model\.safetensors"):
        weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x01\x02")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        weights(tmp_path)
