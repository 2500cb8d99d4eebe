"""Variable ops: state, scopes, initializers, partitions, sparse updates, with kernels."""
