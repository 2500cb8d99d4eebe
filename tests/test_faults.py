"""The texts of faults that a run is to suffer: what they mean, and what is said of wrong ones."""

from __future__ import annotations

import argparse
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcflow.cli import run
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.platform.fault_specification import (
    KINDS,
    USAGES,
    InjectedFault,
    check_faults,
    parse_faults,
)
from hpcflow.settings import Settings


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("kill:rank=3@step=50", {"kind": "kill", "rank": 3, "step": 50}),
        ("term:rank=1@step=40", {"kind": "term", "rank": 1, "step": 40}),
        ("stop:rank=0@step=30", {"kind": "stop", "rank": 0, "step": 30}),
        ("stall:rank=1@step=20", {"kind": "stall", "rank": 1, "step": 20}),
        ("slow:rank=2x4", {"kind": "slow", "rank": 2, "factor": 4.0}),
        ("slow:rank=12x1.5@step=7", {"kind": "slow", "rank": 12, "factor": 1.5, "step": 7}),
        ("disk-full", {"kind": "disk-full"}),
        ("disk-full@save=2", {"kind": "disk-full", "save": 2}),
        ("disk-full:rank=1@step=9", {"kind": "disk-full", "rank": 1, "step": 9}),
        ("nan:op=layer0/MatMul", {"kind": "nan", "op": "layer0/MatMul"}),
        ("nan:op=a/b_1,rank=2@step=3", {"kind": "nan", "op": "a/b_1", "rank": 2, "step": 3}),
    ],
)
def test_what_a_fault_means(text: str, fields: dict) -> None:
    assert parse_faults(text) == (InjectedFault(text=text, **fields),)
    assert [str(one) for one in parse_faults(f" {text} ;; disk-full")] == [text, "disk-full"]


def test_nothing_is_no_fault() -> None:
    assert parse_faults("") == parse_faults(" ; ") == ()


@pytest.mark.parametrize(
    ("text", "at", "says", "hint"),
    [
        ("kil:rank=1@step=2", "kil", "there is no fault 'kil'", "write kill:rank=R@step=N"),
        ("fire", "fire", "there is no fault 'fire'", "disk-full"),
        ("kill:rank=1@stp=2", "stp", "'stp=2' is none of step=", "write kill:rank=R@step=N"),
        ("kill:node=1@step=2", "node", "'node=1' is none of rank=", "write kill"),
        ("kill:rank=1", "", "does not say which step", "write kill:rank=R@step=N"),
        ("kill@step=1", "", "does not say which rank", "write kill"),
        ("kill:rank=1@", "@", "nothing stands behind the @", "write kill"),
        ("kill:rank=one@step=2", "one", "'one' is no whole number of at least 0", "write kill"),
        ("kill:rank=1@step=0", "0", "'0' is no whole number of at least 1", "write kill"),
        ("kill:rank=@step=2", "rank", "rank has no value", "write kill"),
        ("kill:rank=1,rank=2@step=2", "rank=2", "rank is said twice", "write kill"),
        ("slow:rank=2", "", "how many times slower", "write slow:rank=RxFACTOR"),
        ("slow:rank=2xy", "y", "'y' is no number of at least 1", "write slow"),
        ("slow:rank=2x0.5", "0.5", "'0.5' is no number of at least 1", "write slow"),
        ("nan@step=1", "", "does not say which op", "write nan:op=NAME"),
        ("disk-full@save=1,step=2@", "2@", "'2@' is no whole number", "write disk-full"),
        ("disk-full@", "@", "nothing stands behind", "write disk-full"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, at: str, says: str, hint: str) -> None:
    whole = f"disk-full; {text}"
    with pytest.raises(LaunchError) as caught:
        parse_faults(whole)
    place = len("disk-full; ") + (text.rindex(at) if at else len(text))
    message, shown, mark = caught.value.message.split("\n")
    assert says in message and message.endswith(f"at character {place + 1}")
    assert shown.strip() == whole and mark.index("^") - shown.index(whole) == place
    assert hint in str(caught.value.hint)


@given(st.text("kilterm:@=,;x. -0123456789diskfulnaop/", max_size=40))
def test_any_text_is_faults_or_an_error_that_shows_where(text: str) -> None:
    try:
        found = parse_faults(text)
    except LaunchError as error:
        place = int(re.findall(r"at character (\d+)", error.message)[-1])
        assert 1 <= place <= len(text) + 1
    else:
        assert all(one.kind in KINDS and one.text in text for one in found)


def test_every_usage_is_one_once_its_letters_are_numbers() -> None:
    for usage in USAGES:
        text = re.sub(r"\[|\]|\|@save=K", "", usage).replace("FACTOR", "2").replace("NAME", "loss")
        assert parse_faults(re.sub(r"\b(R|N)(?=\b|x)", "1", text))


def test_a_rank_that_is_not_there_is_told() -> None:
    assert check_faults("kill:rank=3@step=1", 4)
    with pytest.raises(LaunchError, match="the job has 3 ranks") as caught:
        check_faults("disk-full;kill:rank=3@step=1", 3)
    assert caught.value.hint == "name a rank from 0 to 2"


def test_flags_join_and_a_wrong_setting_is_told_before_anything_starts() -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    args = parser.parse_args(["--inject", "slow:rank=2x4", "--inject", "disk-full@save=2"])
    chosen = run.chosen_settings(args)
    settings = Settings.from_environ(chosen)
    assert chosen == {"HPCFLOW_INJECT": "slow:rank=2x4;disk-full@save=2"}
    run.check(3, None, settings)
    with pytest.raises(LaunchError, match="the job has 2 ranks"):
        run.check(2, None, settings)
    with pytest.raises(HpcflowError, match="no fault"):
        Settings.from_environ({"HPCFLOW_INJECT": "explode"})
