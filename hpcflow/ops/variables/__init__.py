"""Variables: state, scopes, initializers, partitions, sparse updates, with their kernels."""
