"""How often a job has been started again, as the folder of its checkpoints and SLURM count it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcflow.train.restart_count import STARTS, RestartCount


def begun(folder: Path, saves: bool = True, **environ: str) -> int:
    """A start that trains and saves; how many were before it."""
    one = RestartCount(folder)
    found = one.begin(environ)
    if saves:
        one.record_save((0.5, 2.5))
    return found


def test_starts_are_counted_until_the_training_has_ended(tmp_path: Path) -> None:
    assert [begun(tmp_path) for _ in range(3)] == [0, 1, 2]
    last = RestartCount(tmp_path)
    assert last.begin({}) == 3
    last.end()
    assert [begun(tmp_path) for _ in range(2)] == [0, 1]


def test_the_larger_of_both_counts(tmp_path: Path) -> None:
    assert begun(tmp_path, SLURM_RESTART_COUNT="3") == 3
    assert begun(tmp_path, SLURM_RESTART_COUNT="1") == 4  # a job of another number went on
    assert begun(tmp_path) == 5


def test_what_a_save_took_is_known_to_the_next_start(tmp_path: Path) -> None:
    first, second = RestartCount(tmp_path), RestartCount(tmp_path)
    first.begin({})
    assert first.record_durations is None
    first.record_save((0.5, 2.5))
    second.begin({})
    assert second.record_durations == (0.5, 2.5)


def test_a_session_that_does_not_resume_leaves_nothing(tmp_path: Path) -> None:
    one = RestartCount(tmp_path)
    one.record_save((0.5, 2.5))
    one.end()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_made_by_the_first_save_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert [begun(folder, saves=False) for _ in range(2)] == [0, 0] and not folder.exists()
    assert begun(folder, SLURM_RESTART_COUNT="2") == 2
    assert [begun(folder, saves=False) for _ in range(2)] == [3, 4]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1]", "{}", '{"restarts": "many", "ended": false}'),
        '{"restarts": 1, "ended": false, "save_seconds": 3}',
    ],
)
def test_a_file_that_cannot_be_read_counts_from_0_and_is_told(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STARTS).write_text(text)
    assert begun(tmp_path, saves=False) == 0
    assert STARTS in caplog.text
    assert json.loads((tmp_path / STARTS).read_text()) == {"restarts": 0, "ended": False}


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcflow.train.restart_count.write_json", full)
    assert begun(tmp_path) == 0
    assert "cannot be written: No space left on device" in caplog.text
