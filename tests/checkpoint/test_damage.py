"""Damaged, missing and foreign files are refused by name; the newest good checkpoint is used."""

import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.participating_ranks import ParticipatingRanks
from hpcflow.checkpoint.restore import newest_valid_checkpoint
from hpcflow.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CommError,
    HpcflowError,
)
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.checkpoint.damaging import DAMAGES, check, damage_often, files_of
from tests.checkpoint.jobs import equal, load_some, save_some
from tests.runtime.ranks import run_ranks

FORMS = {"sharded": dict(ranks=3), "one file": dict(ranks=1, form="parallel")}


def told_of(path: Path) -> list[str]:
    """What is found wrong with a checkpoint, by two ranks."""
    try:
        saved = SavedCheckpoint(path)
    except HpcflowError as error:
        return [error.message]
    return saved.problems(0, 2) + saved.problems(1, 2)


@pytest.fixture(scope="module", params=FORMS)
def saved(request, tmp_path_factory):
    """A checkpoint that tests leave as it was, and its values."""
    where = tmp_path_factory.mktemp("saved")
    values = save_some(where, 1, rows=20, **FORMS[request.param])
    return checkpoint_directory.find_checkpoints(where)[0].path, values


@pytest.fixture(params=FORMS)
def two(request, tmp_path):
    """A folder with an older and a newer checkpoint: (folder, the newer one, older values)."""
    older = save_some(tmp_path, 1, seed=1, rows=20, **FORMS[request.param])
    save_some(tmp_path, 2, seed=2, rows=20, **FORMS[request.param])
    return tmp_path, checkpoint_directory.find_checkpoints(tmp_path)[0].path, older


@pytest.mark.slow
def test_what_was_not_damaged_is_good(two):
    assert told_of(two[1]) == []


@pytest.mark.slow
def test_a_file_that_was_cut_off_anywhere_is_refused(two):
    where, newer, older = two
    for file in files_of(newer):
        whole = file.read_bytes()
        for fiftieth in range(50):
            file.write_bytes(whole[: len(whole) * fiftieth // 50])
            assert any(file.name in text for text in told_of(newer)), (file, fiftieth)
        file.write_bytes(whole + b"more")
        assert told_of(newer)
        file.write_bytes(whole)
    assert told_of(newer) == []
    os.truncate(files_of(newer)[-1], 5000)
    assert equal(load_some(where, rows=20), older)


@pytest.mark.slow
@pytest.mark.parametrize("damage, times", [(name, 60 if name == "flip" else 8) for name in DAMAGES])
def test_damage_is_found_or_harmless(saved, damage, times):
    """`make test-chaos` does it a thousand times."""
    assert damage_often(*saved, DAMAGES[damage], times, seed=5) > times // 2


@pytest.mark.slow
def test_a_file_half_of_one_save_and_half_of_another_is_refused(saved, tmp_path):
    """The same variables with other values: what a torn copy leaves."""
    path, values = saved
    options = FORMS["one file" if path.is_file() else "sharded"]
    others = save_some(tmp_path, 1, seed=9, rows=20, **options)
    for file in files_of(path):
        mine, theirs = file.read_bytes(), (tmp_path / file.relative_to(path.parent)).read_bytes()
        for cut in range(len(mine) // 9, len(mine), len(mine) // 9):
            for torn, first in (
                (mine[:cut] + theirs[cut:], values),
                (theirs[:cut] + mine[cut:], others),
            ):
                if torn not in (mine, theirs):
                    file.write_bytes(torn)
                    assert check(path, file.name, first if path.is_file() else values)
        file.write_bytes(mine)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["index.h5", "part-00001.h5"])
def test_a_file_of_another_save_is_refused_by_name_and_the_one_before_is_used(tmp_path, which):
    older = save_some(tmp_path / "a", 1, seed=1, rows=20)
    save_some(tmp_path / "a", 2, seed=2, rows=20)
    save_some(tmp_path / "b", 2, seed=2, rows=20)  # even of the same step and values
    shutil.copy(tmp_path / "b/step-2" / which, tmp_path / "a/step-2" / which)
    found = sorted(t for t in told_of(tmp_path / "a/step-2") if "does not belong" in t)
    parts = ["part-00000.h5", "part-00001.h5", "part-00002.h5"] if "index" in which else [which]
    assert len(found) == len(parts) and all(p in text for p, text in zip(parts, found, strict=True))
    assert equal(load_some(tmp_path / "a", rows=20), older)


@pytest.mark.slow
def test_one_flipped_bit_sends_a_job_to_the_checkpoint_before(two):
    where, newer, older = two
    file = files_of(newer)[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    assert equal(load_some(where, rows=20), older)
    with pytest.raises(CheckpointCorruptError, match=file.name):
        load_some(newer, rows=20)


@pytest.mark.slow
def test_a_missing_part_is_an_error_never_a_fill_value(tmp_path):
    older = save_some(tmp_path, 1, seed=1)
    save_some(tmp_path, 2, seed=2)
    (tmp_path / "step-2" / "part-00001.h5").unlink()
    assert any("part-00001.h5 is missing" in text for text in told_of(tmp_path / "step-2"))
    assert equal(load_some(tmp_path), older)
    shutil.rmtree(tmp_path / "step-1")
    with pytest.raises(CheckpointCorruptError, match=r"part-00001.h5 is missing"):
        load_some(tmp_path)


@pytest.mark.slow
def test_the_part_of_another_checkpoint_is_foreign(tmp_path):
    save_some(tmp_path / "a", 1, seed=1)
    save_some(tmp_path / "b", 1, seed=1)  # even with the same values
    shutil.copy(tmp_path / "b/step-1/part-00002.h5", tmp_path / "a/step-1/part-00002.h5")
    assert any("does not belong" in text for text in told_of(tmp_path / "a/step-1"))
    a = tmp_path / "b/step-1"
    (a / "part-00001.h5").rename(a / "x")
    (a / "part-00002.h5").rename(a / "part-00001.h5")
    (a / "x").rename(a / "part-00002.h5")
    assert told_of(a)


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("what", ["empty", "text", "hdf5", "zeros"])
def test_a_foreign_file_is_refused(tmp_path, what):
    older = save_some(tmp_path, 1)
    path = tmp_path / "step-5.h5"
    path.write_bytes({"text": b"hello\n", "zeros": bytes(9999)}.get(what, b""))
    if what == "hdf5":
        with h5py.File(path, "w") as file:
            file["w"] = np.ones(3)
    with pytest.raises(CheckpointCorruptError, match=r"step-5\.h5"):
        load_some(path)
    assert equal(load_some(tmp_path), older)


def test_a_newer_format_version_says_what_to_do(tmp_path, monkeypatch):
    from hpcflow.checkpoint import header_digests

    monkeypatch.setattr(header_digests, "FORMAT_VERSION", 2)
    save_some(tmp_path, 1, ranks=1)
    monkeypatch.setattr(header_digests, "FORMAT_VERSION", 1)
    with pytest.raises(CheckpointError, match="format version 2"):
        SavedCheckpoint(tmp_path / "step-1")


def test_another_models_checkpoint_is_told_by_a_diff(tmp_path):
    def body(context):
        hf.Variable(np.zeros((3, 4), np.float32), name="both")
        hf.Variable(np.zeros(4, np.float32), name="mine")
        hf.Variable(np.zeros(4, np.float64), name="kind")
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver().restore(session, tmp_path)

    def other(context):
        hf.Variable(np.zeros((4, 3), np.float32), name="both")
        hf.Variable(np.zeros(4, np.float32), name="theirs")
        hf.Variable(np.zeros(4, np.float32), name="kind")
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver().save(session, tmp_path, 1)

    run_ranks(2, other)
    for options in ({}, {"ps": 1}):
        with pytest.raises(CheckpointMismatchError) as caught:
            run_ranks(2, body, **options)
        text = str(caught.value)
        assert "both float32[3, 4]: in the checkpoint float32[4, 3]" in text
        assert "mine float32[4]: not in the checkpoint" in text
        assert "kind float64[4]: in the checkpoint float32[4]" in text
        assert "theirs float32[4]: only in the checkpoint" in text
        assert "next" in text


def test_some_variables_under_other_names(tmp_path):
    values = save_some(tmp_path, 1)

    def body(context):
        mine = hf.Variable(np.zeros((5, 3), np.float32), name="mine")
        other = hf.Variable(np.ones(2, np.float32), name="other")
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        facts = hf.train.Saver({"float32/v2": mine}).restore(session, tmp_path)
        assert facts["step"] == 1
        return session.run([mine, other])

    for mine, other in run_ranks(2, body):
        np.testing.assert_array_equal(mine, values["float32/v2"])
        np.testing.assert_array_equal(other, [1, 1])


def test_what_has_no_value_cannot_be_saved(tmp_path):
    def body(context):
        hf.Variable(np.zeros(3, np.float32), name="w")
        hf.train.Saver().save(hf.Session(context=context), tmp_path, 1)

    with pytest.raises(CheckpointError, match="no value yet"):
        run_ranks(2, body)


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert hf.train.latest_checkpoint(tmp_path) is None
    assert newest_valid_checkpoint(RankContext(Settings()), tmp_path) is None
    for path in (tmp_path, tmp_path / "step-9"):
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            load_some(path, ranks=1)


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("form", ["sharded", "parallel"])
def test_many_variables_have_room_in_the_user_blocks(tmp_path, form):
    ranks = 4 if form == "sharded" else 1

    def body(context):
        made = [hf.Variable(np.full(3, i, np.float32), name=f"layer{i:04}/w") for i in range(700)]
        made.append(hf.Variable(np.zeros((40000, 5), np.float32), name="large"))
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        saver = hf.train.Saver(form=form)
        saver.save(session, tmp_path, 1)
        saver.restore(session, tmp_path)
        return session.run(made[:700])

    for values in run_ranks(ranks, body):
        assert [int(v[0]) for v in values] == list(range(700))


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("hello\n")
    with pytest.raises(CheckpointError, match="File exists"):
        save_some(tmp_path / "file", 1)


# -- disks


def mounted(path: Path, options: str):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs root that may mount")


@pytest.fixture
def disk(tmp_path):
    mounted(tmp_path / "disk", "size=6m")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)


def test_a_job_that_ends_in_a_save_leaves_no_draft(tmp_path, monkeypatch):
    """Another rank may end it by its error before the chief knows the outcome."""
    decide = ParticipatingRanks.decide

    def ended(self, value, chief):
        if (tmp_path / "step-1.tmp").exists():
            raise CommError("another rank has ended the job")
        return decide(self, value, chief)

    monkeypatch.setattr(ParticipatingRanks, "decide", ended)
    with pytest.raises(CommError):
        save_some(tmp_path, 1, ranks=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "places", [dict(ranks=1), dict(ranks=3), dict(ranks=3, ps=1), dict(ranks=1, form="parallel")]
)
def test_a_full_disk_leaves_the_checkpoint_before(disk, places):
    older = save_some(disk, 1, seed=1, **places)
    ballast = disk / "ballast"
    with pytest.raises(CheckpointError, match="No space left") as caught:
        with open(ballast, "wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(1 << 16))
                except OSError:
                    break
        save_some(disk, 2, seed=2, **places)
    assert "free some space" in caught.value.hint
    assert sorted(p.name for p in disk.iterdir() if p != ballast) == [
        "latest",
        "step-1.h5" if "form" in places else "step-1",
    ]
    assert equal(load_some(disk), older)
    ballast.unlink()
    newer = save_some(disk, 2, seed=2, **places)
    assert equal(load_some(disk), newer)


@pytest.mark.slow
def test_a_read_only_disk_is_told(disk):
    older = save_some(disk, 1, seed=1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(CheckpointError, match="Read-only") as caught:
        save_some(disk, 2, seed=2)
    assert "writable folder" in caught.value.hint
    assert equal(load_some(disk), older)


def test_no_permission_is_told(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user")
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission"):
        save_some(tmp_path / "a", 1)
    tmp_path.chmod(0o700)
