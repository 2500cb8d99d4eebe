"""Image functions `hf.image`: names of TensorFlow 1's `tf.image`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.array.space_depth_ops import extract_image_patches
from hpcflow.ops.image.image_colors import (
    adjust_brightness,
    adjust_contrast,
    adjust_gamma,
    adjust_hue,
    adjust_saturation,
    convert_image_dtype,
    grayscale_to_rgb,
    hsv_to_rgb,
    per_image_standardization,
    random_brightness,
    random_contrast,
    random_hue,
    random_saturation,
    rgb_to_grayscale,
    rgb_to_hsv,
)
from hpcflow.ops.image.image_resize import (
    ResizeMethod,
    resize_bilinear,
    resize_images,
    resize_nearest_neighbor,
)
from hpcflow.ops.image.image_transforms import (
    central_crop,
    crop_to_bounding_box,
    flip_left_right,
    flip_up_down,
    image_gradients,
    pad_to_bounding_box,
    psnr,
    random_flip_left_right,
    random_flip_up_down,
    resize_image_with_crop_or_pad,
    rot90,
    total_variation,
    transpose_image,
)
from hpcflow.ops.random.shuffle_multinomial import random_crop
from hpcflow.platform.exception_translation import guard_module

resize, transpose = resize_images, transpose_image
resize_with_crop_or_pad = resize_image_with_crop_or_pad

__all__ = [
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_to_bounding_box",
    "extract_image_patches",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "image_gradients",
    "pad_to_bounding_box",
    "per_image_standardization",
    "psnr",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_bilinear",
    "resize_image_with_crop_or_pad",
    "resize_images",
    "resize_nearest_neighbor",
    "resize_with_crop_or_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rot90",
    "total_variation",
    "transpose",
    "transpose_image",
]

guard_module(globals(), __all__)
