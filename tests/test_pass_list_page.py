"""The pages of the passes are those of the list."""

from __future__ import annotations

from hpcflow.plan.pass_list import PASSES
from tools.pass_list_page import pages


def test_the_pages_are_written_from_the_list() -> None:
    for path, text in pages().items():
        told = path.read_text(encoding="utf-8")
        assert told == text, f"{path.name}: run: python tools/pass_list_page.py"


def test_every_pass_is_on_both_pages() -> None:
    texts = {path.name: text for path, text in pages().items()}
    for row in PASSES:
        assert f"| `{row.name}` |" in texts["passes.md"]
        assert row.base in texts["architecture.md"]
