"""Rewrites by the rules of matrices: the same values from fewer copies and larger products."""
