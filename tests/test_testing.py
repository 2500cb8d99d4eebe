"""`hf.test`: assertions that hold and fail as TensorFlow's, sessions of tests, gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GradientError, HpcflowError, ShapeError

NAN, INF = float("nan"), float("inf")


class Case(hf.test.TestCase):
    __test__ = False  # for the fixture, not for pytest

    def runTest(self) -> None:
        pass


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    made.setUp()
    yield made
    made.tearDown()
    hf.reset_default_graph()


Check = Callable[[Any], None]
K = hf.constant

HOLDS: list[Check] = [  # in TensorFlow
    lambda t: t.assertAllClose([1.0, 2.0], [1.0, 2.0000001]),
    lambda t: t.assertAllClose([1.0, NAN, INF], [1.0, NAN, INF]),
    lambda t: t.assertAllClose({"a": [1.0], "b": K(2.0)}, {"a": [1.0], "b": 2.0}),
    lambda t: t.assertAllClose([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3)]),
    lambda t: t.assertAllClose([K([1.0]), K(2.0)], [[1.0], 2.0]),
    lambda t: t.assertAllClose((1.0, (2.0, [3.0, 4.0])), (1.0, (2.0, [3.0, 4.0]))),
    lambda t: t.assertAllClose([[1.0], [2.0, 3.0]], [[1.0], [2.0, 3.0]]),
    lambda t: t.assertAllClose([1, 2], (1, 2)),
    lambda t: t.assertAllClose([], []),
    lambda t: t.assertAllClose([{"a": 1.0}], [{"a": 1.0}]),
    lambda t: t.assertAllCloseAccordingToType(np.float16([1.0]), np.float16([1.0005])),
    lambda t: t.assertAllCloseAccordingToType(np.float32([1.0]), np.float16([1.0005])),
    lambda t: t.assertNotAllClose([1.0], [2.0]),
    lambda t: t.assertNotAllClose([1.0], [1.0, 2.0]),
    lambda t: t.assertAllEqual([1, 2], K([1, 2])),
    lambda t: t.assertAllEqual([NAN], [NAN]),
    lambda t: t.assertAllEqual([b"a"], K(["a"])),
    lambda t: t.assertAllEqual(2, 2.0),
    lambda t: t.assertNotAllEqual([1, 2], [1, 3]),
    lambda t: t.assertAllGreater([1, 2], 0),
    lambda t: t.assertAllGreaterEqual(K([0, 2]), 0),
    lambda t: t.assertAllLess([0, 1], 2),
    lambda t: t.assertAllLessEqual([1, 2], 2),
    lambda t: t.assertAllInRange([1, 2], 1, 2),
    lambda t: t.assertAllInRange(K([1.5]), 1, 2, True, True),
    lambda t: t.assertAllInSet([1, 2], {1, 2, 3}),
    lambda t: t.assertArrayNear([1.0, 2.0], [1.0, 2.1], 0.2),
    lambda t: t.assertNear(INF, INF, 1.0),
    lambda t: t.assertNDArrayNear(np.ones(2), np.ones(2) + 0.1, 0.2),
    lambda t: t.assertShapeEqual(np.ones((2, 3)), hf.zeros([2, 3])),
    lambda t: t.assertDTypeEqual(np.ones(2), hf.float64),
    lambda t: t.assertDTypeEqual(K("a"), hf.string),
    lambda t: t.assertDeviceEqual("/job:worker/device:CPU:0", "/job:worker/cpu:0"),
    lambda t: t.assertStartsWith("abc", "ab"),
]
FAILS: list[Check] = [
    lambda t: t.assertAllClose([1.0, 2.0], [1.0, 2.1]),
    lambda t: t.assertAllClose(1.0, [1.0]),
    lambda t: t.assertAllClose({"a": [1.0]}, {"b": [1.0]}),
    lambda t: t.assertAllClose({"a": 1}, [1]),
    lambda t: t.assertAllClose([1.0, 2.0], [1.0, 2.0, 3.0]),
    lambda t: t.assertAllClose(np.float16([1.0]), np.float16([1.001])),
    lambda t: t.assertAllCloseAccordingToType(np.float32([1.0]), np.float32([1.0005])),
    lambda t: t.assertAllCloseAccordingToType(np.float64([1.0]), np.float64([1.00001])),
    lambda t: t.assertNotAllClose([1.0], [1.0]),
    lambda t: t.assertAllEqual([1, 2], [1, 3]),
    lambda t: t.assertAllEqual(1, [1]),
    lambda t: t.assertNotAllEqual([1], [1]),
    lambda t: t.assertAllGreater([0, 2], 0),
    lambda t: t.assertAllLess([1, 2], 2),
    lambda t: t.assertAllLessEqual([1, NAN], 2),
    lambda t: t.assertAllInRange([1, 2], 1, 2, open_lower_bound=True),
    lambda t: t.assertAllInRange([1, 2], 1, 2, open_upper_bound=True),
    lambda t: t.assertAllInRange([1, NAN], 1, 2),
    lambda t: t.assertAllInSet([1, 4], {1, 2, 3}),
    lambda t: t.assertArrayNear([1.0, 2.0], [1.0, 2.1], 0.05),
    lambda t: t.assertArrayNear([1.0], [1.0, 2.0], 0.05),
    lambda t: t.assertNear(1.0, 1.1, 0.05),
    lambda t: t.assertNear(NAN, 1.0, 1.0),
    lambda t: t.assertNDArrayNear(np.ones(2), np.ones(2) + 0.2, 0.2),
    lambda t: t.assertShapeEqual(np.ones((2, 3)), hf.zeros([3, 3])),
    lambda t: t.assertShapeEqual(np.ones((2, 3)), hf.placeholder("float32", [None, 3])),
    lambda t: t.assertDTypeEqual(K(1), hf.int64),
    lambda t: t.assertDeviceEqual("/cpu:0", "/cpu:1"),
    lambda t: t.assertStartsWith("abc", "b"),
]


@pytest.mark.parametrize("check", HOLDS)
def test_assertions_that_hold(case: Case, check: Check) -> None:
    check(case)


@pytest.mark.parametrize("check", FAILS)
def test_assertions_that_fail(case: Case, check: Check) -> None:
    with pytest.raises(AssertionError) as caught:
        check(case)
    assert not isinstance(caught.value, HpcflowError) and str(caught.value)


def test_messages_say_where(case: Case) -> None:
    with pytest.raises(AssertionError, match=r"mine: \['a'\]\[1\]"):
        case.assertAllClose({"a": [K(1.0), K(2.0)]}, {"a": [1.0, 3.0]}, msg="mine")
    with pytest.raises(AssertionError, match=r"1 of 3 elements are not at most 2, .* 3 at \[1\]"):
        case.assertAllLessEqual([1, 3, 2], 2)


def test_errors_are_expected(case: Case) -> None:
    def fails(wanted: Any) -> None:
        with case.assertRaisesOpError(wanted), case.session() as session:
            session.run(hf.Assert(K(False), ["my words"]))

    fails("my words")
    fails(lambda error: "my" in str(error))
    for wrong in ("other words", lambda error: False):
        with pytest.raises(AssertionError, match="is not as expected"):
            fails(wrong)
    with pytest.raises(AssertionError, match="was not raised"):
        with case.assertRaisesOpError("words"):
            pass
    with pytest.raises(AssertionError, match="ValueError is not as expected"):
        with case.assertRaisesWithPredicateMatch(KeyError, "words"):
            raise ValueError("words")


def test_sessions_of_a_test(case: Case) -> None:
    v = hf.Variable(2.0)
    with case.cached_session() as first:
        first.run(v.initializer)
    with case.test_session() as again:
        assert again is first and again is hf.get_default_session()
        case.assertAllClose(v, 2.0)
    assert case.evaluate({"v": [v]}) == {"v": [2.0]}
    graph = hf.Graph()
    with case.session(graph=graph) as other:
        assert hf.get_default_graph() is graph and other.run(hf.constant(3)) == 3
    with case.test_session(graph=graph) as other:
        assert other is not first
    with hf.device("/gpu:0"):
        y = hf.square(v)
    with case.session() as soft:
        soft.run(v.initializer)
        assert soft.run(y) == 4
    case.tearDown()
    with pytest.raises(HpcflowError, match="closed"):
        first.run(v)


def test_each_test_begins_anew(case: Case) -> None:
    drawn = []
    for _ in range(2):
        case.setUp()
        assert hf.global_variables() == []
        x = hf.Variable(hf.random_uniform([3]))
        with case.session() as session:
            session.run(x.initializer)
            drawn.append([*session.run(x), np.random.random()])
    assert drawn[0] == drawn[1]


def test_threads_are_checked(case: Case) -> None:
    seen: list[int] = []
    thread = case.checkedThread(target=seen.append, args=(3,))
    thread.start()
    thread.join()
    assert seen == [3]
    wrong = case.checkedThread(lambda: 1 // 0)
    wrong.start()
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        wrong.join()


# -- gradients


def test_slopes_are_those_of_the_formula() -> None:
    with hf.Graph().as_default(), hf.Session():
        x = hf.placeholder("float64", [3])
        begin = np.array([0.1, 0.2, 0.3])
        found = hf.test.compute_gradient(x, [3], hf.sin(x), [3], begin)
        for matrix in found:
            np.testing.assert_allclose(matrix, np.diag(np.cos(begin)), rtol=1e-5, atol=1e-12)
        w = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        product = hf.matmul(hf.reshape(x, [1, 3]), w)
        for matrix in hf.test.compute_gradient(x, [3], product, [1, 2]):
            np.testing.assert_allclose(matrix, w, rtol=1e-6)
        rows = hf.gather(x, [2, 2])
        for matrix in hf.test.compute_gradient(x, (3,), rows, [2]):
            np.testing.assert_allclose(matrix, [[0, 0], [0, 0], [1, 1]], rtol=1e-6, atol=1e-9)
        assert hf.test.compute_gradient_error(x, [3], hf.exp(x), [3]) < 1e-5


def test_slopes_by_several_and_by_variables() -> None:
    with hf.Graph().as_default(), hf.Session():
        a, b = hf.constant([1.0, 2.0], "float64"), hf.Variable(np.array([3.0, 4.0]))
        values = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
        found = hf.test.compute_gradient(
            [a, b], [[2], [2]], a * b, [2], values, init_targets=[b.initializer]
        )
        for pair, slope in zip(found, values[::-1], strict=True):
            for matrix in pair:
                np.testing.assert_allclose(matrix, np.diag(slope), rtol=1e-6, atol=1e-9)


def test_slopes_of_complex_numbers() -> None:
    """z -> z^2 has the slope 2 z, a matrix of its real and imaginary parts."""
    with hf.Graph().as_default(), hf.Session():
        z = hf.placeholder("complex128", [])
        for matrix in hf.test.compute_gradient(z, [], z * z, [], np.complex128(1 + 2j)):
            np.testing.assert_allclose(matrix, [[2, 4], [-4, 2]], rtol=1e-6)


def test_a_wrong_gradient_is_seen() -> None:
    wrong = hf.op("WrongGradientOfTests", grad=lambda op, dy: [3 * dy])
    hf.kernel("WrongGradientOfTests", "out")(lambda xp, node: lambda x, out: xp.add(x, x, out))
    with hf.Graph().as_default(), hf.Session():
        x = hf.placeholder("float64", [2])
        error = hf.test.compute_gradient_error(x, [2], wrong(x), [2])
        assert error == pytest.approx(1.0, abs=1e-6)
        with pytest.raises(GradientError, match="does not depend"):
            hf.test.compute_gradient(x, [2], hf.constant([1.0]), [1])
        with pytest.raises(ShapeError, match="x_init_value"):
            hf.test.compute_gradient(x, [2], x, [2], np.ones(3))


# -- the machine


def test_folders_and_devices(case: Case) -> None:
    assert os.path.isdir(hf.test.get_temp_dir()) and os.path.isdir(case.get_temp_dir())
    assert Path(case.get_temp_dir()).parent == Path(hf.test.get_temp_dir())
    assert hf.test.is_gpu_available() == bool(hf.test.gpu_device_name())
    assert isinstance(hf.test.is_built_with_cuda(), bool)
    assert hf.test.mock.Mock(return_value=3)() == 3


@pytest.mark.slow
def test_a_file_of_tests_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "some_test.py"
    file.write_text(
        "import hpcflow as tf\n"
        "class SomeTest(tf.test.TestCase):\n"
        "    def testSum(self):\n"
        "        with self.test_session():\n"
        "            self.assertAllEqual(tf.add([1, 2], 3).eval(), [4, 5])\n"
        "    def testWrong(self):\n"
        "        self.assertAllClose(self.evaluate(tf.constant(1.0)), 2.0)\n"
        "if __name__ == '__main__':\n"
        "    tf.test.main()\n"
    )
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 1
    assert "Ran 2 tests" in done.stderr and "FAILED (failures=1)" in done.stderr
