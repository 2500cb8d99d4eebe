"""Each term of docs/glossary.md names files that exist, and stands there once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_files_of_each_term_exist() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = []
    for row in rows[rows.index("|---|---|---|") + 1 :]:
        term, files, _ = row.strip("|").split("|")
        terms.append(term.strip())
        paths = re.findall(r"`([^`]+)`", files)
        assert paths, row
        assert not [path for path in paths if not (ROOT / "hpcflow" / path).is_file()], row
    assert len(terms) > 50
    assert terms == sorted(set(terms), key=str.lower)
