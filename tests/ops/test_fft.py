"""Fourier transforms: lengths, unknown sizes, errors, a use of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def test_lengths_cut_and_continue() -> None:
    a = np.random.default_rng(1).standard_normal((2, 5))
    for x, fed in ((hf.constant(a), {}), (hf.placeholder(hf.float64, [2, None]), None)):
        given = fed if fed is not None else {x: a}
        for n in (3, 5, 8):
            half = hf.spectral.rfft(x, [n])
            np.testing.assert_allclose(evaluate(half, given), np.fft.rfft(a, n))
            for m in (4, 7):
                back = evaluate(hf.spectral.irfft(half, [m]), given)
                np.testing.assert_allclose(back, np.fft.irfft(np.fft.rfft(a, n), m), atol=1e-12)
        even = evaluate(hf.spectral.irfft(hf.spectral.rfft(x)), given)
        np.testing.assert_allclose(even, np.fft.irfft(np.fft.rfft(a)), atol=1e-12)


def test_lengths_of_several_axes() -> None:
    a = np.random.default_rng(2).standard_normal((3, 4, 5))
    half = hf.signal.rfft2d(hf.constant(a), [6, 3])
    np.testing.assert_allclose(evaluate(half), np.fft.rfft2(a, (6, 3)), atol=1e-12)
    back = hf.signal.irfft2d(half, [2, 4])
    expected = np.fft.irfft2(np.fft.rfft2(a, (6, 3)), (2, 4))
    np.testing.assert_allclose(evaluate(back), expected, atol=1e-12)
    whole = hf.signal.irfft3d(hf.signal.rfft3d(hf.constant(a)), a.shape)
    np.testing.assert_allclose(evaluate(whole), a, atol=1e-12)


def test_shifts() -> None:
    for shape in ((5,), (4, 3)):
        a = np.random.default_rng(3).standard_normal(shape)
        x = hf.constant(a)
        assert np.array_equal(evaluate(hf.signal.fftshift(x)), np.fft.fftshift(a))
        assert np.array_equal(evaluate(hf.signal.ifftshift(x, 0)), np.fft.ifftshift(a, 0))


def test_a_filter_is_learned_in_the_frequencies() -> None:
    rng = np.random.default_rng(4)
    signal, kernel = rng.standard_normal(16), np.array([0.5, 0.3, 0.2])
    target = np.fft.irfft(np.fft.rfft(signal) * np.fft.rfft(kernel, 16), 16)
    w = hf.placeholder(hf.float64, [3])
    spectrum = hf.spectral.rfft(hf.constant(signal)) * hf.spectral.rfft(w, [16])
    loss = hf.reduce_sum(hf.square(hf.spectral.irfft(spectrum, [16]) - target))
    (g,) = hf.gradients(loss, w)
    value = np.zeros(3)
    for _ in range(300):
        value = value - 0.01 * evaluate(g, {w: value})
    np.testing.assert_allclose(value, kernel, atol=1e-4)


def test_what_does_not_fit() -> None:
    with pytest.raises(DTypeError, match="Fourier transform takes complex numbers, not float32"):
        hf.fft(hf.zeros([4]))
    with pytest.raises(DTypeError, match="rfft takes"):
        hf.spectral.rfft(hf.zeros([4], hf.complex64))
    with pytest.raises(ShapeError, match="over 2 axes"):
        hf.fft2d(hf.zeros([4], hf.complex64))
    with pytest.raises(ShapeError, match="fft_length"):
        hf.spectral.rfft2d(hf.zeros([4, 4]), [4])
