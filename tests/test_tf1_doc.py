"""docs/tf1.md is true: it is made from the names that are there, and what differs is there too."""

from __future__ import annotations

import re
from pathlib import Path

import hpcflow as hf
from tools.tf1_page import MODULES, different, names, page

TEXT = (Path(__file__).parent.parent / "docs" / "tf1.md").read_text()


def test_the_page_is_what_the_package_has() -> None:
    assert page() == TEXT, "run: python tools/tf1_page.py > docs/tf1.md"


def test_no_name_is_listed_twice() -> None:
    for where, groups in names().items():
        found = [name for group in groups.values() for name in group]
        assert len(found) == len(set(found)), (where, [n for n in found if found.count(n) > 1])


def test_what_differs_is_there() -> None:
    for name in different(TEXT):
        thing: object = hf
        for part in name.split("."):
            thing = getattr(thing, part)


def test_a_name_that_is_there_by_accident_is_not_called_present() -> None:
    """Present names are exported: not a module's own imports."""
    for where, groups in names().items():
        for name in (n for g in groups.values() for n in g):
            module = MODULES[where]
            assert not hasattr(module, name) or name in module.__all__, f"{where}.{name}"


def test_absent_names_are_attribute_errors() -> None:
    absent = TEXT[TEXT.index("## Absent from `hf`") : TEXT.index("## Absent from `hf.nn`")]
    for name in re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", absent))[1:]:
        assert not hasattr(hf, name)
