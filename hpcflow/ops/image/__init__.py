"""Image ops: transformations of images, composed of other ops."""
