"""The pages of the passes have the whole list; tests/test_pages.py tells if they are up to date."""

from __future__ import annotations

from hpcflow.plan.pass_list import PASSES
from tools.pass_list_page import diagram, page


def test_every_pass_is_on_both_pages() -> None:
    for row in PASSES:
        assert f"| `{row.name}` |" in page()
        assert row.base in diagram()


def test_the_diagram_has_the_phases_in_their_order() -> None:
    phases = list(dict.fromkeys(row.phase for row in PASSES))
    lines = [line.split() for line in diagram().splitlines() if line.startswith("  │ ")]
    assert [words[1] for words in lines if words[1] in phases] == phases
