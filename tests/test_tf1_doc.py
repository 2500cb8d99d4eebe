"""docs/tf1.md is true: it follows from the package and from what TensorFlow was seen to have."""

from __future__ import annotations

import json
import re

import pytest

import hpcflow as hf
from tools import tf1_compare, tf1_record
from tools.tf1_compare import Name, Notes, compare, compared, page, without_reason

API = json.loads(tf1_compare.API.read_text())["modules"]
FOUND = compared(API)
ABSENT = [name for name in FOUND if name.absent]


def test_the_page_is_what_the_package_has() -> None:
    assert page() == tf1_compare.PAGE.read_text(), "run: python tools/tf1_compare.py"


def test_a_newcomer_can_read_it() -> None:
    assert len(page().splitlines()) < 400


def test_each_difference_has_its_reason() -> None:
    assert without_reason(FOUND, Notes.read()) == []


def test_what_behaves_differently_is_there() -> None:
    for row in Notes.read().different:
        for name in re.findall(r"`([\w.]+)`", row[0]):
            assert tf1_record.attribute(hf, name) is not None, name


def test_absent_names_are_attribute_errors() -> None:
    for name in (n for n in ABSENT if "." not in n.path):
        assert not hasattr(hf, name.path) or name.path not in hf.__all__, name.path


def test_all_modules_were_compared() -> None:
    """A module that nobody compares would be called neither present nor absent."""
    public = {n for n in hf.__all__ if type(getattr(hf, n)).__name__ == "module"}
    assert public - set(tf1_compare.MODULES) == {"callbacks", "notebook", "onnx"}


class Module:
    """A package that has some names."""

    @staticmethod
    def scale(x: object, factor: float = 1.0, name: str | None = None) -> None: ...

    @staticmethod
    def move(x: object, by: int = 1, *, axis: int = 0, old: int | None = None) -> None: ...

    class Box:
        def __init__(self, size: int) -> None:
            self.size = size

        def open(self) -> None: ...


DIFFERING: list[tuple[str, tf1_record.Entry, Name]] = [
    ("scale", "x, factor=2.0, name=None", Name("scale")),
    ("scale", "x, factor=2.0, axis=None, name=None", Name("scale", parameters=["axis"])),
    ("scale", "factor, x, name=None", Name("scale", parameters=["order"])),
    ("move", "x, old=None, by=1, axis=0", Name("move")),
    ("shift", "x", Name("shift", absent=True)),
    ("scale", "= math.scale", Name("scale", of="math.scale")),
]


@pytest.mark.parametrize(("name", "theirs", "told"), DIFFERING)
def test_what_a_name_lacks(name: str, theirs: tf1_record.Entry, told: Name) -> None:
    assert compare(name, theirs, Module, name) == told


def test_attributes_made_by_the_constructor_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf1_record, "OURS", (__name__,))
    monkeypatch.setattr(Module.Box, "__module__", __name__)
    box = compare("Box", ["size", "close open size"], Module, "Box")
    assert box == Name("Box", methods=["close"])


def test_a_default_with_commas_is_one_parameter() -> None:
    assert tf1_compare.listed("a, b='x, y', *rest, **more") == ["a", "b", "*rest", "**more"]


def test_what_has_no_reason_is_told() -> None:
    notes = Notes("", [], [["family", "known*", "why"]], [["axis", "*", "why"]], [])
    names = [
        Name("known", absent=True),
        Name("new", absent=True),
        Name("f", "", False, ["axis", "n"]),
    ]
    assert without_reason(names, notes) == ["hf.new is absent", "hf.f has no parameter n"]
