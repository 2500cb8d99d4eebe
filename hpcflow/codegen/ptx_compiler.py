"""PTX compiler for NVIDIA GPUs: llvmlite compiles LLVM IR to PTX, CuPy loads it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

TRIPLE = "nvptx64-nvidia-cuda"
KNOWN_TARGETS = (
    70,
    75,
    80,
    86,
    90,
)  # compute capabilities of targets; later GPUs run the last one's PTX


@functools.cache
def absent() -> str:
    """Why nothing can be compiled for GPUs here; "" if it can. llvmlite must not be absent."""
    try:
        _target(KNOWN_TARGETS[0])
    except RuntimeError as error:
        return f"this llvmlite makes no code for GPUs: {error}"
    return ""


def too_old(cuda: Any) -> str:
    """Why nothing can be compiled for the current GPU, "" if it can; `cuda` is CuPy's."""
    capability = int(cuda.Device().compute_capability)
    return (
        ""
        if capability >= KNOWN_TARGETS[0]
        else f"it is sm_{capability}, code is made from sm_{KNOWN_TARGETS[0]} on"
    )


@functools.cache
def _target(number: int) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=f"sm_{number}", opt=3)


def assembled(texts: Iterable[str], number: int) -> bytes:
    """The PTX of several modules linked together, for a GPU of this compute capability."""
    import llvmlite.binding as llvm

    machine = _target(number)
    joined = llvm.parse_assembly(f'target triple = "{TRIPLE}"')
    for text in texts:
        module = llvm.parse_assembly(f'target triple = "{TRIPLE}"\n{text}')
        module.verify()
        joined.link_in(module)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(joined, builder)
    return machine.emit_assembly(joined).encode()


class PtxCompiler:
    """The compiler for the current GPU, and the code that this process has loaded."""

    def __init__(self, cuda: Any) -> None:
        import llvmlite

        self.cuda = cuda
        capability = int(cuda.Device().compute_capability)
        self.number = max(n for n in KNOWN_TARGETS if n <= capability)
        toolchain = repr((TRIPLE, self.number, llvmlite.__version__))
        self.identity = hashlib.sha256(toolchain.encode()).hexdigest()
        self.modules: dict[str, Any] = {}  # the name of a kernel -> the module that contains it

    def build(self, texts: Iterable[str]) -> bytes:
        """The PTX of several modules linked together."""
        return assembled(texts, self.number)

    def load(self, code: bytes, names: Iterable[str]) -> None:
        """Load PTX, so that the kernels `names` in it can be called."""
        module = self.cuda.function.Module()
        module.load(code)
        self.modules.update(dict.fromkeys(names, module))

    def kernel(self, name: str, part: str = "") -> Any:
        """The loaded function `name`, or its part: `f(grid, block, arguments)`."""
        return self.modules[name].get_function(name + part)


@functools.cache
def gpu(cuda: Any) -> PtxCompiler:
    """The compiler of this process, by CuPy's `cupy.cuda`."""
    return PtxCompiler(cuda)
