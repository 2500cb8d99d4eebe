"""`hf.app`: flags of a script, and how its `main` is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import hpcflow as hf
from hpcflow import flags
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Iterator[flags.FlagValues]:
    made = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", made)
    define = hf.app.flags
    define.DEFINE_string("name", None, "a name, 100%")
    define.DEFINE_integer("steps", 10, "how many")
    define.DEFINE_float("rate", 0.5, "how fast")
    define.DEFINE_boolean("check", False, "or not")
    define.DEFINE_bool("deep", True, "or not")
    yield made


def given(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", *words])


def test_flags_have_defaults_and_values(
    values: flags.FlagValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, "--steps=3", "--rate", "2", "--check", "--nodeep", "more")
    assert (values.name, values.steps, values.rate) == (None, 3, 2.0)
    assert values.check is True and values.deep is False
    values.steps = 4
    assert values.steps == 4
    with pytest.raises(AttributeError, match="no flag 'other'"):
        _ = values.other
    hf.flags.DEFINE_integer("later", 7, "defined after the first was read")
    assert values.later == 7


def test_booleans_are_words_too(
    values: flags.FlagValues, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, "--check=true", "--deep=False")
    assert values.check is True and values.deep is False
    with pytest.raises(SystemExit):
        values._parse_flags(["--check=maybe"])
    assert "neither true nor false" in capsys.readouterr().err


def test_main_gets_the_other_words(
    values: flags.FlagValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, "--steps=3", "file", "--other")
    called: list[Any] = []

    def main(argv: list[str]) -> int:
        called.append((argv, values.steps))
        return 3

    with pytest.raises(SystemExit) as end:
        hf.app.run(main)
    assert end.value.code == 3 and called == [(["script.py", "file", "--other"], 3)]
    script = ModuleType("__main__")
    script.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(SystemExit):
        hf.app.run(argv=["other.py", "--steps=5"])
    assert called[1] == (["other.py"], 5)


def test_the_task_is_the_ranks_unless_it_is_said() -> None:
    def body(context: RankContext) -> list[Any]:
        made = flags.FlagValues()
        made._defaults.update(job_name="", task_index=0)
        made._parser.add_argument("--task_index", type=int)
        made._parse_flags([])
        found = [made.job_name, made.task_index]
        made._parse_flags(["--task_index=5"])
        return [*found, made.task_index]

    assert run_ranks(3, body, ps=1) == [["worker", 0, 5], ["worker", 1, 5]]
    with use_context(RankContext(Settings())):
        assert body(RankContext(Settings()))[:2] == ["worker", 0]
