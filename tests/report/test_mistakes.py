"""The worst classes, and pictures of mistakes where the data are images that are still there."""

import base64
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from longtail.cli import main
from longtail.report.gallery import mistakes
from longtail.report.grouping import datasets
from longtail.report.page import worst
from longtail.runs.read import find


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of small images, each class of one colour with noise."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for c, n in enumerate((24, 12, 6)):
        folder = root / "data" / f"class {c}"
        folder.mkdir(parents=True)
        for i in range(n):
            pixels = np.clip(rng.normal(80 + 30 * c, 60, (20, 30, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    arguments = ["--data", root / "data", "--epochs", "1", "--option", "size=16", "--option", "test_share=0.5"]
    arguments += ["--backbone", "none"]
    with pytest.raises(SystemExit) as stopped:
        main(["train", "ce", *map(str, arguments), "--out", str(root / "run")])
    assert stopped.value.code == 0
    return root


def read(path):
    (data,) = datasets(find([path]).runs)
    return data, data.groups[0], data.first


def test_the_worst_classes_come_with_pictures_of_what_was_mistaken(trained):
    data, group, run = read(trained / "run")
    table = worst(data, group)
    accuracies = [row[table.columns.index("Accuracy")].value for row in table.rows]
    assert accuracies == sorted(accuracies)
    assert max(accuracies) < 100
    found = mistakes(data, group, run)
    assert [name for name, _ in found.rows] == [row[0] for row in table.rows]
    names = set(data.first.class_names)
    for name, thumbnails in found.rows:
        assert thumbnails
        for one in thumbnails:
            assert one.predicted in names - {name}
            with Image.open(io.BytesIO(base64.b64decode(one.image.split(",")[1]))) as image:
                assert image.size == (64, 43)
    assert sum(len(one.image) for _, row in found.rows for one in row) < 200_000


def test_without_predictions_what_it_was_taken_for_is_not_said(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "run" / "predictions.safetensors").unlink()
    found = mistakes(*read(tmp_path / "run"))
    assert {one.predicted for _, row in found.rows for one in row} == {None}


def test_data_that_are_gone_or_changed_are_a_sentence(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    data, group, run = read(tmp_path / "copy" / "run")
    (trained / "data").rename(trained / "elsewhere")
    try:
        found = mistakes(data, group, run)
        assert found.rows == []
        assert found.said.endswith("not shown: the data are not where they were when the run was made.")
        shutil.copytree(trained / "elsewhere", trained / "data")
        next((trained / "data" / "class 0").iterdir()).unlink()
        assert "the data have changed" in mistakes(data, group, run).said
    finally:
        shutil.rmtree(trained / "data", ignore_errors=True)
        (trained / "elsewhere").rename(trained / "data")
