"""What the guides show works: each block of Python runs, each command line has the right options.

A block that cannot run in every test has the reason in a comment above: `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.cli.main import COMMANDS, split_script
from hpcflow.cli.terminal_output import EscapingParser
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parent.parent
GUIDES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TOPICS = sorted((ROOT / "hpcflow" / "help").glob("*.md"))
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>\n]*) -->\n+)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
REASONS = {"needs a GPU", "needs PyTorch", "needs SLURM", "tests/ops/test_new_op.py does it"}
REASONS.add("tests/test_notebooks.py does it")
ELSEWHERE = {"data.md": "tests/data/test_page.py", "README.md": "tests/test_readme.py"}


class Block(NamedTuple):
    """A block of code: its page, its number among the blocks of its kind there, its text."""

    page: str
    number: int
    text: str
    reason: str | None


def blocks(kind: str) -> Iterator[Block]:
    for page in GUIDES:
        found = [m for m in BLOCK.finditer(page.read_text()) if m["kind"] == kind]
        for number, m in enumerate(found):
            yield Block(page.name, number, m["text"], m["reason"])


PYTHON = list(blocks("python"))
TRAINED = """
w = hf.Variable(hf.zeros([4, 2]), name="w")
"""
SAVED = """
some, variables = hf.Variable(hf.zeros([3])), hf.Variable(hf.ones([2]))
session, step = hf.Session(), 3
session.run(hf.global_variables_initializer())
"""
BEST = """
some, variables = hf.Variable(hf.zeros([3])), hf.Variable(hf.ones([2]))
x = hf.placeholder(hf.float32, [None])
loss, test_data = hf.reduce_mean(x), {x: [1.0]}
with hf.train.TrainingSession(checkpoints="DIR", keep_best=("loss", "min", 3)) as first:
    first.save(metrics={"loss": 1.0})
"""
NAMED = """
weights, count = hf.Variable(hf.zeros([3])), hf.Variable(0)
other_weights = hf.Variable(hf.ones([3]))
session = hf.train.TrainingSession()
hf.train.Saver({"encoder": weights, "step": count}).save(session, "weights", 1)
"""
ENCODER = """
with hf.Graph().as_default():
    kept = hf.Variable(hf.fill([3], 7.0), name="encoder/w")
    with hf.train.TrainingSession(checkpoints="DIR") as first:
        first.save()
w = hf.Variable(hf.zeros([3]), name="model/encoder/w")
"""
MODEL = """
import onnx
from onnx import helper, numpy_helper

images = np.ones((2, 3), np.float32)
first = numpy_helper.from_array(np.ones((3, 4), np.float32), "conv1.weight")
model = helper.make_model(
    helper.make_graph(
        [helper.make_node("MatMul", ["data", "conv1.weight"], ["prob"])],
        "small",
        [helper.make_tensor_value_info("data", 1, [2, 3])],
        [helper.make_tensor_value_info("prob", 1, [2, 4])],
        [first],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)
onnx.save(model, "resnet50.onnx")
x = hf.placeholder(hf.float32, [None, 3], name="x")
p = hf.nn.softmax(x)
session = hf.Session()
"""
COUNTED = """
x = hf.placeholder(hf.float32, [2, 2])
with hf.Session() as session:
    session.run(hf.matmul(x, x), {x: np.ones((2, 2))})
assert [one.name for one in user_passes.registered()] == ["count"]
user_passes.unregister("count")
"""
# What stands before a block in a reader's script, and what is true behind it.
AROUND: dict[tuple[str, int], tuple[str, str]] = {
    ("checkpoint-format.md", 0): (TRAINED, "assert session.first_step == 0"),
    ("checkpoint-format.md", 1): (SAVED, 'assert path.endswith("step-3") and facts["step"] == 3'),
    ("checkpoint-format.md", 2): (NAMED, "assert not session.run(other_weights).any()"),
    ("checkpoint-format.md", 3): (BEST, "assert session.run(loss, test_data) == 1"),
    ("checkpoint-format.md", 4): (
        ENCODER,
        "with hf.train.TrainingSession() as s: assert (s.run(w) == 7).all()",
    ),
    ("onnx.md", 0): (MODEL, ""),
    ("onnx.md", 1): (MODEL, "assert (outputs[0] == 3).all() and outputs[0].shape == (2, 4)"),
    ("onnx.md", 2): (MODEL, "onnx.checker.check_model('digits.onnx')"),
    ("parameter-servers.md", 0): ("", "assert rows.shape == (None, 512)"),
    ("parameter-servers.md", 1): (
        TRAINED,
        "assert str(session.context.cluster.sync) == 'backup:1'",
    ),
    ("parameter-servers.md", 2): (
        "v, x = hf.Variable([1.0, 2.0]), hf.constant([0.5, 0.5])",
        "with hf.Session() as session:\n"
        "    session.run(hf.global_variables_initializer())\n"
        "    np.testing.assert_allclose(session.run(update), [1.4, 2.3], rtol=1e-6)",
    ),
    ("running.md", 0): (
        "x, weights = hf.zeros([2, 3]), hf.zeros([3, 4])",
        "assert hidden.op.device == '/job:worker/task:1'",
    ),
    ("running.md", 1): ("from hpcflow.plan import user_passes", COUNTED),
    ("survival.md", 0): (TRAINED, "assert session.first_step == 0"),
}
# Blocks that register what all of a process has: what stands before and behind, and is printed.
ALONE: dict[tuple[str, int], tuple[str, str, str]] = {
    ("CONTRIBUTING.md", 0): (
        "",
        "x = hf.constant([2.0, 3.0])\n"
        "y, (dx,) = cube(x), hf.gradients(cube(x), [x])\n"
        "print([v.tolist() for v in hf.Session().run([y, dx])])",
        "[[8.0, 27.0], [12.0, 27.0]]\n",
    ),
    ("parameter-servers.md", 3): (
        "import dataclasses, types\nimport hpcflow as hf",
        "for arrived in [(0, 0.3)], [(0, 0.3), (2, 0.4)]:\n"
        "    print(Quorum(0.6).select(types.SimpleNamespace(arrived=arrived)))\n",
        "None\n[(0, 0.3), (2, 0.4)]\n",
    ),
}
RANKS = {("parameter-servers.md", 1): {"n": 4, "ps": 1}}


def name_of(block: Block) -> str:
    return f"{block.page}-{block.number}"


@pytest.mark.parametrize("block", PYTHON, ids=name_of)
def test_a_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = block.page, block.number
    compile(block.text, block.page, "exec")
    if block.reason is not None or block.page in ELSEWHERE or key in ALONE:
        assert block.reason is None or block.reason in REASONS
        return
    monkeypatch.chdir(tmp_path)
    before, behind = AROUND.get(key, ("", ""))
    code = compile(f"{before}\n{block.text}\n{behind}\n", f"{block.page} {block.number}", "exec")

    def body(context: RankContext) -> bool:
        exec(code, {"hf": hf, "np": np})
        return True

    assert all(run_ranks(body=body, **RANKS.get(key, {"n": 1})))


@pytest.mark.parametrize("key", ALONE, ids=str)
def test_a_block_runs_in_a_process_of_its_own(key: tuple[str, int]) -> None:
    before, behind, printed = ALONE[key]
    (block,) = (b for b in PYTHON if (b.page, b.number) == key)
    words = [sys.executable, "-c", f"{before}\n{block.text}\n{behind}\n"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_blocks_that_other_tests_run_are_run_there() -> None:
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text()


def unfenced(text: str) -> str:
    return BLOCK.sub("", text)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_python_stands_in_fences(page: Path) -> None:
    """An indented block is output or a command: no test would run it."""
    for text in re.findall(r"(?:^ {4}.*\n)+", unfenced(page.read_text()), re.MULTILINE):
        lines = "\n".join(line[4:] for line in text.splitlines())
        try:
            tree = ast.parse(lines)
        except SyntaxError:
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not calls, f"{page.name}: {lines}"


def command_lines() -> Iterator[tuple[str, str]]:
    """`hpcflow ...` of indented lines and of blocks of the shell, with its page."""
    for page in [*GUIDES, *TOPICS]:
        text = page.read_text()
        found = [line for m in BLOCK.finditer(text) if m["kind"] in ("bash", "sh")
                 for line in m["text"].splitlines()]  # fmt: skip
        found += re.findall(r"^ {4}(.*)$", unfenced(text), re.MULTILINE)
        for line in found:
            words = re.search(r"(?:^|[ /])hpcflow ([a-z-]+)(?: .*)?$", line)
            if words and words[1] in COMMANDS and "`" not in line:
                rest = line[line.index("hpcflow ", words.start()) :]
                yield page.name, re.split(r"  +| #|; | \[", rest)[0].strip()


LINES = sorted(set(command_lines()))


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda text: text)
def test_a_command_line_is_one(page: str, line: str) -> None:
    _, command, *words = shlex.split(line)
    module = importlib.import_module(f"hpcflow.cli.{command.replace('-', '_')}")
    parser = EscapingParser(prog=f"hpcflow {command}", allow_abbrev=False)
    module.add_arguments(parser)
    if not getattr(module, "TAKES_SCRIPT", False):
        parser.parse_args(words)
        return
    own, script, _ = split_script(parser, words)
    parser.parse_args(own)
    assert script is not None
    assert (ROOT / script).exists() or not script.startswith(("examples/", "jobs/"))


def test_there_are_command_lines() -> None:
    assert len(LINES) > 40
    assert {line.split()[1] for _, line in LINES} >= {"run", "plan", "doctor", "infer", "export"}


def test_commands_targets_and_files_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in [*GUIDES, *TOPICS]:
        text = page.read_text()
        for command in re.findall(r"`hpcflow ([a-z-]+)", text):
            assert command in COMMANDS, f"{page.name}: hpcflow {command}"
        for target in re.findall(r"(?:`|^    )make ([a-z][a-z-]+)", text, re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"
        for path in re.findall(r"\b(?:examples|jobs)/[\w/]+\.\w+", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
