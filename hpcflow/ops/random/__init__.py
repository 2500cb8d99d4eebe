"""Counter-based random ops and distributions, with their kernels."""
