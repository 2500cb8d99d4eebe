"""`hpcflow verify`, `diff`, `export` and `inspect` on both forms; NumPy and h5py know better."""

import json
import os
import shutil
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory, header_digests
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.cli.main import main
from hpcflow.graph.dtypes import bfloat16
from tests.checkpoint.jobs import equal, load_some, save_some
from tests.runtime.ranks import run_ranks

FORMS = {"sharded": dict(ranks=2), "parallel": dict(ranks=1, form="parallel")}
VALUES = {
    "w": np.arange(600, dtype=np.float32).reshape(60, 10) / 7,
    "w/Adam": np.ones((60, 10), np.float32),
    "n": np.array(5, np.int64),
    "half": np.array([1.5, -2.25, 3e38], bfloat16),
    "flags": np.array([True, False]),
    "z": np.array([1 + 2j, 3 - 1j], np.complex64),
    "empty": np.zeros((0, 3), np.float32),
}


def save(where: Path, values: dict, step: int = 1, ranks: int = 1, **options) -> Path:
    def body(context):
        made = {name: hf.Variable(value) for name, value in values.items()}
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        return Path(hf.train.Saver(made, **options).save(session, where, step))

    return run_ranks(ranks, body)[0]


@pytest.fixture(scope="module", params=FORMS)
def saved(request, tmp_path_factory):
    """A folder with one checkpoint of VALUES; tests that change it take a copy."""
    where = tmp_path_factory.mktemp("saved")
    return save(where, VALUES, **{"form": "sharded", **FORMS[request.param]})


@pytest.fixture
def copy(saved, tmp_path):
    target = tmp_path / "copy" / saved.name
    (shutil.copytree if saved.is_dir() else shutil.copy)(saved, (target.parent.mkdir(), target)[1])
    return target


def run(capsys, *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    caught = capsys.readouterr()
    return code, caught.out + caught.err


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def stamped(file: Path, change) -> None:
    """Change what a user block says, with a digest that fits: a liar's file, not a damaged one."""
    size = int.from_bytes(file.read_bytes()[8:16], "little")
    said = header_digests.read_user_block(file)
    change(said)
    with open(file, "r+b") as out:
        out.write(header_digests.encode_user_block(said, size))


def restamped(file: Path) -> None:
    """Have a file's digests fit what is in it now."""
    start = int.from_bytes(file.read_bytes()[8:16], "little")

    def change(said):
        data = file.read_bytes()
        used = [(s["offset"], s["offset"] + sum(n for n, _ in s["crcs"])) for s in said["slabs"]]
        said["size"] = len(data)
        said["rest"] = [list(p) for p in header_digests.uncovered_pieces(file, start, used)]

    said = json.loads(file.read_bytes()[56:].split(b"\0", 1)[0])
    change(said)
    with open(file, "r+b") as out:
        out.write(header_digests.encode_user_block(said, start))


# -- verify


def test_a_good_checkpoint_verifies(saved, capsys):
    code, text = run(capsys, "verify", saved)
    assert code == 0 and f"{saved}: good: step 1, 7 arrays" in text
    assert run(capsys, "verify", saved.parent)[0] == 0
    code, text = run(capsys, "verify", saved, "--json")
    assert json.loads(text)[0]["good"] is True


def test_verify_names_the_damaged_file_and_array(copy, capsys):
    said = header_digests.read_user_block(checkpoint_directory.index_file(copy))
    record = next(r for r in said.get("files", [said]) for s in r["slabs"] if s["name"] == "w/Adam")
    slab = next(s for s in record["slabs"] if s["name"] == "w/Adam")
    file = copy / record["file"] if copy.is_dir() else copy
    with open(file, "r+b") as out:
        out.seek(slab["offset"] + 3)
        out.write(b"\x55")
    code, text = run(capsys, "verify", copy, "--json")
    (told,) = json.loads(text)
    assert code == 1 and told["files"] == [file.name] and told["arrays"] == ["w/Adam"]
    code, text = run(capsys, "verify", copy)
    assert code == 1 and "DAMAGED" in text and f"{file}: w/Adam is damaged" in text


def test_verify_names_what_was_in_a_lost_part(tmp_path, capsys):
    path = save(tmp_path, VALUES, ranks=2, form="sharded")
    lost = path / "part-00001.h5"
    there = {slab["name"] for slab in header_digests.read_user_block(lost)["slabs"]}
    lost.unlink()
    code, text = run(capsys, "verify", path, "--json")
    (told,) = json.loads(text)
    assert code == 1 and told["files"] == ["part-00001.h5"] and set(told["arrays"]) == there


def test_one_file_with_rows_of_several_ranks_verifies(tmp_path, capsys):
    """As parallel HDF5 writes it: of one array each rank has a slab."""
    path = save(tmp_path, VALUES, form="parallel")
    data = path.read_bytes()

    def cut(said):
        slab = next(slab for slab in said["slabs"] if slab["name"] == "w")
        said["slabs"].remove(slab)
        for start, stop in ((20, 60), (0, 20)):
            at, size = slab["offset"] + start * 40, (stop - start) * 40
            crcs = [[size, zlib.crc32(data[at : at + size])]]
            mine = {"name": "w", "start": start, "stop": stop, "offset": at, "crcs": crcs}
            said["slabs"].append(mine)

    stamped(path, cut)
    assert len(header_digests.read_user_block(path)["slabs"]) == 7  # empty has none
    assert run(capsys, "verify", path)[0] == 0
    values = load_values(path)
    assert all(np.array_equal(values[name], VALUES[name]) for name in VALUES)
    with open(path, "r+b") as out:
        out.seek(
            next(
                s["offset"]
                for s in header_digests.read_user_block(path)["slabs"]
                if s["start"] == 20
            )
            + 5
        )
        out.write(b"\x77")
    code, text = run(capsys, "verify", path)
    assert code == 1 and "w is damaged" in text


@pytest.mark.slow
def test_verify_looks_at_each_checkpoint_of_a_folder(tmp_path, capsys):
    for step in (1, 2, 3):
        save_some(tmp_path, step, ranks=1, rows=20)
    part = tmp_path / "step-2" / "part-00000.h5"
    os.truncate(part, 5000)
    code, text = run(capsys, "verify", tmp_path)
    assert code == 1
    assert [
        line.split(":")[0].rsplit("/", 1)[-1] for line in text.splitlines() if "good" in line
    ] == [
        "step-3",
        "step-1",
    ]
    assert f"{tmp_path / 'step-2'}: DAMAGED" in text
    assert run(capsys, "verify", tmp_path / "nothing")[0] == 2
    (tmp_path / "empty").mkdir()
    code, text = run(capsys, "verify", tmp_path / "empty")
    assert code == 2 and "no checkpoint in" in text


def change_h5(file: Path, change) -> None:
    """Change a file through HDF5, and have its digests fit."""
    block = file.read_bytes()[: int.from_bytes(file.read_bytes()[8:16], "little")]
    with h5py.File(file, "r+") as h5:
        change(h5)
    with open(file, "r+b") as out:
        out.write(block)
    restamped(file)


def external(h5):
    del h5["n"]
    h5["n"] = h5py.ExternalLink("/etc/passwd", "/n")


def virtual(h5):
    del h5["w"]
    layout = h5py.VirtualLayout((60, 10), "<f4")
    layout[:] = h5py.VirtualSource("../../elsewhere.h5", "w", shape=(60, 10))
    h5.create_virtual_dataset("w", layout)


def raw(h5):
    del h5["w"]
    h5.create_dataset("w", (60, 10), "<f4", external=[("/etc/hostname", 0, 2400)])


def soft(h5):
    del h5["w"]
    h5["w"] = h5py.SoftLink("/.slots/w/Adam")


def more(h5):
    h5["stray/more"] = np.ones(3)


@pytest.mark.parametrize("change", [external, virtual, raw, soft, more])
def test_verify_refuses_links_and_sources_that_lead_elsewhere(copy, change, capsys):
    """The digests are right: only what HDF5 would read is not what was saved."""
    index = checkpoint_directory.index_file(copy)
    change_h5(index, change)
    one = checkpoint_directory.read_entry(copy)
    assert one.error is None, one.error
    faults = verify_checkpoint(one).faults
    name = {"external": "n", "more": "stray/more"}.get(change.__name__, "w")
    assert len(faults) == 1 and f"{name}" in faults[0].text, faults
    if change is virtual:
        assert "elsewhere.h5" in faults[0].text or "not in one piece" in faults[0].text
    values = load_values(copy)  # a restore does not ask HDF5
    assert all(np.array_equal(values[name], VALUES[name]) for name in VALUES)


def load_values(path: Path) -> dict:
    def body(context):
        made = {name: hf.Variable(np.zeros_like(value)) for name, value in VALUES.items()}
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver(made).restore(session, path)
        return session.run(made)

    return run_ranks(1, body)[0]


# -- diff


def test_diff_of_equal_checkpoints_in_both_forms(tmp_path, saved, capsys):
    other = save(tmp_path, VALUES, ranks=3, form="sharded")
    code, text = run(capsys, "diff", saved, other)
    assert code == 0 and text.endswith("equal\n")
    assert "saved with  ranks" in text
    assert run(capsys, "diff", saved, saved.parent)[0] == 0


def test_diff_tells_every_kind_of_difference(tmp_path, capsys):
    one = {"same": np.ones(3), "shape": np.ones(3), "kind": np.ones(3), "gone": np.ones(1)}
    one["far"] = np.array([1.0, 2.0, -4.0, np.nan, np.inf])
    one["int"] = np.array([2**62, -(2**62)])
    other = {**one, "shape": np.ones((3, 1)), "kind": np.ones(3, np.float32), "new": np.ones(1)}
    other["far"] = np.array([1.0, 2.5, -4.0, np.nan, np.inf])
    other["int"] = np.array([2**62 - 1, -(2**62)])
    del other["gone"]
    a, b = save(tmp_path / "a", one), save(tmp_path / "b", other, 2)
    code, text = run(capsys, "diff", a, b, "--json")
    told = json.loads(text)
    found = {row["name"]: row for row in told["differences"]}
    assert code == 1 and told["equal"] is False
    kinds = {name: row["kind"] for name, row in found.items() if row["kind"] != "fact"}
    assert kinds == {
        **{"gone": "missing", "new": "missing", "shape": "shape", "kind": "dtype"},
        **{"far": "values", "int": "values"},
    }
    assert (found["far"]["differing"], found["far"]["absolute"], found["far"]["relative"]) == (
        *(1, 0.5),
        0.5 / 2.5,
    )
    assert (found["int"]["differing"], found["int"]["absolute"]) == (1, 1.0)  # beyond float64
    assert found["step"]["text"] == "1 and 2"


@pytest.mark.parametrize("x, y, far", [(1.0, np.nan, "nan"), (np.inf, -np.inf, "inf")])
def test_diff_of_what_is_no_number_is_never_close(tmp_path, capsys, x, y, far):
    a, b = (save(tmp_path / n, {"v": np.array([v, 1.0])}) for n, v in (("a", x), ("b", y)))
    code, text = run(capsys, "diff", a, b, "--json", "--arrays", "--rtol", "1e9", "--atol", "1e9")
    (row,) = json.loads(text)["differences"]
    assert code == 1 and row["differing"] == 1 and row["absolute"] == far


def test_diff_with_tolerances(tmp_path, capsys):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 40)).astype(np.float32)
    y = x * np.float32(1 + 1e-4)
    a, b = (save(tmp_path / n, {"v": v}) for n, v in (("a", x), ("b", y)))
    code, text = run(capsys, "diff", a, b, "--json", "--arrays")
    (row,) = json.loads(text)["differences"]
    wide = x.astype(np.float64), y.astype(np.float64)
    apart = np.abs(wide[0] - wide[1])
    assert code == 1 and row["differing"] == np.count_nonzero(x != y)
    assert row["absolute"] == pytest.approx(apart.max(), rel=1e-12)
    most = (apart / np.maximum(*map(np.abs, wide)))[x != y].max()
    assert row["relative"] == pytest.approx(most, rel=1e-12)
    assert run(capsys, "diff", a, b, "--arrays", "--rtol", "2e-4")[0] == 0
    assert run(capsys, "diff", a, b, "--arrays", "--rtol", "1e-6")[0] == 1
    assert run(capsys, "diff", a, b, "--arrays", "--rtol", "-1")[0] == 2


@pytest.mark.slow
def test_diff_tells_the_place_in_the_data(tmp_path, capsys):
    from tests.checkpoint.jobs import run as job

    job(1, 1, tmp_path / "a", form="sharded", stop_at=2)
    job(1, 1, tmp_path / "b", form="sharded")
    code, text = run(capsys, "diff", tmp_path / "a", tmp_path / "b")
    assert code == 1 and "position  dataset 0: " in text and "fact      step: 1 and 3" in text


def test_diff_of_what_cannot_be_read(copy, capsys):
    os.truncate(files_of(copy)[-1], 9000)
    code, text = run(capsys, "diff", copy, copy)
    assert code == 2 and files_of(copy)[-1].name in text


# -- export


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_export_writes_one_plain_file(saved, tmp_path, suffix, capsys):
    out = tmp_path / f"all{suffix}"
    code, text = run(capsys, "export", saved, out)
    assert code == 0 and "7 arrays" in text
    if suffix == ".npz":
        with np.load(out) as found:
            values = {name: found[name] for name in found.files}
        expected = {**VALUES, "half": VALUES["half"].astype(np.float32)}
    else:
        with h5py.File(out) as file:
            assert file.attrs["step"] == 1 and not file[".slots/w/Adam"].is_virtual
            values = {}
            file.visititems(lambda _, x: values.update({x.attrs.get("name"): x}))
            values = {k: v[()] for k, v in values.items() if k is not None}
        expected = {**VALUES, "half": VALUES["half"].view(np.uint16)}
    assert equal({k: np.asarray(v) for k, v in values.items()}, expected)
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_export_refuses_what_it_cannot_write(tmp_path, capsys):
    where = save(tmp_path / "c", {"a/../../b": np.ones(2), "c": np.ones(2)})
    code, text = run(capsys, "export", where, tmp_path / "x.npz")
    assert code == 1 and "'a/../../b'" in text and ".h5" in text
    assert run(capsys, "export", where, tmp_path / "x.h5")[0] == 0
    code, text = run(capsys, "export", where, tmp_path / "x.onnx")
    assert code == 1 and "--model" in text
    code, text = run(capsys, "export", where, tmp_path / "no" / "x.h5")
    assert code == 1 and "cannot be written" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "x.h5"]


# -- inspect


def test_inspect_shows_both_forms(saved, capsys):
    code, text = run(capsys, "inspect", saved)
    assert code == 0 and "digests  ok" in text and "variables 7" in text
    assert f"form     {'sharded' if saved.is_dir() else 'parallel'}" in text


# -- links and names


def test_a_link_in_a_checkpoint_is_refused(copy, tmp_path, capsys):
    for file in files_of(copy):
        there = tmp_path / "there.h5"
        file.rename(there)
        file.symlink_to(there)
        code, text = run(capsys, "verify", copy.parent)
        assert code == 1 and f"{file} is a symbolic link" in text, text
        file.unlink()
        there.rename(file)
    assert run(capsys, "verify", copy.parent)[0] == 0


def test_a_pipe_is_no_file(copy, capsys):
    file = files_of(copy)[-1]
    file.unlink()
    os.mkfifo(file)
    code, text = run(capsys, "verify", copy)  # and does not wait for a writer
    assert code == 1 and "is not a regular file" in text


def test_a_link_to_a_checkpoint_may_be_named(copy, tmp_path):
    link = tmp_path / ("best" if copy.is_dir() else "best.h5")
    link.symlink_to(copy)
    values = load_values(link)
    assert all(np.array_equal(values[name], VALUES[name]) for name in VALUES)


@pytest.mark.slow
def test_a_link_among_the_checkpoints_is_not_followed_nor_what_it_leads_to_removed(tmp_path):
    values = save_some(tmp_path / "c", 1, ranks=1, rows=20)
    save_some(tmp_path / "precious", 9, ranks=1, rows=20)
    (tmp_path / "c" / "step-9").symlink_to(tmp_path / "precious" / "step-9")
    (tmp_path / "c" / "step-8.tmp").symlink_to(tmp_path / "precious" / "step-9")
    assert "is a symbolic link" in str(
        checkpoint_directory.find_checkpoints(tmp_path / "c")[0].error
    )
    assert equal(load_some(tmp_path / "c", ranks=1, rows=20), values)
    for step in (2, 8, 9):
        save_some(tmp_path / "c", step, ranks=1, rows=20, max_to_keep=1)
    checkpoint_directory.remove_drafts(tmp_path / "c")
    assert run_ok(tmp_path / "precious")
    assert not (tmp_path / "c" / "step-9").is_symlink()


def run_ok(where: Path) -> bool:
    return all(
        not verify_checkpoint(one).faults for one in checkpoint_directory.find_checkpoints(where)
    ) and bool(checkpoint_directory.find_checkpoints(where))


@pytest.mark.parametrize(
    "name", ["../step-1/part-00000.h5", "/etc/passwd", "..", "", "a\0b", 3, "x/part-00000.h5"]
)
def test_names_of_files_that_lead_elsewhere_are_refused(tmp_path, name, capsys):
    path = save(tmp_path, VALUES, form="sharded")
    stamped(path / "index.h5", lambda said: said["files"][0].update(file=name))
    code, text = run(capsys, "verify", path)
    assert code == 1 and "is no name of a file beside it" in text
