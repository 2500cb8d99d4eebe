"""docs/verified.md is what the records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import records
from tools import verified

ROOT = Path(__file__).parent.parent


def test_the_page_is_made_from_the_records() -> None:
    made = verified.page(verified.read(verified.RECORDS))
    assert made == (ROOT / "docs" / "verified.md").read_text(), "run tools/verified.py"


def test_what_never_ran_says_so() -> None:
    page = verified.page({})
    assert page.count("never run") == len(verified.BACK_ENDS)


def test_of_one_commit_the_run_on_most_ranks_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCFLOW_RECORDS", str(tmp_path))
    for ranks in (1, 4, 2):
        records.write("ULFM", ranks, {})
    facts = json.loads((tmp_path / "ulfm.json").read_text())
    assert facts["ranks"] == 4 and "Python" in facts["versions"]
    assert "| 4 | Python" in verified.page(verified.read(tmp_path))
    monkeypatch.delenv("HPCFLOW_RECORDS")
    records.write("ULFM", 8, {})
    assert json.loads((tmp_path / "ulfm.json").read_text())["ranks"] == 4


def test_a_record_of_no_row_is_an_error() -> None:
    with pytest.raises(SystemExit, match="BACK_ENDS"):
        verified.page({"carrier pigeons": {}})
