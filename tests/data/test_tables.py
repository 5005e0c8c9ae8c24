"""Tables of numbers: CSV and Parquet with a label column, and `.npz` as scikit-learn's users name its arrays."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from longtail.data import load
from longtail.data.tables import features
from longtail.errors import InputError

HEADER = ["height", "weight", "label"]
ROWS = [[str(0.5 * k), str(k - 7), "cat" if k % 3 else "dog"] for k in range(15)]


def write_csv(path, rows, header=HEADER):
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_csv_of_numbers_is_features(tmp_path):
    data = load(write_csv(tmp_path / "t.csv", ROWS))
    assert (data.kind, data.class_names, data.input_shape) == ("features", ["cat", "dog"], (2,))
    rows = torch.cat((data.train.inputs, data.test.inputs))[
        torch.cat((data.train.indices, data.test.indices)).argsort()
    ]
    assert torch.equal(rows, torch.tensor([[0.5 * k, k - 7] for k in range(15)]))
    assert "2 numeric columns (height, weight), labels from column 'label'" in data.notes


def test_splits_and_chosen_columns(tmp_path):
    rows = [[*row, "test" if k < 5 else "train"] for k, row in enumerate(ROWS)]
    path = write_csv(tmp_path / "t.csv", rows, [*HEADER, "Split"])
    data = load(path, columns=["weight"])
    assert (len(data.train), len(data.test), data.input_shape) == (10, 5, (1,))
    assert data.test.inputs.flatten().tolist() == [-7, -6, -5, -4, -3]
    assert load(path, columns="height,weight").input_shape == (2,)


def test_a_parquet_table_is_the_csv(tmp_path):
    x = {"height": [0.5 * k for k in range(15)], "weight": list(range(-7, 8)), "label": [row[2] for row in ROWS]}
    pq.write_table(pa.table(x), tmp_path / "t.parquet")
    got, csv = load(tmp_path / "t.parquet"), load(write_csv(tmp_path / "t.csv", ROWS))
    assert got.fingerprint == csv.fingerprint
    assert torch.equal(got.train.inputs, csv.train.inputs)


def test_labels_that_are_numbers_are_names_in_numerical_order(tmp_path):
    rows = [["1.5", "2", str(label)] for label in (10, 2, 2, 10, 10, -1, -1)]
    data = load(write_csv(tmp_path / "t.csv", rows))
    assert data.class_names == ["-1", "2", "10"]


def test_an_npz_as_scikit_learn_names_things(tmp_path):
    x, y = np.arange(24.0).reshape(12, 2), np.array([0, 1] * 6)
    np.savez(tmp_path / "a.npz", X=x, y=y)
    assert load(tmp_path / "a.npz").counts.n.tolist() == [5, 5]
    np.savez(tmp_path / "b.npz", X_train=x, y_train=y, X_test=x[:4], y_test=y[:4])
    assert len(load(tmp_path / "b.npz").test) == 4
    np.savez(tmp_path / "c.npz", X=x, y=np.array([b"caf\xc3\xa9", b"tea\xff"] * 6))
    assert load(tmp_path / "c.npz").class_names == ["café", "tea\\xff"]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (HEADER, [["1", "red", "a"]], "line 2: column 'weight' holds 'red', which is no number: turn categories into"),
        (HEADER, [["1", "2", "a"], ["1", "", "b"]], "line 3: column 'weight' is empty: fill in missing values"),
        (HEADER, [["1", "2", "a"], ["1", "2"]], "cells in line 3: 2, in the first: 3"),
        (HEADER, [["1", "2", ""]], "column 'label' is empty"),
        (HEADER, [["1", "nan", "a"], ["1", "2", "b"]], "not finite: nan in row 0, column 1"),
        (["a", "a", "label"], [["1", "2", "x"]], "two columns 'a'"),
        (["a", "b", "c"], [["1", "2", "3"]], "no label column 'label' or"),
        (["a", "label"], [["1", "x"], ["2", "x"], ["3", "x"]], "of one class, 'x': a classifier needs two"),
    ],
)
def test_what_a_table_must_not_hold(header, rows, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(write_csv(tmp_path / "t.csv", rows, header))


def test_parquet_tables_say_what_is_missing(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, None], "label": ["x", "y"]}), path)
    with pytest.raises(InputError, match="column 'a' has 1 missing values"):
        load(path)
    pq.write_table(pa.table({"a": ["red", "green"], "label": ["x", "y"]}), path)
    with pytest.raises(InputError, match="column 'a' holds 'red', which is no number: turn categories"):
        load(path)
    pq.write_table(pa.table({"a": [1, 2], "label": ["x", None]}), path)
    with pytest.raises(InputError, match="row 1: column 'label' is empty"):
        load(path)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match=r"t\.parquet is no Parquet file"):
        load(path)


def test_new_rows_are_read_with_and_without_labels_and_header(tmp_path):
    expected = [[0.5 * k, k - 7] for k in range(15)]
    labelled = write_csv(tmp_path / "a.csv", ROWS)
    plain = write_csv(tmp_path / "b.csv", [row[:2] for row in ROWS], HEADER[:2])
    bare = write_csv(tmp_path / "c.csv", [row[:2] for row in ROWS[1:]], ROWS[0][:2])
    pq.write_table(pa.table({"h": [e[0] for e in expected], "w": [e[1] for e in expected]}), tmp_path / "d.parquet")
    for path in (labelled, plain, bare, tmp_path / "d.parquet"):
        assert features(path).tolist() == expected


def test_row_numbers_that_pandas_wrote_are_no_feature(tmp_path):
    frame = pd.DataFrame({"height": [0.5, 1.5] * 6, "weight": range(12), "label": ["cat", "dog"] * 6}).drop(index=3)
    frame.to_csv(tmp_path / "t.csv")
    frame.to_parquet(tmp_path / "t.parquet")
    for name, numbers in (("t.csv", ""), ("t.parquet", "__index_level_0__")):
        data = load(tmp_path / name)
        assert data.train.columns == ("height", "weight")
        assert f"without {numbers!r}, which numbers the rows" in data.notes[0]
        assert features(tmp_path / name).tolist() == frame[["height", "weight"]].to_numpy().tolist()


def test_new_rows_are_found_by_the_names_of_their_columns(tmp_path):
    frame = pd.DataFrame({"species": ["cat", "dog"], "weight": [3, 4], "height": [1.0, 2.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert features(tmp_path / name, ["height", "weight"]).tolist() == [[1, 3], [2, 4]]
        with pytest.raises(InputError, match="has no column 'age', which the run was trained on: it has 'species'"):
            features(tmp_path / name, ["height", "age"])
    pd.DataFrame({"1": [5], "0": [6]}).to_csv(tmp_path / "numbers.csv", index=False)
    assert features(tmp_path / "numbers.csv", ["0", "1"]).tolist() == [[6, 5]]
    (tmp_path / "bare.csv").write_text("1,2\n3,4\n")
    assert features(tmp_path / "bare.csv", ["height", "weight"]).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "shifted.csv").write_text("height,weight\n1,5,2\n")  # a decimal comma
    with pytest.raises(InputError, match=r"shifted\.csv cannot be read as CSV: cells in line 2: 3, in the first: 2"):
        features(tmp_path / "shifted.csv", ["height", "weight"])


def test_a_label_column_that_is_not_there(tmp_path):
    frame = pd.DataFrame({f"x{k}": [0.0] for k in range(30)} | {"species": ["cat"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"'x0', .*, …, 'x28', 'x29', 'species'; name it with label_column=NAME"):
        load(tmp_path / "t.csv")
    with pytest.raises(InputError, match="no label column 'specie': did you mean 'species'"):
        load(tmp_path / "t.csv", label_column="specie")
