"""`hf.gfile`: what Python's own functions see is what these have done."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError

gfile = hf.gfile


def test_files_and_folders(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    assert not gfile.Exists(deep)
    gfile.MakeDirs(str(deep))
    gfile.MakeDirs(deep)
    gfile.MkDir(tmp_path / "c")
    gfile.MkDir(tmp_path / "c")
    assert gfile.IsDirectory(str(deep)) and gfile.ListDirectory(str(tmp_path)) == ["a", "c"]
    for mode, text in (("w", "één\n"), ("a", "two\n")):
        with gfile.GFile(str(deep / "x.txt"), mode) as file:
            file.write(text)
    assert (deep / "x.txt").read_bytes() == "één\ntwo\n".encode()
    with gfile.FastGFile(str(deep / "x.txt"), "rb") as file:
        assert file.read() == "één\ntwo\n".encode()
    with gfile.Open(str(deep / "x.txt")) as file:
        assert list(file) == ["één\n", "two\n"]
    assert gfile.Stat(deep / "x.txt").st_size == 10


def test_copies_and_removals(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a.txt", "b.txt", "c.dat"))
    a.write_text("1")
    gfile.Copy(str(a), str(b))
    for function in (gfile.Copy, gfile.Rename):
        with pytest.raises(ArgumentError, match="exists"):
            function(str(a), str(b))
    a.write_text("2")
    gfile.Copy(str(a), str(b), overwrite=True)
    assert b.read_text() == "2"
    gfile.Rename(str(b), str(c))
    assert gfile.Glob(str(tmp_path / "*.txt")) == [str(a)]
    assert gfile.Glob([str(tmp_path / "*.dat"), str(tmp_path / "*.txt")]) == [str(a), str(c)]
    assert [(Path(d), sorted(f)) for d, _, f in gfile.Walk(str(tmp_path))] == [
        (tmp_path, ["a.txt", "c.dat"])
    ]
    gfile.Remove(str(a))
    with pytest.raises(FileNotFoundError):
        gfile.Remove(str(a))
    gfile.DeleteRecursively(str(tmp_path))
    assert not tmp_path.exists()
