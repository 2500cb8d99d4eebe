"""A job that goes on from a checkpoint is the job that was never interrupted."""

import numpy as np
import pytest

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import CheckpointError, HpcflowError
from hpcflow.train.checkpoint_interval import CheckpointInterval
from tests.checkpoint.jobs import BATCH, SAMPLES, run

STEPS = SAMPLES // BATCH


def same(mine, theirs, bits=True):
    for a, b in zip(mine, theirs, strict=True):
        if bits:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("stop_at", [1, 4])
def test_resumed_at_the_same_number_of_ranks_all_variables_are_bit_equal(tmp_path, ranks, stop_at):
    whole = run(ranks, 3)
    run(ranks, 3, tmp_path, stop_at=stop_at)
    after = run(ranks, 3, tmp_path, resume=True)
    for mine, theirs in zip(after, whole, strict=True):
        assert mine["began"] == stop_at - 1  # saved before each step but the first
        assert mine["samples"] == (stop_at - 1) * BATCH
        same(mine["all"], theirs["all"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, second",
    [
        (dict(ranks=1), dict(ranks=3)),
        (dict(ranks=3), dict(ranks=2)),
        (dict(ranks=4, tasks_per_replica=2), dict(ranks=3)),
        (dict(ranks=2, ps=1), dict(ranks=4)),
        (dict(ranks=3, ps=2, shard_bytes=64), dict(ranks=2)),
        (dict(ranks=2), dict(ranks=3, ps=2, shard_bytes=64)),
        (dict(ranks=2, ps=1), dict(ranks=3, ps=2, shard_bytes=64)),
        (dict(ranks=3, tasks_per_replica=3, cut=True), dict(ranks=1)),
        (
            dict(ranks=6, tasks_per_replica=3, cut=True),
            dict(ranks=3, tasks_per_replica=3, cut=True),
        ),
    ],
)
def test_resumed_on_other_ranks_or_in_another_mode_it_trains_on(tmp_path, first, second):
    """Each of these jobs has the joined batches of one rank: the result is its, to rounding."""
    (whole,) = run(1, 3)
    run(epochs=3, folder=tmp_path, stop_at=5, **first)
    after = run(epochs=3, folder=tmp_path, resume=True, **second)
    assert after[0]["began"] == 4
    for one in after:
        same(one["weights"], whole["weights"], bits=False)


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("second", [dict(ranks=4), dict(ranks=3, ps=1), dict(ranks=6, ps=2)])
def test_three_asynchronous_workers_leave_the_others_what_they_did_not_draw(tmp_path, second):
    """Every sample once per epoch, counted over the run before and the one after."""
    # all workers save together before the chief's next step, and the last save holds all steps
    first = run(4, 2, tmp_path, ps=1)
    after = run(epochs=5, folder=tmp_path, resume=True, **second)
    drawn = [i for one in [*first, *after] for i in one["drawn"]]
    assert np.bincount(drawn, minlength=SAMPLES).tolist() == [5] * SAMPLES
    assert {one["samples"] for one in after} == {2 * SAMPLES}


@pytest.mark.slow
def test_every_update_of_an_asynchronous_checkpoint_is_in_it_once(tmp_path):
    """Adam counts the updates of each piece of a variable: as many as the checkpoint has steps."""
    run(epochs=8, folder=tmp_path, ranks=5, ps=2, shard_bytes=64, max_to_keep=0, save_every=3)
    found = sorted(tmp_path.glob("step-*"))
    assert len(found) > 4
    for path in found:
        saved = SavedCheckpoint(path)
        for name in (n for n in saved.arrays if n.endswith("Adam_step")):
            assert int(saved.read(name)) == saved.facts["step"], (path, name)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_random_draws_go_on(tmp_path, ranks):
    """Also on another number of ranks: of the joined batch one would have kept the same.

    They have no seed: the job that goes on draws by that of the job before.
    """
    whole = run(2, 2, noise=True, random_seed=7)
    run(2, 2, tmp_path, stop_at=3, noise=True, random_seed=7)
    after = run(ranks, 2, tmp_path, resume=True, noise=True, random_seed=8)
    for mine in after:
        same(mine["extras"], whole[0]["extras"][2:], bits=ranks == 2)


@pytest.mark.slow
@pytest.mark.parametrize("places", [dict(ranks=1), dict(ranks=3), dict(ranks=3, ps=1)])
def test_saves_by_time_are_at_the_same_step_on_all_workers(tmp_path, places):
    run(epochs=40, folder=tmp_path, save_every="0.002s", max_to_keep=0, **places)
    assert len(list(tmp_path.glob("step-*"))) > 1
    (after, *_) = run(epochs=41, folder=tmp_path, resume=True, ranks=1)
    assert after["samples"] == 40 * SAMPLES


@pytest.mark.parametrize("every", ["soon", "0", 0, "1.5", "-3s"])
def test_what_is_no_interval_is_told(tmp_path, every):
    with pytest.raises(CheckpointError, match="not an interval between"):
        run(1, 1, tmp_path, save_every=every)


def test_other_data_is_told(tmp_path):
    run(1, 1, tmp_path)
    with pytest.raises(HpcflowError, match="other data: seed 3, now 4"):
        run(1, 1, tmp_path, resume=True, seed=4)


def test_nothing_to_resume_begins_anew(tmp_path):
    (one,) = run(1, 1, tmp_path / "new", resume=True)
    assert one["began"] == 0
    assert (tmp_path / "new" / "latest").read_text().startswith(f"step-{STEPS}")


@pytest.mark.slow
@pytest.mark.parametrize("ranks, places", [(1, {}), (2, {}), (3, {"ps": 1})])
def test_a_run_that_does_not_resume_leaves_a_used_folder_as_it_is(tmp_path, ranks, places):
    run(ranks, 3, tmp_path, **places)
    newest = (tmp_path / "latest").read_text().strip()

    def files():
        """Times and contents; of the job's lock file contents alone, for its time is renewed."""
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        times = {p: p.stat().st_mtime_ns for p in found if p.name != ".running.json"}
        return times, {path: path.read_bytes() for path in found}

    before = files()
    with pytest.raises(CheckpointError, match=f"the newest is {newest}") as caught:
        run(ranks, 1, tmp_path, max_to_keep=1, **places)
    for remedy in ("resume=True", f"--set checkpoints={tmp_path}", "another folder"):
        assert remedy in str(caught.value)
    assert files() == before


def test_a_folder_of_damaged_checkpoints_is_used_too(tmp_path):
    run(1, 1, tmp_path, form="sharded")
    for path in tmp_path.glob("step-*/index.h5"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="of another run"):
        run(1, 1, tmp_path)


def test_a_folder_with_other_files_alone_is_not_used(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "step-7.tmp").mkdir()  # of a save that was interrupted
    (one,) = run(1, 1, tmp_path)
    assert one["began"] == 0


@pytest.mark.slow
def test_a_finished_job_goes_on_for_more_epochs(tmp_path):
    whole = run(2, 4)
    run(2, 2, tmp_path)
    after = run(2, 4, tmp_path, resume=True)
    same(after[0]["all"], whole[0]["all"])


@pytest.mark.parametrize(
    "died", ["before it was named", "when it was moved aside", "damaged since"]
)
def test_a_resumed_job_has_latest_name_the_newest_good_one(tmp_path, died):
    run(2, 1, tmp_path)
    newest, before = (one.path for one in checkpoint_directory.find_checkpoints(tmp_path)[:2])
    if died == "before it was named":
        (tmp_path / "latest").write_text(before.name + "\n")
        (tmp_path / "latest.tmp").write_text("")
    elif died == "when it was moved aside":
        newest.rename(newest.with_name(newest.name + ".old"))
    else:
        file = newest / "part-00000.h5" if newest.is_dir() else newest
        file.write_bytes(file.read_bytes()[:-1])
    expected = before if died == "damaged since" else newest
    run(1, 0, tmp_path, resume=True)
    assert (tmp_path / "latest").read_text() == expected.name + "\n"
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob("*.old"))


@pytest.mark.slow
@pytest.mark.parametrize("save", ["background", "foreground"])
def test_what_saves_hold_up_says_how_often(tmp_path, monkeypatch, save):
    """All but those behind training that it waits for on purpose, as for the last one."""
    told = []
    monkeypatch.setattr(CheckpointInterval, "record_save", lambda self, *took: told.append(took))
    monkeypatch.setattr(CheckpointInterval, "durations", (1.0, 2.0))
    monkeypatch.setattr(CheckpointInterval, "save_s", 1.0)
    run(2, 2, tmp_path, save_every=4, save=save)
    assert len(told) == 2 and all(written > 0 for _, written in told)
    assert [held is None for held, _ in told] == [False, save == "background"]
