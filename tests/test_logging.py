"""`hf.logging`: what is said, at which verbosity, and how often."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.platform import rank_logging


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))


@pytest.fixture
def heard() -> Iterator[list[tuple[int, str]]]:
    listener, before = Listener(), hf.logging.get_verbosity()
    rank_logging.logger.addHandler(listener)
    hf.logging.set_verbosity(hf.logging.WARN)
    yield listener.said
    rank_logging.logger.removeHandler(listener)
    hf.logging.set_verbosity(before)


def test_verbosity(heard: list[tuple[int, str]]) -> None:
    say = hf.logging
    for level in (say.DEBUG, say.INFO, say.WARN, say.ERROR, say.FATAL):
        heard.clear()
        say.set_verbosity(level)
        for speak in (say.debug, say.info, say.warn, say.warning, say.error, say.fatal):
            speak("%d of %s", 1, speak.__name__)
        say.log(say.INFO, "log")
        expected = [say.DEBUG, say.INFO, say.WARN, say.WARN, say.ERROR, say.FATAL, say.INFO]
        assert [at for at, _ in heard] == [at for at in expected if at >= level]
    assert heard == [(say.FATAL, "1 of fatal")]


def test_warnings_and_worse_are_said_by_default() -> None:
    asked = "import hpcflow as hf; print(hf.logging.get_verbosity() == hf.logging.WARN)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_how_often(heard: list[tuple[int, str]]) -> None:
    for i in range(6):
        hf.logging.log_every_n(hf.logging.WARN, "third %d", 3, i)
        hf.logging.log_first_n(hf.logging.WARN, "first %d", 2, i)
        hf.logging.log_if(hf.logging.WARN, "if %d", i == 4, i)
    assert [line for _, line in heard] == ["third 0", "first 0", "first 1", "third 3", "if 4"]


def test_what_is_said_before_the_first_session_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, heard: list[Any]
) -> None:
    monkeypatch.setattr(rank_logging.logger, "handlers", [])
    monkeypatch.setattr(logging.root, "handlers", [])
    hf.logging.info("quiet")
    hf.logging.error("loud")
    assert capsys.readouterr().err == "hpcflow loud\n"
