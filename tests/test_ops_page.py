"""docs/ops.md is what the op table says."""

from pathlib import Path

from tools.ops_page import page


def test_the_page_is_the_table():
    told = (Path(__file__).parents[1] / "docs" / "ops.md").read_text()
    assert told == page(), "run: python tools/ops_page.py > docs/ops.md"
