"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.array.space_depth_ops import extract_image_patches as extract_image_patches
from hpcflow.ops.image.image_colors import adjust_brightness as adjust_brightness
from hpcflow.ops.image.image_colors import adjust_contrast as adjust_contrast
from hpcflow.ops.image.image_colors import adjust_gamma as adjust_gamma
from hpcflow.ops.image.image_colors import adjust_hue as adjust_hue
from hpcflow.ops.image.image_colors import adjust_saturation as adjust_saturation
from hpcflow.ops.image.image_colors import convert_image_dtype as convert_image_dtype
from hpcflow.ops.image.image_colors import grayscale_to_rgb as grayscale_to_rgb
from hpcflow.ops.image.image_colors import hsv_to_rgb as hsv_to_rgb
from hpcflow.ops.image.image_colors import per_image_standardization as per_image_standardization
from hpcflow.ops.image.image_colors import random_brightness as random_brightness
from hpcflow.ops.image.image_colors import random_contrast as random_contrast
from hpcflow.ops.image.image_colors import random_hue as random_hue
from hpcflow.ops.image.image_colors import random_saturation as random_saturation
from hpcflow.ops.image.image_colors import rgb_to_grayscale as rgb_to_grayscale
from hpcflow.ops.image.image_colors import rgb_to_hsv as rgb_to_hsv
from hpcflow.ops.image.image_resize import ResizeMethod as ResizeMethod
from hpcflow.ops.image.image_resize import resize_bilinear as resize_bilinear
from hpcflow.ops.image.image_resize import resize_images as resize
from hpcflow.ops.image.image_resize import resize_images as resize_images
from hpcflow.ops.image.image_resize import resize_nearest_neighbor as resize_nearest_neighbor
from hpcflow.ops.image.image_transforms import central_crop as central_crop
from hpcflow.ops.image.image_transforms import crop_to_bounding_box as crop_to_bounding_box
from hpcflow.ops.image.image_transforms import flip_left_right as flip_left_right
from hpcflow.ops.image.image_transforms import flip_up_down as flip_up_down
from hpcflow.ops.image.image_transforms import image_gradients as image_gradients
from hpcflow.ops.image.image_transforms import pad_to_bounding_box as pad_to_bounding_box
from hpcflow.ops.image.image_transforms import psnr as psnr
from hpcflow.ops.image.image_transforms import random_flip_left_right as random_flip_left_right
from hpcflow.ops.image.image_transforms import random_flip_up_down as random_flip_up_down
from hpcflow.ops.image.image_transforms import resize_image_with_crop_or_pad as resize_image_with_crop_or_pad
from hpcflow.ops.image.image_transforms import resize_image_with_crop_or_pad as resize_with_crop_or_pad
from hpcflow.ops.image.image_transforms import rot90 as rot90
from hpcflow.ops.image.image_transforms import total_variation as total_variation
from hpcflow.ops.image.image_transforms import transpose_image as transpose
from hpcflow.ops.image.image_transforms import transpose_image as transpose_image
from hpcflow.ops.random.shuffle_multinomial import random_crop as random_crop
