"""The ops of mathematics through the planner and generated code: sizes known, unknown, by data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError, RangeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize("size", [4, None], ids=["known", "unknown"])
def test_a_session_computes_what_the_interpreter_does(size: int | None) -> None:
    x, z = hf.placeholder(hf.float64, [size, 3]), hf.placeholder(hf.complex128, [size, 3])
    ids = hf.placeholder(hf.int32, [size])
    square = hf.matmul(x, x, transpose_a=True) + 3 * hf.eye(3, dtype=hf.float64)
    s, u, v = hf.svd(square)
    values, places = hf.nn.top_k(x, 2)
    wanted = [
        *(hf.einsum("ij,kj->ik", x, x), hf.cumsum(x, 1), hf.cumprod(x, 0, True), values, places),
        *(hf.segment_sum(x, ids), hf.unsorted_segment_max(x, ids, 5), hf.bincount(ids)),
        *(hf.cholesky(square), hf.matrix_inverse(square), s, hf.abs(u * v), hf.lgamma(hf.abs(x))),
        *(hf.matmul(z, z, transpose_b=True), hf.abs(z), hf.real(hf.fft(z)), hf.angle(z)),
        *(hf.spectral.rfft(x), hf.conj(z) * z, hf.math.reduce_variance(x, 0), hf.erf(x)),
        *(hf.confusion_matrix(ids, ids), hf.linalg.expm(square / 9), hf.norm(z)),
    ]
    loss = hf.reduce_sum(hf.cholesky(square)) + hf.reduce_sum(hf.abs(hf.fft(z))) + hf.norm(x)
    loss += hf.reduce_sum(hf.segment_mean(hf.cumsum(x), ids)) + hf.reduce_sum(values)
    wanted += hf.gradients(loss, [x, z])
    rng = np.random.default_rng(3)
    with hf.Session() as sess:
        for n in (4,) if size else (4, 2, 7):
            a, b = rng.standard_normal((3, n, 3))[:2], rng.standard_normal((n, 3))
            fed = {x: a[0], z: a[1] + 1j * b, ids: np.arange(n, dtype=np.int32) // 2}
            got, expected = sess.run(wanted, fed), evaluate(wanted, fed)
            for g, e in zip(got, expected, strict=True):
                assert g.dtype == e.dtype
                np.testing.assert_allclose(g, e, rtol=1e-9, atol=1e-12)


def test_errors_name_the_operation_and_the_line() -> None:
    x, ids = hf.placeholder(hf.float32, [2, 2]), hf.placeholder(hf.int32, [2])
    inverse = hf.matrix_inverse(x, name="my_inverse")
    total = hf.segment_sum(x, ids, name="my_sum")
    with hf.Session() as sess:
        with pytest.raises(NumericError, match=r"(?s)Singular.*my_inverse.*in_sessions"):
            sess.run(inverse, {x: np.zeros((2, 2), "f4")})
        with pytest.raises(RangeError, match=r"(?s)not sorted.*my_sum.*in_sessions"):
            sess.run(total, {x: np.zeros((2, 2), "f4"), ids: [1, 0]})
