"""Array ops: shapes, slicing, indexing, concatenation and reordering, with kernels."""
