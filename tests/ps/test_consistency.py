"""The rules by their names."""

import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.ps.sync_rules import All, Async, rule
from hpcflow.settings import Settings


@pytest.mark.parametrize(
    ("text", "meant"),
    [("async", Async()), ("all", All()), ("backup:2", hf.Backup(2)), ("stale:0", hf.Stale(0))],
)
def test_a_rule_and_its_text(text, meant):
    assert rule(text) == meant == rule(meant)
    assert str(meant) == text


@pytest.mark.parametrize("text", ["sync", "all:1", "backup", "backup:-1", "stale:x", ""])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(HpcflowError, match="no rule"):
        rule(text)


@pytest.mark.parametrize(
    "make", [lambda: hf.Backup(0), lambda: hf.Stale(-1), lambda: hf.Stale(1.5)]
)
def test_numbers_that_make_no_sense(make):
    with pytest.raises(HpcflowError, match="whole number"):
        make()


def test_the_setting_is_checked_when_it_is_read():
    assert Settings.from_environ({"HPCFLOW_SYNC": "backup:1"}).sync == "backup:1"
    with pytest.raises(HpcflowError, match="stale:S"):
        Settings.from_environ({"HPCFLOW_SYNC": "bulk"})
