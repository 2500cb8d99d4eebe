"""`hpcflow help`: its topics exist wherever hpcflow runs, and messages name nothing else."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcflow.cli import help_topics, pack
from hpcflow.cli.main import main
from hpcflow.settings import Settings
from tests.syntax_trees import syntax_trees

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"(?:`hpcflow |\()help ([a-z][a-z0-9-]*)[`)]")
ERRORS = {"StallError", "LonelyCollectiveError", "GraphMismatchError", "MissingPackageError"}


def texts_of(node: ast.AST) -> Iterator[str]:
    """All strings below `node`; where a value is put in there is a NUL."""
    if isinstance(node, ast.JoinedStr):
        parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
        yield "".join(str(part) for part in parts)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield "".join(next(texts_of(side), "\0") for side in (node.left, node.right))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"%[sdr]|%\.\df", "\0", node.value)
    for child in ast.iter_child_nodes(node):
        yield from texts_of(child)


@functools.cache
def texts() -> set[str]:
    """All strings of the package."""
    return {text for tree in syntax_trees().values() for text in texts_of(tree)}


def test_no_text_names_a_file_that_an_installed_package_lacks() -> None:
    assert not [text for text in texts() if re.search(r"\bdocs/|\w\.md\b|make mpio", text)]


def test_each_topic_that_is_named_exists() -> None:
    titles = help_topics.titles()
    pages = [help_topics.page(topic) for topic in titles]
    in_code = {topic for text in texts() for topic in NAMED.findall(text)}
    assert in_code >= {"checkpoints", "mpi", "onnx", "ops", "parallel-hdf5", "plan-format", "tf1"}
    everywhere = in_code | {topic for page in pages for topic in NAMED.findall(page)}
    assert everywhere <= set(titles)
    assert all(title and len(title) < 70 for title in titles.values())


def test_a_page_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "exit-codes"]) == 0
    assert "| 75 | stopped early" in capfd.readouterr().out
    assert main(["help", "ops"]) == 0
    assert "    MatMul\n" in capfd.readouterr().out


def test_all_settings_are_described(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "settings"]) == 0
    lines = capfd.readouterr().out.splitlines()
    (row,) = (line.split(maxsplit=2) for line in lines if line.startswith("stall_s "))
    source = (ROOT / "hpcflow" / "settings.py").read_text()
    assert f"    stall_s: float = {row[1]}  # {row[2]}\n" in source
    head = next(i for i, line in enumerate(lines) if line.startswith("setting  "))
    rows = [line.split()[0] for line in lines[head + 1 :]]
    assert rows == list(Settings.__dataclass_fields__)
    assert all(meaning for _, _, meaning in help_topics.settings())


def test_without_a_topic_all_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = capfd.readouterr().out
    assert all(f"\n{topic} " in listed for topic in help_topics.titles())


def test_an_unknown_topic_is_an_error_with_near_names(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "chekpoint"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and "no topic 'chekpoint'; did you mean checkpoints?" in err
    assert main(["help", "zzz"]) == 2
    assert "`hpcflow help` lists the topics" in capfd.readouterr().err


@pytest.mark.slow
def test_a_pack_has_the_topics(tmp_path: Path) -> None:
    pack.pack(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for topic in ("mpi", "settings"):
        words = [sys.executable, "-m", "hpcflow", "help", topic]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environ)
        assert done.stdout == help_topics.page(topic), done.stderr


def symptoms() -> list[str]:
    """The messages of hpcflow in the headings of the page on troubleshooting."""
    page = help_topics.page("troubleshooting")
    return re.findall(r"^### `(.*)`$", page, re.MULTILINE)


@pytest.mark.parametrize("symptom", symptoms())
def test_a_symptom_is_a_message_of_the_code(symptom: str) -> None:
    kind, colon, rest = symptom.partition(": ")
    if colon and kind in ERRORS:
        symptom = rest
    parts = [part.strip(" :,") for part in symptom.split("...")]
    wanted = re.compile(".*".join(re.escape(part) for part in parts if part), re.DOTALL)
    if wanted.pattern:
        assert any(wanted.search(text) for text in texts()), symptom
