"""LLVM JIT compiler for the CPU, by llvmlite."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from hpcflow.codegen import python_call_abi, thread_team
from hpcflow.platform.install_hints import install_hint


def absent() -> str:
    """Why nothing can be compiled here; "" if it can."""
    if importlib.util.find_spec("llvmlite") is None:
        return f"llvmlite is not installed: {install_hint('fast')}"
    if object.__basicsize__ != 16 or sys.maxsize < 2**32:
        return "this Python's objects are laid out in another way"
    return ""


def version() -> str:
    """The identity of the compiler and CPU; the compiler must not be absent."""
    return machine().identity


class CpuCompiler:
    """The compiler for this CPU, and the code that this process has loaded."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        triple = llvm.get_default_triple()
        # `jit`: 64-bit addresses. With 32-bit addresses kernels read wrong constants: the loader
        # puts code and constants anywhere and does not check for relocation overflow.
        self.target = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=3, jit=True
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.target)
        compiler = llvmlite.__version__, llvm.llvm_version_info
        thread_team.load()
        llvm.add_symbol(thread_team.NAME, thread_team.ADDRESS)
        toolchain = repr((triple, cpu, features, compiler, thread_team.SHARED))
        self.identity = hashlib.sha256(toolchain.encode()).hexdigest()

    def build(self, texts: Iterable[str]) -> bytes:
        """The object code of several modules linked together."""
        joined = self.llvm.parse_assembly(thread_team.SHARED)
        for text in texts:
            module = self.llvm.parse_assembly(text)
            module.verify()
            joined.link_in(module)
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.loop_unrolling = True
        builder = self.llvm.create_pass_builder(self.target, options)
        builder.getModulePassManager().run(joined, builder)
        return bytes(self.target.emit_object(joined))

    def load(self, code: bytes, names: Iterable[str]) -> None:
        """Load object code, so that its functions can be called."""
        self.engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def builtin(self, name: str) -> Callable[..., Any]:
        """The loaded function `name` as a Python built-in function."""
        return python_call_abi.function(self.engine.get_function_address(name), name)


_lock = threading.Lock()


def machine() -> CpuCompiler:
    """The compiler of this process; safe to call from any thread."""
    with _lock:
        return _create_engine()


@functools.cache
def _create_engine() -> CpuCompiler:
    return CpuCompiler()
