"""One failure.json for a run, however many ranks fail, whole whenever it is seen."""

from __future__ import annotations

import json
import os
import threading

import pytest

from hpcflow.monitoring import failure_json


@pytest.mark.parametrize("links", [True, False])
def test_of_many_at_once_one_is_the_first(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *paths: os.stat("/no links here"))
    start, won = threading.Barrier(16), []

    def fail(rank):
        monkeypatch.setattr(failure_json.os, "getpid", lambda: threading.get_native_id())
        start.wait()
        if failure_json.write_failure(tmp_path / "run", {"rank": rank, "traceback": "x" * 100_000}):
            won.append(rank)

    ranks = [threading.Thread(target=fail, args=(rank,)) for rank in range(16)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    told = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert won == [told["rank"]]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["failure.json"]


def test_where_nothing_can_be_written_the_rank_speaks(tmp_path):
    (tmp_path / "run").write_text("a file, no folder")
    assert failure_json.write_failure(tmp_path / "run", {})


def test_a_new_run_puts_the_failure_of_the_last_one_aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failure_json.prepare_folder(str(tmp_path))  # none
    for number in range(2):
        assert failure_json.write_failure(tmp_path, {"rank": number})
        failure_json.prepare_folder(str(tmp_path))
    assert not (tmp_path / failure_json.NAME).exists()
    assert json.loads((tmp_path / failure_json.EARLIER).read_text()) == {"rank": 1}
    assert failure_json.write_failure(tmp_path, {})
    failure_json.prepare_folder("")
    assert (tmp_path / failure_json.NAME).exists(), "a folder without a name is left alone"
