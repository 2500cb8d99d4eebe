"""Image transforms, made of other ops."""
