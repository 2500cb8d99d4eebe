"""Linear algebra ops: matrix products, decompositions, einsum, Fourier transforms, with kernels."""
