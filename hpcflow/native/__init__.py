"""Loops that are generated for what several operations compute element by element.

`formulas` says what an operation does to one element, by `words` of LLVM's intermediate language
and the `functions` that it lacks; `loop` writes a kernel of them, `machine` has it compiled and
`kept` keeps what was compiled.
"""
