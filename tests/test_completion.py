"""`hpcflow completion`: bash completes commands, options, settings and topics; the man page."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcflow.cli.completion import shown_actions
from hpcflow.cli.main import COMMANDS, main
from hpcflow.settings import Settings

MAN_PAGE = Path(__file__).parent.parent / "docs" / "hpcflow.1"
ASK = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hpcflow
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    argv = ["bash", "--norc", "-c", script + ASK, "bash", "hpcflow", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_completes(script: str) -> None:
    assert completed(script, "") == list(COMMANDS)
    assert completed(script, "pro") == ["prove-resume"]
    assert completed(script, "run", "--s") == ["--sync", "--set", "--serve", "--survive"]
    assert completed(script, "run", "train.py", "--ta") == ["--tasks-per-replica"]
    assert completed(script, "run", "--set", "stall_") == ["stall_s=", "stall_abort_s="]
    assert completed(script, "run", "--set", "=", "stall_") == ["stall_s=", "stall_abort_s="]
    fields = [f"{field.name}=" for field in dataclasses.fields(Settings)]
    assert completed(script, "plan", "--set", "") == fields
    assert completed(script, "run", "--set", "=") == fields
    assert completed(script, "help", "trouble") == ["troubleshooting"]
    assert completed(script, "completion", "") == ["bash", "zsh", "fish"]
    assert completed(script, "run", "tr") == [], "then bash completes names of files"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_completed(script: str, name: str) -> None:
    options = [word for a in shown_actions(name) for word in a.option_strings]
    assert completed(script, name, "-") == [*options, "--help"]


def test_zsh_and_fish_get_the_same_words(capsys: pytest.CaptureFixture[str], script: str) -> None:
    main(["completion", "zsh"])
    zsh = capsys.readouterr().out
    assert zsh.endswith(script) and zsh.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    main(["completion", "fish"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("complete -c hpcflow -n ") for line in lines)
    for name in COMMANDS:
        here = [line for line in lines if f"_from {name}'" in line]
        for action in shown_actions(name):
            for word in action.option_strings:
                long = word.startswith("--")
                option = f" -l {word[2:]}" if long else f" -s {word[1:]}"
                assert any(f"{option} " in f"{line} " for line in here), (name, word)
    assert sum(" -l set " in line and "stall_s= " in line for line in lines) > 0


def test_the_man_page_has_all_commands_options_and_settings() -> None:
    text = MAN_PAGE.read_text().replace("\\-", "-")
    for name in COMMANDS:
        assert f".SS hpcflow {name}\n" in text
        for action in shown_actions(name):
            assert all(f"\\fB{word}\\fR" in text for word in action.option_strings)
    assert all(f".B {field.name}\n" in text for field in dataclasses.fields(Settings))
    assert ".B 86\n" in text and "`" not in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_no_complaint_about_the_man_page() -> None:
    argv = ["groff", "-man", "-ww", "-Tutf8", str(MAN_PAGE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr
    assert "hpcflow run" in done.stdout.replace("\x1b[1m", "").replace("\x1b[0m", "")
