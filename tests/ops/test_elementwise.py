"""Functions element by element: special values, errors, what is composed of several ops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import DTypeError, NumericError, ShapeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- special functions over their whole range


def wide(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [
        rng.normal(0, 3, 4000),
        rng.uniform(-30, 30, 4000),
        10.0 ** rng.uniform(-300, 300, 900),
    ]
    return np.concatenate([*parts, [0.0, np.inf, np.nan, 1, 2, 3, 0.5, 1.4616321449683623]])


def run(function, *arrays: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return evaluate(function(*(hf.constant(a) for a in arrays)))


@pytest.mark.parametrize(
    ("function", "oracle", "positive"),
    [(hf.erf, sp.erf, False), (hf.erfc, sp.erfc, False), (hf.lgamma, sp.gammaln, True),
     (hf.digamma, sp.digamma, True)],
    ids=["erf", "erfc", "lgamma", "digamma"],
)  # fmt: skip
def test_special_functions_to_twelve_digits(function, oracle, positive: bool) -> None:
    x = np.abs(wide(1)) if positive else wide(1)
    expected = oracle(x)
    near = np.abs(expected) < 1e-300  # SciPy's own erfc is cut off there
    np.testing.assert_allclose(run(function, x)[~near], expected[~near], rtol=4e-12)


def test_gamma_left_of_zero() -> None:
    x = np.random.default_rng(2).uniform(-30, 0, 4000)
    np.testing.assert_allclose(run(hf.lgamma, x), sp.gammaln(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run(hf.digamma, x), sp.digamma(x), rtol=2e-10)  # beside its poles
    at_poles = np.array([0.0, -1.0, -2.0, -(2.0**60)])
    assert np.isposinf(run(hf.lgamma, at_poles)).all()
    assert np.isneginf(run(hf.digamma, at_poles[:1])).all()
    assert np.isnan(run(hf.digamma, at_poles[1:3])).all()


def test_functions_of_two_and_three_numbers() -> None:
    rng = np.random.default_rng(3)
    s, q = rng.uniform(1.01, 60, 3000), 10 ** rng.uniform(-3, 3, 3000)
    np.testing.assert_allclose(run(hf.zeta, s, q), sp.zeta(s, q), rtol=1e-11)
    n, x = rng.integers(0, 12, 3000).astype(float), rng.uniform(0.01, 40, 3000)
    expected = sp.polygamma(n.astype(int), x)
    np.testing.assert_allclose(run(hf.polygamma, n, x), expected, rtol=1e-10)
    a, b = 10 ** rng.uniform(-2, 2, (2, 3000))
    y = a * 10 ** rng.uniform(-1, 1, 3000)
    np.testing.assert_allclose(run(hf.igamma, a, y), sp.gammainc(a, y), rtol=1e-11)
    np.testing.assert_allclose(run(hf.igammac, a, y), sp.gammaincc(a, y), rtol=1e-10, atol=1e-300)
    z = rng.uniform(0, 1, 3000)
    np.testing.assert_allclose(
        run(hf.betainc, a, b, z), sp.betainc(a, b, z), rtol=1e-10, atol=1e-12
    )


def test_special_functions_at_their_borders() -> None:
    inf, nan = np.inf, np.nan
    assert run(hf.zeta, np.array([1.0, 2, 2, 0.5]), np.array([1.0, -3, inf, 1])).tolist()[:3] == [
        *(inf, inf, 0)
    ]
    assert np.isnan(run(hf.zeta, np.array([0.5, 2.5]), np.array([1.0, -0.5]))).all()
    a, x = np.array([2.0, 2, 0, -1, nan]), np.array([0.0, inf, 1, 1, 1])
    np.testing.assert_array_equal(run(hf.igamma, a, x), [0, 1, nan, nan, nan])
    np.testing.assert_array_equal(run(hf.igammac, a, x), [1, 0, nan, nan, nan])
    ones = np.ones(4)
    found = run(hf.betainc, 2 * ones, 3 * ones, np.array([0.0, 1, -0.1, nan]))
    np.testing.assert_array_equal(found, [0, 1, nan, nan])


def test_float16_goes_through_float32() -> None:
    x = np.linspace(-4, 4, 41).astype(np.float16)
    for function, oracle in [(hf.erf, sp.erf), (hf.erfc, sp.erfc), (hf.lgamma, sp.gammaln)]:
        got = run(function, x)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, oracle(x.astype(float)).astype(np.float16), rtol=2e-3)


def test_a_derivative_without_a_formula_is_none() -> None:
    a, x = hf.placeholder(hf.float64, []), hf.placeholder(hf.float64, [])
    of_a, of_x = hf.gradients(hf.zeta(a, x), [a, x])
    assert of_a is None
    np.testing.assert_allclose(evaluate(of_x, {a: 2.5, x: 1.5}), -2.5 * sp.zeta(3.5, 1.5))
    (g,) = hf.gradients(hf.igamma(hf.stop_gradient(a), x), x)
    got = evaluate(g, {a: 2.5, x: 1.5})
    np.testing.assert_allclose(got, 1.5**1.5 * np.exp(-1.5) / sp.gamma(2.5))


def test_lbeta() -> None:
    x = np.array([[0.5, 1, 2], [3, 4, 5]])
    expected = sp.gammaln(x).sum(-1) - sp.gammaln(x.sum(-1))
    np.testing.assert_allclose(run(hf.lbeta, x), expected)


# -- division and rounding


def test_divisions_of_integers() -> None:
    a, b = np.array([7, -7, 7, -7], "i4"), np.array([2, 2, -2, -2], "i4")
    x, y = hf.constant(a), hf.constant(b)
    found = evaluate([hf.div(x, y), hf.truncatediv(x, y), hf.truncatemod(x, y), hf.floormod(x, y)])
    assert [f.tolist() for f in found] == [
        *([3, -4, -4, 3], [3, -3, -3, 3], [1, -1, 1, -1], [1, 1, -1, -1])
    ]
    assert evaluate(hf.div(hf.constant(7.0), 2)) == 3.5
    least = hf.constant(np.array([-128], "i1"))
    assert evaluate(hf.truncatediv(least, np.array([3], "i1"))).tolist() == [-42]


@pytest.mark.parametrize("function", [hf.floordiv, hf.mod, hf.truncatediv, hf.truncatemod])
def test_an_integer_divided_by_zero_is_an_error(function) -> None:
    x = hf.placeholder(hf.int32, [2])
    with pytest.raises(NumericError, match="divided by zero"):
        evaluate(function(1, x), {x: [1, 0]})
    known = function(hf.constant(1), hf.constant([0]))  # an error of the step, if it is run
    with hf.Session() as session, pytest.raises(NumericError, match="divided by zero"):
        session.run(known)
    nothing = np.zeros(0, "i4")
    assert evaluate(function(hf.constant(nothing), 0)).shape == (0,)


def test_rounding() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert evaluate(hf.round(hf.constant(x))).tolist() == [-2, -2, 0, 0, 2, 2]
    assert evaluate(hf.round(hf.constant([3]))).tolist() == [3]


def test_div_no_nan_and_its_gradient() -> None:
    x, y = hf.placeholder(hf.float64, [3]), hf.placeholder(hf.float64, [3])
    z = hf.div_no_nan(x, y)
    fed = {x: [1.0, 2, 0], y: [0.0, 4, 0]}
    found = evaluate([z, *hf.gradients(z, [x, y])], fed)
    assert [f.tolist() for f in found] == [[0, 0.5, 0], [0, 0.25, 0], [0, -0.125, 0]]


def test_log_sigmoid_and_scalar_mul() -> None:
    x = np.array([-800.0, -1, 0, 1, 800])
    np.testing.assert_allclose(evaluate(hf.log_sigmoid(hf.constant(x))), -np.logaddexp(0, -x))
    assert evaluate(hf.scalar_mul(2, hf.constant([1.0, 2]))).tolist() == [2, 4]
    with pytest.raises(ShapeError, match="takes a scalar"):
        hf.scalar_mul([1.0, 2.0], hf.constant([1.0, 2]))


# -- bits


def test_operators_of_integers_work_on_bits() -> None:
    a, b = np.array([12, -5, 7]), np.array([10, 3, 0])
    x, y = hf.constant(a), hf.constant(b)
    for tensor, expected in [
        (x & y, a & b),
        (x | y, a | b),
        (x ^ y, a ^ b),
        (~x, ~a),
        (x & 3, a & 3),
    ]:
        assert evaluate(tensor).tolist() == expected.tolist()
    with pytest.raises(DTypeError):
        hf.bitwise.bitwise_and(hf.constant([1.0]), hf.constant([2.0]))


# -- casts


def test_saturate_cast() -> None:
    x = hf.constant(np.array([-1e30, -5.7, 5.7, 1e30], "f4"))
    assert evaluate(hf.saturate_cast(x, hf.uint8)).tolist() == [0, 0, 5, 255]
    top = 2**31 - 128  # the largest float32 that is an int32
    assert evaluate(hf.saturate_cast(x, hf.int32)).tolist() == [-(2**31), -5, 5, top]
    whole = hf.constant(np.array([-300, 7, 300]))
    assert evaluate(hf.saturate_cast(whole, hf.int8)).tolist() == [-128, 7, 127]
    assert evaluate(hf.saturate_cast(whole, hf.uint64)).tolist() == [0, 7, 300]
    big = hf.constant(np.array([1e30, -1e300]))
    assert np.isfinite(evaluate(hf.saturate_cast(big, hf.float32))).all()
    with pytest.raises(DTypeError, match="saturate_cast"):
        hf.saturate_cast(hf.constant([True]), hf.int8)


def test_the_shorthands_of_cast() -> None:
    x = hf.constant([1.5])
    made = [hf.to_float, hf.to_double, hf.to_int32, hf.to_int64, hf.to_complex64, hf.to_complex128]
    names = ["float32", "float64", "int32", "int64", "complex64", "complex128"]
    assert [f(x).dtype.name for f in made] == names


# -- sums and norms


def test_accumulate_n() -> None:
    x = hf.placeholder(hf.float32, None)
    total = hf.accumulate_n([x, x, x], shape=[2], tensor_dtype=hf.float32)
    assert total.shape == (2,)
    assert evaluate(total, {x: [1, 2]}).tolist() == [3, 6]
    with pytest.raises(ShapeError):
        hf.accumulate_n([hf.zeros([2]), hf.zeros([3])])
    with pytest.raises(DTypeError):
        hf.accumulate_n([hf.zeros([2])], tensor_dtype=hf.int32)


def test_clip_by_norm() -> None:
    a = np.array([[3.0, 4], [0.3, 0.4]])
    x = hf.placeholder(hf.float64, [2, 2])
    rows = hf.clip_by_norm(x, 1.0, axes=[1])
    np.testing.assert_allclose(evaluate(rows, {x: a}), [[0.6, 0.8], [0.3, 0.4]])
    np.testing.assert_allclose(
        evaluate(hf.clip_by_norm(x, 2), {x: a}), 2 * a / np.sqrt((a * a).sum())
    )
    zero = evaluate(hf.gradients(hf.clip_by_norm(x, 1), x)[0], {x: a * 0})
    assert np.isfinite(zero).all()


def test_clip_by_average_norm() -> None:
    a = np.array([3.0, 4])
    got = evaluate(hf.clip_by_average_norm(hf.constant(a), 0.5))
    np.testing.assert_allclose(got, a * 0.5 * min(2 / 5, 1 / 0.5))


def test_global_norm_of_many() -> None:
    arrays = [np.array([3.0, 0]), np.array([[4.0]])]
    tensors = [hf.constant(arrays[0]), None, hf.constant(arrays[1])]
    assert evaluate(hf.global_norm(tensors)) == 5
    clipped, norm = hf.clip_by_global_norm(tensors, 2.5)
    assert clipped[1] is None
    np.testing.assert_allclose(evaluate(clipped[0]), [1.5, 0])
    assert evaluate(norm) == 5
    kept, _ = hf.clip_by_global_norm(tensors, 50.0, use_norm=norm)
    np.testing.assert_allclose(evaluate(kept[2]), [[4.0]])
    broken, _ = hf.clip_by_global_norm([hf.constant([np.inf, 1.0])], 1.0)
    assert np.isnan(evaluate(broken[0])).all()
    with pytest.raises(ShapeError, match="needs at least one tensor"):
        hf.global_norm([None])


# -- complex numbers


def test_parts_of_complex_numbers() -> None:
    z = np.array([1 + 2j, -3 - 4j, 0])
    x = hf.constant(z)
    assert x.dtype == hf.complex128
    found = evaluate([hf.real(x), hf.imag(x), hf.conj(x), hf.abs(x), hf.angle(x)])
    expected = [z.real, z.imag, z.conj(), np.abs(z), np.angle(z)]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e)
    assert evaluate(hf.complex(1.0, [2.0, 3.0])).dtype == np.complex64
    r = hf.constant([-1.0, 2.0])
    assert hf.real(r) is r and hf.conj(r) is r
    assert evaluate(hf.imag(r)).tolist() == [0, 0]
    np.testing.assert_allclose(evaluate(hf.angle(r)), [np.pi, 0])
    with pytest.raises(DTypeError):
        hf.complex(hf.constant([1]), hf.constant([2]))


def test_complex_numbers_have_no_order() -> None:
    x = hf.constant([1j])
    for function in (hf.less, hf.maximum, hf.floor):
        with pytest.raises(DTypeError, match="complex128"):
            function(*[x] * (1 if function is hf.floor else 2))


def test_gradients_of_complex_values_are_given_their_weights() -> None:
    x = hf.placeholder(hf.complex128, [])
    y = x * x
    with pytest.raises(DTypeError, match="grad_ys"):
        hf.gradients(y, x)
    (g,) = hf.gradients(y, x, [hf.constant(1 + 0j, hf.complex128)])
    np.testing.assert_allclose(evaluate(g, {x: 1 + 2j}), 2 - 4j)  # the conjugate, as TensorFlow


def test_a_real_loss_of_complex_numbers_goes_down() -> None:
    target = np.array([1 - 2j, 0.5 + 1j])
    z = hf.placeholder(hf.complex128, [2])
    loss = hf.reduce_sum(hf.square(hf.abs(hf.exp(z) - target)))
    (g,) = hf.gradients(loss, z)
    value = np.zeros(2, complex)
    for _ in range(300):
        value = value - 0.02 * evaluate(g, {z: value})
    assert evaluate(loss, {z: value}) < 1e-3


@pytest.mark.parametrize("power", [2, 3, 2.0, 3.0, 4, -1.5])
def test_powers_and_their_slopes(power):
    x = hf.constant([0.5, 1.0, 3.0, 7.0])
    for y in (x**power, hf.pow(x, hf.constant(power, hf.float32))):
        (slope,) = hf.gradients(y, x)
        made, steep = hf.Session().run([y, slope])
        exact = np.array([0.5, 1, 3, 7])
        np.testing.assert_allclose(made, exact**power, rtol=1e-6)
        np.testing.assert_allclose(steep, power * exact ** (power - 1), rtol=1e-6)


def test_floors_of_quotients_are_those_of_the_rounded_quotient() -> None:
    x = np.array([1, np.inf, -np.inf, -2, 2, 0, 1, -1, 7.5], np.float32)
    y = np.array([0.1, 2, 2, np.inf, -np.inf, 0, 0, 0, 2], np.float32)
    got = run(hf.floordiv, x, y)
    np.testing.assert_array_equal(got, [10, np.inf, -np.inf, 0, 0, np.nan, np.inf, -np.inf, 3])


def test_squared_differences_of_complex_numbers_are_sizes() -> None:
    x, y = np.array([3 + 2j, 1j]), np.array([1j, 2 - 1j])
    np.testing.assert_array_equal(run(hf.squared_difference, x, y), [10, 8])


def test_booleans_beside_numbers_are_0_and_1() -> None:
    x = hf.constant([1, 2], hf.int32)
    assert evaluate(x + True).tolist() == [2, 3]
    assert evaluate(hf.maximum(x, [False, False])).dtype == np.int32
    assert evaluate(hf.constant([True, False], hf.float32)).tolist() == [1, 0]
    with pytest.raises(DTypeError, match="does not fit bool"):
        hf.constant(1, hf.bool)
