"""What is in the files: readable by plain h5py and h5dump, from any number of ranks."""

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory, header_digests
from hpcflow.checkpoint.checkpoint_layout import ArraySpec, assign_rows, hdf5_paths
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import equal, load_some, save_some
from tests.runtime.ranks import run_ranks

FORMS = {
    "three ranks": dict(ranks=3),
    "one rank": dict(ranks=1),
    "one file": dict(ranks=1, form="parallel"),
    "servers": dict(ranks=4, ps=2, shard_bytes=4096),
    "tasks": dict(ranks=4, tasks_per_replica=2),
}
KEPT = Path(__file__).parents[1] / "data" / "checkpoints"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_plain_h5py_reads_every_variable_as_one_array(tmp_path, form):
    values = save_some(tmp_path, 7, **FORMS[form])
    name = "step-7.h5" if form == "one file" else "step-7/index.h5"
    assert (tmp_path / "latest").read_text() == name.split("/")[0] + "\n"
    with h5py.File(tmp_path / name) as file:
        assert file.attrs["step"] == 7
        assert file.attrs["format_version"] == header_digests.FORMAT_VERSION
        assert json.loads(bytes(file[".graph"][:]))[0]["type"] == "Const"
        for variable, value in values.items():
            found = file[".slots/" + variable if variable.endswith("slot") else variable]
            assert found.dtype == value.dtype and found.shape == value.shape
            np.testing.assert_array_equal(found[()], value)
            assert found.attrs["name"] == variable


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks, places", [(1, {}), (2, {}), (3, dict(ps=2, shard_bytes=4096))])
def test_any_number_of_ranks_in_any_mode_loads_any_form(tmp_path, form, ranks, places):
    values = save_some(tmp_path, 1, **FORMS[form])
    assert equal(load_some(tmp_path, ranks, **places), values)


@pytest.mark.parametrize("form", ["three ranks", "one file"])
def test_h5dump_reads_it(tmp_path, form):
    if shutil.which("h5dump") is None:
        pytest.skip("needs h5dump (apt-get install hdf5-tools)")
    values = save_some(tmp_path, 7, **FORMS[form])
    name = "step-7.h5" if form == "one file" else "step-7/index.h5"
    for variable in ("int64/v2", "int64/v0", "int32/v3"):
        words = ["h5dump", "-y", "-w", "0", "-d", variable, str(tmp_path / name)]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        data = text[text.index("DATA {") + 6 : text.index("}", text.index("DATA {"))]
        found = np.array([int(x) for x in data.replace(",", " ").split()])
        np.testing.assert_array_equal(found, values[variable].ravel())


@pytest.mark.slow
def test_replicas_write_about_as_many_bytes_each(tmp_path):
    values = save_some(tmp_path, 1, ranks=3, rows=4000)
    total = sum(v.nbytes for v in values.values())
    for record in SavedCheckpoint(tmp_path / "step-1").files:
        mine = sum(n for slab in record["slabs"] for n, _ in slab["crcs"])
        assert abs(mine - total / 3) < 0.1 * total


@pytest.mark.slow
def test_the_newest_are_kept_and_the_same_step_may_be_saved_again(tmp_path):
    for step in (1, 2, 3):
        save_some(tmp_path, step, ranks=1, max_to_keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-2", "step-3"]
    again = save_some(tmp_path, 2, ranks=2, seed=5, max_to_keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-2", "step-3"]
    assert [one.path.name for one in checkpoint_directory.find_checkpoints(tmp_path)] == [
        "step-2",
        "step-3",
    ]
    assert equal(load_some(tmp_path), again)  # the one saved last, not the one of the largest step
    one_file = save_some(tmp_path, 2, ranks=1, seed=6, max_to_keep=2, form="parallel")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-2.h5", "step-3"]
    assert equal(load_some(tmp_path), one_file)


def test_a_directory_can_be_moved_and_a_file_renamed(tmp_path):
    values = save_some(tmp_path / "a", 1)
    (tmp_path / "a" / "step-1").rename(tmp_path / "best")
    assert equal(load_some(tmp_path / "best"), values)
    values = save_some(tmp_path / "a", 1, ranks=1, form="parallel")
    (tmp_path / "a" / "step-1.h5").rename(tmp_path / "best.h5")
    assert equal(load_some(tmp_path / "best.h5"), values)


@pytest.mark.slow
def test_a_crash_between_two_renames_leaves_a_good_checkpoint(tmp_path):
    """A second save of step 1 that died after it moved the first aside."""
    values = save_some(tmp_path, 1)
    old = tmp_path / "step-1.old"
    (tmp_path / "step-1").rename(old)
    assert equal(load_some(tmp_path), values)
    again = save_some(tmp_path, 1, seed=2)
    assert equal(load_some(tmp_path), again)
    (tmp_path / "step-1").rename(old)
    checkpoint_directory.remove_drafts(
        tmp_path
    )  # as a job does that goes on: `latest` names a checkpoint again
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-1"]
    assert equal(load_some(tmp_path), again)
    shutil.copytree(tmp_path / "step-1", old)
    index = tmp_path / "step-1" / "index.h5"
    whole = index.read_bytes()
    index.write_bytes(whole[:-1])
    checkpoint_directory.remove_drafts(tmp_path)
    assert old.is_dir()  # the only good one
    index.write_bytes(whole)
    checkpoint_directory.remove_drafts(tmp_path)
    assert not old.exists()


@pytest.mark.parametrize("kept", sorted(KEPT.iterdir()), ids=lambda p: p.name)
def test_files_of_every_format_version_load(kept, tmp_path):
    """Written by tests/checkpoint/keep.py when the version was new; never written again."""
    values = dict(np.load(kept / "values.npz"))
    for name in ("step-3", "step-4.h5"):
        assert equal(load_some(kept / name, rows=20, names=values), values)


def test_there_is_a_file_of_this_format_version():
    assert f"version-{header_digests.FORMAT_VERSION}" in {p.name for p in KEPT.iterdir()}


@pytest.mark.parametrize("writers", [1, 2, 3, 7, 64])
def test_shares_cover_every_row_once(writers):
    rng = np.random.default_rng(writers)
    arrays = []
    for i in range(40):
        shape = tuple(int(d) for d in rng.integers(0, [4, 60, 9000][i % 3], rng.integers(0, 3)))
        arrays.append(ArraySpec(f"a{i}", "<f4", shape))
    shares = assign_rows(arrays, writers)
    for array in arrays:
        rows = [
            r
            for some in shares
            for s in some
            if s.name == array.name
            for r in range(s.start, s.stop)
        ]
        assert sorted(rows) == (list(range(array.rows)) if array.nbytes else [])
    total, largest = sum(a.nbytes for a in arrays), max(a.nbytes for a in arrays)
    sizes = {a.name: a.row_bytes for a in arrays}
    for some in shares:
        assert sum((s.stop - s.start) * sizes[s.name] for s in some) <= total / writers + largest


ODD = ("", "/", "a//b", "/a", "a/", ".", "a/./b", ".graph", ".state", ".slots/w/a", ".numbered/0")
NESTED = ("w", "w/a", "w/a/b", "w/a/b/Adam", "w/b", "v/..", "v/../b", "..", "x" * 3000, "ü" * 500)


def test_every_name_has_a_place_of_its_own():
    assert hdf5_paths(["w", "w/Adam", "v/b"]) == {"w": "w", "w/Adam": ".slots/w/Adam", "v/b": "v/b"}
    found = sorted(hdf5_paths([*ODD, *NESTED]).values())
    assert len(set(found)) == len(ODD + NESTED)
    for path in found:
        assert not any(other.startswith(path + "/") for other in found)
        assert not {"", "."} & set(path.split("/")) and path not in (".graph", ".state")


@pytest.mark.parametrize("form", ["sharded", "parallel"])
@pytest.mark.parametrize("shape", [(2,), (), (0, 4)], ids=["rows", "scalars", "no bytes"])
def test_any_names_are_saved_and_found_again(tmp_path, form, shape):
    """Also where all variables together have no bytes, and no rank has anything to write."""
    values = {name: np.full(shape, i, np.float32) for i, name in enumerate(ODD + NESTED)}

    def body(context):
        made = {name: hf.Variable(value) for name, value in values.items()}
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        path = Path(hf.train.Saver(made, form=form).save(session, tmp_path, 1))
        other = {name: hf.Variable(np.full(shape, -1, np.float32)) for name in values}
        session.run(hf.global_variables_initializer())
        hf.train.Saver(other).restore(session, path)
        return session.run(other)

    for found in run_ranks(2 if form == "sharded" else 1, body):
        assert equal(found, values)
    with h5py.File(
        checkpoint_directory.index_file(checkpoint_directory.find_checkpoints(tmp_path)[0].path)
    ) as file:
        there = {}
        file.visititems(lambda _, item: there.update({item.attrs.get("name"): item}))
        if shape or form == "parallel":  # a scalar of several parts is a link
            for name, value in values.items():
                np.testing.assert_array_equal(there[name][()], value)


def test_what_cannot_be_saved_is_told_before_anything_is_written(tmp_path):
    with hf.Graph().as_default():
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        for given, words in (
            ({"a": v, "b": v}, "two names, 'a' and 'b'"),
            ({"a\0b": v}, "cannot be the name"),
            ({"\ud800": v}, "cannot be the name"),
            ({3: v}, "cannot be the name"),
            ({"a": np.zeros(3)}, "is not a variable"),
            ([v.value()], "is not a variable"),
            ([], "nothing to save"),
        ):
            with pytest.raises(CheckpointError, match=words):
                hf.train.Saver(given)


def test_an_error_leaves_no_draft(tmp_path):
    def body(context):
        v = hf.Variable(np.zeros(3, np.float32))
        session = hf.Session(context=context)
        session.run(v.initializer)
        hf.train.Saver([v], form="no form").save(session, tmp_path, 1)

    with pytest.raises(CheckpointError, match="no form"):
        run_ranks(2, body)
    assert list(tmp_path.iterdir()) == []
