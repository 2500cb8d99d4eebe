"""Control flow ops: conditionals, loops, TensorArrays, assertions, callbacks, with kernels."""
