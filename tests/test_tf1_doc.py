"""docs/tf1.md is true: what it calls present is there, what it calls absent is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hpcflow as hf

TEXT = (Path(__file__).parent.parent / "docs" / "tf1.md").read_text()
PARTS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", TEXT, re.M))
HERE = {"hf": hf, "hf.nn": hf.nn, "hf.train": hf.train}
NAME = re.compile(r"`([A-Za-z_0-9]+)`")


def listed(part: str) -> set[str]:
    """The names of a part, without what its remarks in brackets mention."""
    names = NAME.findall(re.sub(r"\([^)]*\)", "", PARTS[part]))
    assert len(names) == len(set(names)), f"twice: {[n for n in names if names.count(n) > 1]}"
    return set(names)


def different() -> set[str]:
    """The names in the first column of the table."""
    rows = [
        line.split("|")[1] for line in PARTS["Different"].splitlines() if line.startswith("| `")
    ]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


@pytest.mark.parametrize("where", HERE)
def test_present_names_are_there_and_absent_ones_are_not(where: str) -> None:
    key = f"`{where}`"
    present, absent = listed(f"Present in {key}"), listed(f"Absent from {key}")
    assert not {n for n in present if not hasattr(HERE[where], n)}
    assert not {n for n in absent if hasattr(HERE[where], n)}, "move them to the present ones"


def test_every_public_name_is_listed() -> None:
    ours = set(re.findall(r"`([\w.]+)`", PARTS["Only in hpcflow"])) | different()
    assert set(hf.__all__) <= listed("Present in `hf`") | ours
    assert set(hf.nn.__all__) == listed("Present in `hf.nn`")
    trained = {f"train.{name}" for name in listed("Present in `hf.train`")}
    assert {f"train.{name}" for name in hf.train.__all__} <= trained | ours
    for name in ours:
        thing: object = hf
        for part in name.split("."):
            thing = getattr(thing, part)
