"""Kernel code generation: LLVM IR of elementwise and row-wise loops, for CPUs and GPUs.

`elementwise_formulas` and `optimizer_formulas` define operations on one element, with
`llvm_builder` and `vector_math`; `row_op_decomposition` defines operations on rows. `fused_loop_ir`
describes a fused kernel as data; `llvm_cpu_codegen` and `ptx_codegen` generate its LLVM IR, and
`variable_update_codegen` that of variable updates. `llvm_cpu_compiler` and `ptx_compiler` compile
it, `kernel_cache` caches the object code, `python_call_abi` is the calling convention.
"""
