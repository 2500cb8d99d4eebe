"""`hf.image`: values and gradients are TensorFlow's (images_tf.py), draws and errors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError, ShapeError
from tests.ops.images_tf import CASES, INPUTS, RESULTS, results

TOLD = json.loads(RESULTS.read_text())["results"]
TIES = ("rgb_to_hsv", "colors")  # equal colours: gradients of the largest are shared here


def test_each_case_has_its_results() -> None:
    assert len(TOLD) == len(CASES)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n][0]}")
def test_as_tensorflow(number: int, known: bool) -> None:
    case = CASES[number]
    if not known and case[3].get("preserve_aspect_ratio"):
        with pytest.raises(ArgumentError, match="needs sizes that are known"):
            results(hf, case, known)
        return
    expected, got = TOLD[number], results(hf, case, known)
    assert len(got) >= len(expected) >= 1
    for i, (y, (dtype, values)) in enumerate(zip(got, expected, strict=False)):
        assert y.dtype.name == dtype
        if (case[0], case[1]) != TIES or i == 0:
            np.testing.assert_allclose(y, np.array(values, dtype), rtol=1e-4, atol=1e-5)


def run(fetches: Any, feeds: Any = None) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


def test_images_are_mirrored_one_by_one() -> None:
    x = np.arange(64 * 2 * 3).reshape(64, 2, 3, 1).astype(np.float32)
    for function, axis in ((hf.image.random_flip_left_right, 2), (hf.image.random_flip_up_down, 1)):
        y = run(function(hf.constant(x), seed=3))
        turned = np.flip(x, axis)
        each = [
            (np.array_equal(a, b), np.array_equal(a, c))
            for a, b, c in zip(y, x, turned, strict=True)
        ]
        assert all(sum(pair) == 1 for pair in each)
        assert 16 < sum(kept for kept, _ in each) < 48
        one = function(hf.constant(x[0]), seed=3)
        with hf.Session() as session:
            seen = {session.run(one).tobytes() for _ in range(40)}
        assert seen == {x[0].tobytes(), np.ascontiguousarray(turned[0]).tobytes()}


def test_draws_are_in_their_range() -> None:
    x = hf.constant(INPUTS["one"])
    brighter = hf.image.random_brightness(x, 0.2, seed=1) - x
    factor = hf.image.random_contrast(x, 0.5, 1.5, seed=2)
    hue = hf.image.random_hue(x, 0.1, seed=3)
    saturation = hf.image.random_saturation(x, 0.5, 1.0, seed=4)
    mean = INPUTS["one"].mean((0, 1))
    with hf.Session() as session:
        seen = [session.run([brighter, factor, hue, saturation]) for _ in range(20)]
    deltas = [b.mean() for b, *_ in seen]
    assert -0.2 <= min(deltas) < 0 < max(deltas) < 0.2
    factors = [((f - mean) / (INPUTS["one"] - mean)).mean() for _, f, *_ in seen]
    assert 0.5 <= min(factors) < 1 < max(factors) < 1.5
    for part in (2, 3):  # neither changes the largest of the three colours
        for row in seen:
            np.testing.assert_allclose(row[part].max(-1), INPUTS["one"].max(-1), rtol=1e-5)


def test_sizes_that_only_the_step_knows() -> None:
    x, size = hf.placeholder("float32", [None, None, None, 3]), hf.placeholder("int32", [2])
    y = hf.image.resize_images(images=x, size=size)
    z = hf.image.resize_image_with_crop_or_pad(x, size[0], size[1])
    case = next(c for c in CASES if c[:3] == ["resize_bilinear", "many", [[5, 7]]])
    a, b = run([y, z], {x: INPUTS["many"], size: [5, 7]})
    np.testing.assert_allclose(a, np.float32(TOLD[CASES.index(case)][0][1]), rtol=1e-4, atol=1e-5)
    expected = np.pad(INPUTS["many"], [(0, 0), (0, 1), (2, 2), (0, 0)])
    np.testing.assert_array_equal(b, expected)


def test_errors() -> None:
    x, flat = hf.constant(INPUTS["one"]), hf.zeros([3, 3])
    with pytest.raises(ShapeError, match="flip_up_down takes images"):
        hf.image.flip_up_down(flat)
    with pytest.raises(ShapeError, match="outside an axis of size 3"):
        hf.image.crop_to_bounding_box(x, 2, 0, 2, 2)
    with pytest.raises(ShapeError, match="outside an axis of size 3"):
        hf.image.pad_to_bounding_box(x, 1, 0, 3, 9)
    with pytest.raises(ShapeError, match="images of 3 channels"):
        hf.image.rgb_to_hsv(hf.zeros([2, 2, 1]))
    with pytest.raises(ShapeError, match="images of 1 channel"):
        hf.image.grayscale_to_rgb(x)
    for call, told in (
        (lambda: hf.image.central_crop(x, 1.5), "fraction"),
        (lambda: hf.image.rot90(x, hf.placeholder("int32", [])), "constant integer k"),
        (lambda: hf.image.resize_images(x, [3]), "positive integers"),
        (lambda: hf.image.resize_images(x, [0, 3]), "positive integers"),
        (lambda: hf.image.resize_images(x, [2, 2], 3), "method 3"),
        (
            lambda: hf.image.resize_bilinear(x, [2, 2], True, half_pixel_centers=True),
            "cannot both be True",
        ),
        (lambda: hf.image.random_contrast(x, 2.0, 1.0), "empty"),
        (lambda: hf.image.adjust_gamma(x, -1), "at least 0, not -1"),
    ):
        with pytest.raises(ArgumentError, match=told):
            call()
