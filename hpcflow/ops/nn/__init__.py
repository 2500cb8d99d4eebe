"""Activations, convolutions, pooling, normalization, losses and embeddings, with their kernels."""
