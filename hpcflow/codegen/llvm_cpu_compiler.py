"""Compile LLVM's text for this processor, by llvmlite."""

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
    """Why nothing can be compiled here, "" if it can."""
    if importlib.util.find_spec("llvmlite") is None:
        return f"llvmlite is not installed: {install_hint('fast')}"
    if object.__basicsize__ != 16 or sys.maxsize < 2**32:
        return "this Python's objects are laid out in another way"
    return ""


def version() -> str:
    """Which compiler makes code, and for which processor; it must not be absent."""
    return machine().identity


class Machine:
    """This processor, and the code that this process has loaded for it."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        triple = llvm.get_default_triple()
        # `jit`: addresses of 64 bits. With those of 32 bits kernels read wrong constants, since the
        # loader puts code and constants anywhere and does not notice what does not fit.
        self.target = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=3, jit=True
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.target)
        compiler = llvmlite.__version__, llvm.llvm_version_info
        thread_team.load()
        llvm.add_symbol(thread_team.NAME, thread_team.ADDRESS)
        made = repr((triple, cpu, features, compiler, thread_team.SHARED))
        self.identity = hashlib.sha256(made.encode()).hexdigest()

    def build(self, texts: Iterable[str]) -> bytes:
        """The object code of several modules together."""
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
        """Make the functions of some object code ready to be called."""
        self.engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def builtin(self, name: str) -> Callable[..., Any]:
        """The function `name` of what was loaded, called with Python objects."""
        return python_call_abi.function(self.engine.get_function_address(name), name)


_lock = threading.Lock()


def machine() -> Machine:
    """The one of this process, whatever threads ask for it first."""
    with _lock:
        return _made()


@functools.cache
def _made() -> Machine:
    return Machine()
