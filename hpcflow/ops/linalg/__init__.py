"""Matrix products, decompositions, einsum and Fourier transforms, with their kernels."""
