"""Loops that are generated for what several operations compute element by element, or row by row.

`formulas` says what an operation does to one element, by `words` of LLVM's intermediate language
and the `functions` that it lacks, `expansions` what one does to rows. `loop` is what a kernel
computes, as data; `nest` writes it. `updates` and `change` are the same for updates of variables.
`machine` has the text compiled, `kept` keeps what was compiled, `call` is how Python calls it.
"""
