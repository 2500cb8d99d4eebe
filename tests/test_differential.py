"""tools/differential.py: its calls are valid, differences are seen, and it says what it lacks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from tools.oracle import known, sides
from tools.oracle.draw import Case, Draw
from tools.oracle.sides import Outcome
from tools.oracle.table import GENERATORS
from tools.tf1_record import attribute

ROOT = Path(__file__).parent.parent
PRESENT = sorted(f for f in GENERATORS if attribute(hf, f) is not None)


def made(function: str, number: int, wrong: float = 0.06) -> Case:
    draw = Draw(11, number, wrong=wrong)
    case: Case = draw.one(GENERATORS[function])(draw, function)
    return case


def test_the_same_seed_makes_the_same_calls() -> None:
    for number, function in enumerate(PRESENT[::3]):
        assert made(function, number).program() == made(function, number).program()


@pytest.mark.slow
def test_most_calls_are_valid_and_others_end_in_errors_of_ours() -> None:
    functions = PRESENT[::12]
    found = {f: sides.outcome(hf, made(f, 5, wrong=0)) for f in functions}
    assert not [f for f in functions if found[f].raw]
    refused = [f for f in functions if found[f].error]
    assert len(refused) < len(functions) / 8, refused


def test_a_program_prints_what_the_call_gives() -> None:
    case = made("reduce_sum", 3, wrong=0)
    done = subprocess.run(
        [sys.executable, "-c", case.program()], cwd=ROOT, text=True, capture_output=True, check=True
    )
    value = sides.outcome(hf, case).values[0]
    assert str(np.asarray(value)).split()[-1].strip("[]") in done.stdout


PLAIN = Case("f", "tf.f(a)")


def seen(ours: Outcome, theirs: Outcome) -> list[str]:
    return [kind for kind, _ in sides.compared(ours, theirs, PLAIN)]


def value(*numbers: Any, dtype: str = "float32", static: Any = (None,), **more: Any) -> Outcome:
    return Outcome(values=[np.array(numbers, dtype)], static=[list(static)], **more)


NAN = float("nan")
PAIRS = [
    (value(1, NAN), value(1, NAN), []),
    (value(1.0), value(1.0 + 1e-6), []),
    (value(1.0), value(1.01), ["value"]),
    (value(1.0, NAN), value(1.0, 2.0), ["value"]),
    (value(np.inf), value(-np.inf), ["value"]),
    (value(1), value(1, dtype="float64"), ["value"]),
    (value(1), value(1, 1), ["value"]),
    (value(1, dtype="int32"), value(2, dtype="int32"), ["value"]),
    (value(1, static=[None]), value(1, static=[1]), ["static shape"]),
    (value(1, static=[1]), value(1, static=[None]), []),
    (value(1, static=[2]), value(1, static=[None]), ["static shape"]),
    (Outcome(error="ShapeError: a"), Outcome(error="ValueError: b"), []),
    (Outcome(error="ShapeError: a"), value(1), ["hpcflow refuses"]),
    (value(1), Outcome(error="ValueError: b"), ["TensorFlow refuses"]),
    (Outcome(error="IndexError: a", raw=True), Outcome(error="ValueError: b"), ["raw error"]),
    (value(1), Outcome(values=[1, 2], static=["", ""]), ["outputs"]),
    (value(1, gradient_error="a"), value(1), ["hpcflow has no gradient"]),
    (value(1), value(1, gradient_error="a"), ["TensorFlow has no gradient"]),
]


@pytest.mark.parametrize(("ours", "theirs", "kinds"), PAIRS)
def test_differences_are_seen(ours: Outcome, theirs: Outcome, kinds: list[str]) -> None:
    assert seen(ours, theirs) == kinds


def test_sixteen_bits_are_judged_by_float64() -> None:
    """hpcflow stands for both libraries here: it rounds once, and the other one was made worse."""
    draw = Draw(0)
    draw.given(np.array([2.5, -3], np.float16), "fed")
    case = Case("f", "tf.nn.softmax(a)", draw.inputs)
    ours, theirs = sides.outcome(hf, case), sides.outcome(hf, case)
    assert sides.judged(hf, ours, theirs, case) == []
    theirs.gradients = [theirs.gradients[0] * np.float16(1.2)]
    assert [k for k, _ in sides.compared(ours, theirs, case)] == ["gradient"]
    assert sides.judged(hf, ours, theirs, case) == []
    ours.gradients = [ours.gradients[0] * np.float16(1.5)]
    assert [k for k, _ in sides.judged(hf, ours, theirs, case)] == ["gradient"]


def test_metrics_are_read_behind_their_update() -> None:
    case = Case("metrics.mean", "tf.metrics.mean([1.0, 4.0])", in_turn=True)
    assert [float(v) for v in sides.outcome(hf, case).values] == [2.5, 2.5]


def test_gradients_are_compared_where_inputs_are_numbers() -> None:
    draw = Draw(0)
    draw.given(np.array([1, NAN], np.float32), "fed")
    case = Case("f", "tf.f(a)", draw.inputs)
    ours, near, far = (
        value(1, gradients=[np.array(g, np.float32)]) for g in ([2, 3], [2, 4], [1, 3])
    )
    none = value(1, gradients=[None])
    assert sides.compared(ours, near, case) == []
    assert [k for k, _ in sides.compared(ours, far, case)] == ["gradient"]
    assert [k for k, _ in sides.compared(none, far, case)] == ["hpcflow's gradient is None"]


def test_gradients_of_hpcflow_are_those_of_the_formula() -> None:
    draw = Draw(0)
    draw.given(np.array([1, 2, 3], np.float32), "fed")
    found = sides.outcome(hf, Case("square", "tf.square(a)", draw.inputs))
    weights = np.random.default_rng(1).uniform(0.5, 2, 3)
    np.testing.assert_allclose(found.gradients[0], 2 * np.array([1, 2, 3]) * weights, rtol=1e-5)


def test_known_differences_are_of_functions_and_have_one_reason() -> None:
    for row in known.ROWS:
        for pattern in row["functions"].split():
            assert any(fnmatchcase(f, pattern) for f in GENERATORS), pattern
        assert row["told"] and re.compile(row["told"])
    assert max(Counter(map(str, known.ROWS)).values()) == 1
    assert known.reason("add", "hpcflow refuses", "DTypeError: [1.5] does not fit int32")
    assert not known.reason("constant", "value", "1, TensorFlow 2")


def test_rows_that_explained_nothing_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "hpcflow refuses"
    told = [("*", "^A:"), ("tile", "B"), ("ti*", "B"), ("pad", "B")]
    rows = [{"functions": f, "kind": kind, "told": t, "reason": "so"} for f, t in told]
    monkeypatch.setattr(known, "ROWS", rows)
    assert known.idle(["tile"], []) == rows[:3]
    assert known.idle(["tile"], [("tile", kind, "B")]) == [rows[0], rows[2]]
    assert known.idle(["tile", "pad"], [("pad", kind, "A: B")]) == rows[1:]


def test_errors_of_hpcflow_are_its_own() -> None:
    found = sides.outcome(hf, Case("reshape", "tf.reshape(tf.zeros([2]), [3])"))
    assert found.error.startswith("ShapeError") and not found.raw
    assert issubclass(hf.errors.HpcflowError, HpcflowError)


def test_without_tensorflow_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('not here')\n")
    for tool in ("differential.py", "tf1_compare.py --record"):
        done = subprocess.run(
            [sys.executable, *f"tools/{tool}".split()],
            cwd=ROOT,
            env={"PYTHONPATH": str(tmp_path)},
            text=True,
            capture_output=True,
        )
        assert done.returncode == 2, done.stderr
        assert "make differential" in done.stderr
