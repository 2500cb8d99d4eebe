"""`hpcflow completion`: bash completes commands, options, settings and topics; the man page."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcflow.cli.completion import setting_values, shown_actions
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
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
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
    assert completed(script, "run", "--sync", "") == ["async", "all", "backup:", "stale:"]
    assert completed(script, "run", "--sync", "=", "ba") == ["backup:"]
    assert completed(script, "plan", "--sync", "=") == ["async", "all", "backup:", "stale:"]
    assert completed(script, "run", "--inject", "k") == ["kill:"]
    assert completed(script, "sweep", "--mode", "") == ["min", "max"]
    assert completed(script, "sweep", "train.py", "--search", "h") == ["halving"]
    assert completed(script, "run", "--set", "comm", "=") == ["auto", "mpi", "shared", "nccl"]
    assert completed(script, "run", "--set", "comm", "=", "s") == ["shared"]
    assert completed(script, "run", "--set", "=", "pack", "=", "o") == ["on", "off"]
    assert completed(script, "run", "--set", "overlap", "=", "") == ["0", "1"]
    assert completed(script, "run", "--set", "stall_s", "=", "") == [], "any number"
    assert completed(script, "run", "train.py", "--", "comm", "=") == [], "of the script"
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
    assert any("_from sweep" in line and "-l mode -r -f -a 'min max'" in line for line in lines)
    assert any("-l sync -r -f -a 'async all backup: stale:'" in line for line in lines)
    assert any(" -l set " in line and " comm=auto comm=mpi " in line for line in lines)


def test_each_value_that_is_offered_is_taken() -> None:
    for name, values in setting_values().items():
        for value in values:
            text = f"{value}1" if value.endswith(":") else value
            Settings.from_environ({f"HPCFLOW_{name.upper()}": text})


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
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
    assert not done.stderr
    assert "hpcflow run" in done.stdout.replace("\x1b[1m", "").replace("\x1b[0m", "")
