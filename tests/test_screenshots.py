"""Screenshots of the guides: each has its file, its place in a guide, and commands that exist."""

from __future__ import annotations

import importlib
import re
import shlex
import struct
from pathlib import Path

import pytest

from hpcflow.cli.main import split_script
from hpcflow.cli.terminal_output import EscapingParser
from tools.screenshots import FOLDER, MOST_BYTES, SHOTS, Shot

ROOT = Path(__file__).parents[1]


def test_each_picture_is_shown_in_a_guide_and_each_shown_one_is_made() -> None:
    shown = {
        name
        for guide in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"\]\(screenshots/([\w-]+)\.png\)", guide.read_text())
    }
    made = {path.stem for path in FOLDER.iterdir()}
    assert shown == made == {shot.name for shot in SHOTS}


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_a_picture_is_small_and_its_command_is_one_of_hpcflow(shot: Shot) -> None:
    data = (FOLDER / f"{shot.name}.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) <= MOST_BYTES
    wide, high = struct.unpack(">II", data[16:24])
    assert 600 <= wide <= 1300 and 80 <= high <= 1000
    if shot.notebook:
        assert (ROOT / "examples" / "notebooks" / f"{shot.notebook}.ipynb").exists()
        return
    name, *words = shlex.split(shot.command.format(html="page.html", examples="examples"))
    module = importlib.import_module(f"hpcflow.cli.{name}")
    parser = EscapingParser(prog=name, allow_abbrev=False)
    module.add_arguments(parser)
    if getattr(module, "TAKES_SCRIPT", False):
        words, script, _ = split_script(parser, words)
        assert script is not None and (ROOT / script).exists()
    parser.parse_args(words)
