"""Calls of `image` and what TensorFlow makes of them: values, and gradients of the squares' sum.

python tests/ops/images_tf.py    in an environment with tensorflow; writes images_tf.json there
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).with_suffix(".json")
RNG = np.random.default_rng(5)
INPUTS = {
    "one": RNG.random((3, 4, 3)).astype(np.float32),
    "many": RNG.random((2, 4, 3, 3)).astype(np.float32),
    "bytes": RNG.integers(0, 256, (2, 3, 4, 3)).astype(np.uint8),
    "words": RNG.integers(0, 30000, (2, 3, 3)).astype(np.int16),
    "gray": RNG.random((2, 2, 3, 1)).astype(np.float32),
    "colors": np.float32([[[0.2, 0.2, 0.2], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0.5, 0.5, 0.1]]]),
}
CASES: list[list[Any]] = [  # the function, its input, more arguments, and those by name
    *([name, x, [], {}] for name in ("flip_left_right", "flip_up_down") for x in ("one", "many")),
    *(
        [name, x, [], {}]
        for name in ("transpose_image", "total_variation")
        for x in ("one", "many")
    ),
    *(["rot90", x, [k], {}] for k in (1, 2, -1) for x in ("one", "many")),
    *(["per_image_standardization", x, [], {}] for x in ("one", "many", "bytes")),
    *(["rgb_to_grayscale", x, [], {}] for x in ("one", "many", "bytes")),
    *(["rgb_to_hsv", x, [], {}] for x in ("many", "colors")),
    *(["hsv_to_rgb", x, [], {}] for x in ("one", "many", "colors")),
    *(["central_crop", x, [part], {}] for x in ("one", "many") for part in (0.3, 0.77)),
    *(["crop_to_bounding_box", x, [1, 0, 2, 3], {}] for x in ("one", "many")),
    *(["pad_to_bounding_box", x, [1, 2, 6, 7], {}] for x in ("one", "many")),
    *(
        ["resize_image_with_crop_or_pad", "one", list(size), {}]
        for size in ((2, 3), (6, 7), (1, 6), (5, 2))
    ),
    *(["adjust_brightness", x, [d], {}] for x in ("one", "bytes") for d in (0.1, -0.3)),
    *(["adjust_contrast", x, [d], {}] for x in ("many", "bytes") for d in (0.5, 2.0)),
    *(["adjust_hue", x, [d], {}] for x in ("many", "bytes", "colors") for d in (0.2, -0.3)),
    *(["adjust_saturation", x, [d], {}] for x in ("many", "bytes", "colors") for d in (0.5, 2.0)),
    ["adjust_gamma", "bytes", [2.0, 0.5], {}],
    ["grayscale_to_rgb", "gray", [], {}],
    ["image_gradients", "many", [], {}],
    *(
        ["convert_image_dtype", x, [to], {"saturate": True}]
        for x in ("one", "bytes", "words")
        for to in ("uint8", "int16", "int32", "float32", "float64")
    ),
    *(
        [name, x, [size], how]
        for name in ("resize_bilinear", "resize_nearest_neighbor")
        for x, size in (("many", [3, 2]), ("many", [5, 7]), ("bytes", [6, 1]))
        for how in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    ),
    *(["resize_images", "one", [[4, 2], method], {}] for method in (0, 1)),
    ["resize_images", "bytes", [[9, 9]], {"preserve_aspect_ratio": True}],
]


def results(module: Any, case: list[Any], known: bool = True) -> list[np.ndarray]:
    """The values of a call, and the gradient of the sum of their squares, if there is one.

    The sizes of the input are `known`, or are not.
    """
    name, kind, args, how = case
    value = INPUTS[kind]
    with module.Graph().as_default():
        sizes = value.shape if known else (None,) * (value.ndim - 1) + value.shape[-1:]
        x = module.placeholder(value.dtype.name, sizes)
        made = getattr(module.image, name)(x, *args, **how)
        outputs = list(made) if isinstance(made, (list, tuple)) else [made]
        fetched = list(outputs)
        if value.dtype == np.float32 and outputs[0].dtype == np.float32:
            try:
                fetched += module.gradients([y * y for y in outputs], x)
            except LookupError:  # TensorFlow has none for some
                pass
        with module.Session() as session:
            return session.run([y for y in fetched if y is not None], {x: value})


def main() -> None:
    import tensorflow

    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    found = [
        [[y.dtype.name, np.round(y.astype(np.float64), 6).tolist()] for y in results(tf, case)]
        for case in CASES
    ]
    told = {"tensorflow": tensorflow.__version__, "results": found}
    RESULTS.write_text(json.dumps(told, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
