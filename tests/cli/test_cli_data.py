"""`longtail data`: what it prints, and that a mistake is one sentence and exit code 2."""

import json
import tarfile

import numpy as np

from longtail.data import names
from small_images import save_image


def one_sentence(result):
    code, _, err = result
    assert code == 2
    assert err.startswith("longtail: ")
    assert err.count("\n") == 1
    return err


def test_list(longtail):
    code, out, err = longtail("data", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == [*names(), "PATH"]


def test_fetch_without_download(longtail, tmp_path):
    assert longtail("data", "fetch", "digits-lt") == (0, "digits-lt needs no download.\n", "")
    code, out, _ = longtail("data", "fetch", "inat2018", "--root", tmp_path)
    assert code == 0
    assert len(out.splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_fetch_mistakes(longtail, tmp_path):
    root = tmp_path / "data"
    assert "unknown data set 'cifar'" in one_sentence(longtail("data", "fetch", "cifar", "--root", root))
    missing = longtail("data", "fetch", "cifar100-lt", "--root", root, "--from", tmp_path / "x.tar.gz")
    assert "there is no file" in one_sentence(missing)
    evil = tmp_path / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    result = longtail("data", "fetch", "cifar100-lt", "--root", root, "--from", evil)
    assert "'../evil' would be written outside" in one_sentence(result)
    assert [p.name for p in tmp_path.iterdir()] == ["evil.tar.gz"]


def test_a_server_that_is_not_there(longtail, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CIFAR_URL", "http://127.0.0.1:9/")
    result = longtail("data", "fetch", "cifar100-lt", "--root", tmp_path / "data")
    assert "no connection" in one_sentence(result)
    assert list(tmp_path.iterdir()) == []


def test_check_of_built_in_data(longtail):
    code, out, err = longtail("data", "check", "digits-lt")
    assert (code, err) == (0, "")
    assert "train 360 (130…2 a class)" in out
    assert "head 1, torso 4, tail 5" in out
    assert "all good" in out


def test_check_lists_each_bad_file(longtail, tmp_path):
    for name in ("a", "b"):
        for k in range(5):
            save_image(tmp_path / "images" / name / f"{k}.png")
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"no image")
    (tmp_path / "images" / "b" / "4.png").write_bytes(b"")
    code, _, err = longtail("data", "check", tmp_path / "images")
    lines = err.splitlines()
    assert code == 2
    assert sorted(line.split(": ")[0][-7:] for line in lines[:2]) == ["a/1.png", "b/4.png"]
    assert lines[2].endswith("2 of 10 files are bad")
    for name, k in (("a", 1), ("b", 4)):
        save_image(tmp_path / "images" / name / f"{k}.png")
    code, out, _ = longtail("data", "check", tmp_path / "images")
    assert code == 0
    assert "checked 10 files: all good" in out


def test_check_names_missing_images_by_their_line(longtail, tmp_path):
    folder = tmp_path / "inat2018"
    save_image(folder / "i" / "a.jpg")
    (folder / "iNaturalist18_train.txt").write_text("i/a.jpg 0\ni/b.jpg 1\n")
    (folder / "iNaturalist18_val.txt").write_text("i/c.jpg 0\n")
    code, _, err = longtail("data", "check", "inat2018", "--root", tmp_path)
    assert code == 2
    assert "b.jpg (" in err
    assert "iNaturalist18_train.txt, line 2): there is no such file" in err
    assert "2 of 3 files are bad" in err


def binary_cifar100(root, record):
    folder = root / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(record)
    (folder / "test.bin").write_bytes(record)
    return root


def test_bad_inputs_are_one_sentence(longtail, tmp_path):
    (tmp_path / "empty" / "a").mkdir(parents=True)
    (tmp_path / "d.csv").write_text("image,kind\nx.png,a\n")
    np.savez(tmp_path / "nan.npz", x=np.array([[np.nan]]), y=np.array([0]))
    (tmp_path / "inat2018").mkdir()
    (tmp_path / "inat2018" / "train2018.json").write_text(json.dumps({"images": []}))
    for name, message in (
        ("empty", "class folder"),
        ("d.csv", "no label column"),
        ("nan.npz", "not finite: nan in row 0, column 0"),
        ("nothing-here", "unknown data set"),
    ):
        assert message in one_sentence(longtail("data", "check", tmp_path / name))
    assert "'annotations' is missing" in one_sentence(longtail("data", "check", "inat2018", "--root", tmp_path))
    assert "longtail data fetch" in one_sentence(longtail("data", "check", "cifar10-lt", "--root", tmp_path))


def test_check_of_broken_cifar_names_both_files(longtail, tmp_path):
    root = binary_cifar100(tmp_path, bytes(3000))
    code, _, err = longtail("data", "check", "cifar100-lt", "--root", root)
    assert code == 2
    assert [line.split(" has ")[0][-9:] for line in err.splitlines()[:2]] == ["train.bin", "/test.bin"]
    assert "2 of 2 files are bad" in err
