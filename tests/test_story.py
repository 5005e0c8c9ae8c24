"""A practitioner's story, with the command alone: class folders, compare, report, predict on new files, export."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "image_folder.py"
COUNTS = [60, 25, 10]


def test_from_class_folders_to_an_exported_model(tmp_path, monkeypatch, longtail):
    def done(*arguments: object) -> str:
        code, printed, err = longtail(*arguments)
        assert code == 0, err
        return printed

    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("image_folder", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.write_folders(tmp_path / "photos", COUNTS, tmp_path / "new", held_back=6, side=18)

    small = ("--option", "size=16", "--model", "resnet20", "--epochs", 12, "--batch-size", 16)
    table = done("compare", "--data", "photos", "--methods", "ce,elm", "--seeds", 1, "--jobs", 2, *small)
    assert "ce" in table
    assert "elm" in table
    (run,) = Path("runs").glob("*elm*")
    split = json.loads((run / "split.json").read_text())
    assert split["class_names"] == ["digit-0", "digit-1", "digit-2"]
    assert sum(split["counts"]) + split["test"] == sum(COUNTS)
    assert any("test" in note for note in split["notes"]), "a split that was made is said"

    page = Path(table.split("report:")[1].strip())
    html = page.read_text()
    assert all(name in html for name in ("elm", "ce", "digit-2"))
    assert 'src="http' not in html

    rows = json.loads(done("predict", run, "new", "--format", "json"))
    assert [Path(row["path"]).name for row in rows] == sorted(p.name for p in Path("new").iterdir())
    right = sum(Path(row["path"]).name.startswith(row["class"]) for row in rows)
    assert right > len(rows) / 2, "chance is a third"

    done("export", run, "--to", "torch", "--out", "model.pt2")
    facts = {"longtail.json": ""}
    exported = torch.export.load("model.pt2", extra_files=facts).module()
    names = json.loads(facts["longtail.json"])["class_names"]
    probabilities = exported(
        torch.from_numpy(np.stack([np.asarray(Image.open(row["path"]).convert("RGB")) for row in rows]))
    )
    for row, p in zip(rows, probabilities.tolist()):
        assert names[int(np.argmax(p))] == row["class"]
        assert max(p) == pytest.approx(row["probability"], abs=1e-4)
