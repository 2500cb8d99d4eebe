"""Random programs of state, order, branches and loops, beside an interpreter of their graphs."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest

import hpcflow as hf
from tools import fuzz_programs
from tools.programs import effects_on_ranks, sides
from tools.programs.compare import ITSELF, Difference, alike
from tools.programs.effect_programs import EffectProgram, Statement
from tools.programs.effects_graph import EffectGraph
from tools.programs.effects_in_order import InOrder
from tools.programs.interpret import Interpreter
from tools.programs.lines import Line, Program, Run, every
from tools.programs.make import Maker
from tools.programs.order import determined
from tools.programs.scope import after
from tools.programs.shorten import shortest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_program_gives_what_its_graph_says_operation_by_operation(seed):
    found = fuzz_programs.of_sides(seed, list(sides.ALL[1:]), whole=True, contradictions=[])
    assert found is None, fuzz_programs.shown(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5 * len(effects_on_ranks.JOBS), 5))
def test_each_kind_of_job_makes_all_effects_of_a_program_once_and_in_order(seed):
    found = fuzz_programs.of_effects(seed, whole=True)
    assert found is None, fuzz_programs.shown(found)


def counted() -> EffectProgram:
    """v = 2, a loop of three times v = 5 v + 1, a call, v -= 1; then the loop's body alone."""
    one = Statement("constant", "one", facts={"value": [1] * 4})
    body = [Statement("affine", "grown", ("one",), ("v0",), True, {"factor": 5})]
    loop = Statement("loop", "loop", ("one", "one"), ("v0",), True, {"trips": 3}, ("set",))
    loop.bodies = [(body, "grown", "it")]
    first = Statement("assign", "set", ("x",), ("v0",), True)
    call = Statement("call", "called", ("loop",), ("log",), True)
    last = Statement("assign_sub", "less", ("one",), ("v0",), True, after=("loop", "called"))
    lines = [one, first, loop, call, last]
    start = {"v0": (np.zeros(4, "int32"), None)}
    return EffectProgram("int32", start, lines, [(["less"], [2] * 4), (["loop"], [3] * 4)], False)


def test_statements_in_order():
    first, second = InOrder(counted()).results()
    assert first.values[0].tolist() == [(2 * 125 + 31) % 97 - 1] * 4
    assert first.calls == second.calls == [("called", [(2 * 125 + 31) % 97] * 4)]
    assert second.variables["v0"].tolist() == [(3 * 125 + 31) % 97] * 4


@pytest.mark.parametrize("wrong", ["lost", "doubled", "reordered"])
def test_a_wrong_effect_is_found_and_told_by_a_short_program(wrong, monkeypatch):
    program = counted()
    assert effects_on_ranks.difference(program, "one rank", 1) is None

    right = EffectGraph._assign

    def subtract(self, s, given, made):
        if s.kind == "assign":
            return right(self, s, given, made)
        if wrong == "lost":
            return given[0]
        before = [right(self, s, given, made)] if wrong == "doubled" else None
        with hf.control_dependencies(before):
            return self.variables["v0"].assign_sub(given[0])

    monkeypatch.setattr(EffectGraph, "_assign", subtract)
    told = effects_on_ranks.difference(program, "one rank", 1)
    assert told is not None and told.startswith("replica 0, run 0: ")
    assert len(effects_on_ranks.shortest(program, "one rank", 1).statements) <= 3


@pytest.mark.slow
def test_most_programs_are_accepted():
    programs = [Maker(seed).program() for seed in range(1000, 1020)]
    errors = [sides.with_hpcflow(p, ["hpcflow"])["hpcflow"].error for p in programs]
    assert sum(e == "" for e in errors) >= 17, errors


def test_the_interpreter_keeps_order():
    """Read, add 1, read, add the first read, read; then a loop that adds 2 three times."""
    with hf.Graph().as_default():
        w = hf.Variable(2.0)
        reads = [hf.identity(w)]
        for value in (1.0, reads[0]):
            with hf.control_dependencies([reads[-1]]):
                update = hf.assign_add(w, value)
            with hf.control_dependencies([update]):
                reads.append(w * 1.0)

        def body(i):
            with hf.control_dependencies([hf.assign_add(w, 2.0)]):
                return i + 1

        with hf.control_dependencies([reads[-1]]):
            loop = hf.while_loop(lambda i: i < 3, body, [hf.constant(0)])
        interpreter = Interpreter()
        interpreter.run([w.initializer], {})
        assert interpreter.run([*reads, loop], {}) == [2.0, 3.0, 5.0, 3]
        assert interpreter.run([w], {}) == [11.0]


VARIABLE = Line("x = tf.Variable(1.)", ("x",), role="variable")
UPDATE = Line("u = tf.assign_add(x, 1.)", ("u",), (), (), ("x",), role="update")
READ = Line("r = tf.identity(x)", ("r",), ("x",), ("x",))


@pytest.mark.parametrize(
    ("lines", "fetches", "certain"),
    [
        ([UPDATE, READ], ["u"], True),
        ([UPDATE, READ], ["u", "r"], False),
        ([UPDATE, after(["u"], [READ])], ["r"], True),
        ([READ, after(["r"], [UPDATE])], ["r", "u"], True),
        ([UPDATE], ["x", "u"], False),
    ],
)
def test_which_programs_are_determined(lines, fetches, certain):
    run = Run(fetches, {})
    assert determined(Program([VARIABLE, *lines], ["x"], [run])) is certain


def test_an_update_in_a_body_must_be_behind_all_results():
    ends = [Line("return [a, d]", (), ("a", "d"), role="return")]
    a, d = (Line(f"{n} = tf.constant(1.)", (n,)) for n in "ad")
    other = Line(
        "def g():", ("g",), role="def", body=[Line("return [c, c]", (), ("c",), role="return")]
    )
    c = Line("c = tf.constant(2.)", ("c",))
    owner = Line("y, z = tf.cond(True, f, g)", ("y", "z"), calls=("f", "g"), role="branch")
    for inner, certain in (([a, UPDATE, after(["u"], [d])], False),
                           ([UPDATE, after(["u"], [a, d])], True)):  # fmt: skip
        f = Line("def f():", ("f",), role="def", body=[*inner, *ends])
        program = Program([VARIABLE, c, f, other, owner], ["x"], [Run(["y"], {})])
        assert determined(program) is certain


def test_a_difference_becomes_a_short_program():
    """A side that has lost all updates of rows."""
    seed = next(s for s in range(100) if "scatter_" in Maker(s).program().graph_text())

    def still(program: Program) -> bool:
        return "scatter_" in program.graph_text()

    program = shortest(Maker(seed).program(), still)
    assert determined(program) and still(program)
    assert sum(1 for _ in every(program.lines)) <= 8


def test_values_are_alike_but_for_rounding():
    x = np.array([1.0, np.nan, np.inf], "f4")
    assert alike(x, x * np.float32(1.00001), special=True)
    assert not alike(x, np.array([1.0, np.inf, np.nan], "f4"), special=True)
    assert not alike(x[:1], x[:1] + np.float32(0.01))
    assert not alike(x[:1], x[:1].astype("f8"))


def run_tool(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz_programs.py", *arguments])
    return fuzz_programs.main()


def test_exit_codes(monkeypatch, tmp_path, capsys):
    told = tmp_path / "found.json"
    assert run_tool(monkeypatch, "--count", "2", "--json", str(told)) == 0
    assert json.loads(told.read_text())["differences"] == []
    wrong = Difference("hpcflow", "interpreter", "values", "1 and 2")
    monkeypatch.setattr(fuzz_programs, "difference", lambda *a: wrong)
    monkeypatch.setattr(fuzz_programs, "shortest", lambda program, still: program)
    assert run_tool(monkeypatch, "--seed", "3", "--count", "1", "--json", str(told)) == 1
    assert "import hpcflow as tf" in capsys.readouterr().out
    (found,) = json.loads(told.read_text())["differences"]
    assert found["seed"] == 3 and found["kind"] == "values"

    itself = dataclasses.replace(wrong, other=ITSELF)
    monkeypatch.setattr(fuzz_programs, "difference", lambda *a: itself)
    assert run_tool(monkeypatch, "--seed", "3", "--count", "2", "--json", str(told)) == 0
    found = json.loads(told.read_text())
    assert found["contradictions"] == [3, 4] and {"date", "commit", "versions"} <= set(found)

    def absent() -> None:
        raise ImportError("no module named tensorflow")

    monkeypatch.setattr(sides, "tensorflow", absent)
    assert run_tool(monkeypatch, "--tensorflow") == 2
