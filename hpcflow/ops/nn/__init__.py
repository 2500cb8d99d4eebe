"""Neural network ops: activations, convolution, pooling, normalization, losses, embeddings."""
