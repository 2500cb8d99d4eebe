"""`hpcflow cache`: what is kept for later runs is told and removed, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpcflow.cli.main import main
from hpcflow.platform import artifact_cache

DAYS = (0.5, 3.0, 40.0)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders with three plans, kernels and packs of other ages, beside a file of the user's."""
    found = {}
    for kind in (artifact_cache.PLANS, artifact_cache.KERNELS, artifact_cache.PACKS):
        place = tmp_path / kind.artifacts
        monkeypatch.setenv(kind.setting, str(place))
        folder = artifact_cache.own_cache(kind)
        assert folder is not None and place.stat().st_mode & 0o777 == 0o700
        for i, days in enumerate(DAYS):
            name = f"{i:064x}"
            folder.write(name, bytes(100 * (i + 1)))
            made = time.time() - 86_400 * days
            os.utime(place / f"{name}{kind.ending}", (made, made))
        (place / f"mine{kind.ending}").write_text("a user's own")
        (place / ("0" * 64)).write_text("of another ending")
        found[kind.artifacts] = place
    return found


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["cache", *words]) == code
    return capsys.readouterr().out


def test_what_is_kept_is_counted(kept, capsys):
    told = json.loads(asked(capsys, "--json"))["kept"]
    for what, place in kept.items():
        one = told[what]
        assert (one["folder"], one["files"]) == (str(place), 3)
        assert one["bytes"] == 600 + 3 * artifact_cache.DIGEST
        assert one["oldest_s"] == pytest.approx(40 * 86_400, abs=60)
        assert one["newest_s"] == pytest.approx(0.5 * 86_400, abs=60)
    head, plans, kernels, packs = asked(capsys).splitlines()
    assert head.split() == ["kept", "files", "bytes", "oldest", "newest", "folder"]
    assert plans.split()[:6] == ["plans", "3", "696", "B", "40", "days"]
    assert "12 hours" in kernels and kernels.endswith(str(kept["kernels"]))
    assert packs.split()[:2] == ["packs", "3"]


def test_the_old_are_pruned(kept, capsys):
    removed = json.loads(asked(capsys, "--prune", "2", "--json"))["removed"]
    assert [removed[what]["files"] for what in kept] == [2, 2, 2]
    assert [one["files"] for one in json.loads(asked(capsys, "--json"))["kept"].values()] == [
        1,
        1,
        1,
    ]
    for kind in (artifact_cache.PLANS, artifact_cache.KERNELS, artifact_cache.PACKS):
        folder = artifact_cache.own_cache(kind)
        assert folder is not None and folder.read(f"{0:064x}") == bytes(100)
        assert folder.read(f"{1:064x}") is None


def test_all_are_cleared_but_what_is_not_hpcflows(kept, capsys):
    asked(capsys, "--clear")
    for what, place in kept.items():
        ending = getattr(artifact_cache, what.upper()).ending
        assert {path.name for path in place.iterdir()} == {f"mine{ending}", "0" * 64}


def test_no_folder_is_made_and_none_needed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HPCFLOW_PLAN_CACHE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HPCFLOW_KERNEL_CACHE", "none")
    monkeypatch.setenv("HPCFLOW_PACK_CACHE", str(tmp_path / "nowhere"))
    for words in ([], ["--clear"], ["--prune", "1"]):
        told = asked(capsys, *words).splitlines()
        assert told[1].split()[:2] == ["plans", "0"] and told[2].endswith("by the environment)")
    assert not list(tmp_path.iterdir())
    for wrong in ("-1", "nan", "inf"):
        asked(capsys, "--prune", wrong, code=2)


def test_what_cannot_be_removed_is_not_told_as_removed(kept, capsys):
    stuck = kept["plans"] / f"{1:064x}{artifact_cache.PLANS.ending}"
    stuck.unlink()
    stuck.mkdir()
    assert main(["cache", "--clear", "--json"]) == 1
    told = capsys.readouterr()
    removed = json.loads(told.out)["removed"]
    assert [removed[what]["files"] for what in kept] == [2, 3, 3] and str(stuck) in told.err
    assert (
        stuck.exists() and not (kept["plans"] / f"{2:064x}{artifact_cache.PLANS.ending}").exists()
    )


def test_few_packs_are_kept_and_the_newest(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFLOW_PACK_CACHE", str(tmp_path / "packs"))
    folder = artifact_cache.own_cache(artifact_cache.PACKS)
    assert folder is not None
    for i in range(artifact_cache.PACKS.most + 1):
        assert len(folder.files()) == i
        folder.write(f"{i:064x}", b"code")
        os.utime(folder.file(f"{i:064x}"), (i, i))
    kept = [file.path.stem for file in folder.files()]
    assert kept == [f"{i:064x}" for i in range(2, artifact_cache.PACKS.most + 1)]
