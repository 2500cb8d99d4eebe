"""Algebraic simplification: larger matrix products, fewer copies, the same values."""
