"""Machine facts: processor, cores, GPUs and libraries, on which the times of kernels depend.

They choose the machine profile, the file of measured costs of this machine.
"""

from __future__ import annotations

import glob
import os
import platform
from pathlib import Path

import numpy as np

from hpcflow.codegen import llvm_cpu_compiler
from hpcflow.kernels import onednn_library
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile, profile_file

# Names in /proc/cpuinfo of x86, ARM and POWER.
MODEL = ("model name", "CPU implementer", "CPU variant", "CPU part", "cpu")
FLAGS = ("flags", "Features")


def machine_facts() -> dict[str, str]:
    """The facts by name: nodes with equal facts take the same time for a kernel."""
    processor = _first_processor()
    model = " ".join(processor[name] for name in MODEL if name in processor)
    flags = next((processor[name] for name in FLAGS if name in processor), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "flags": " ".join(sorted(flags.split())),
        "cores": str(os.cpu_count() or 1),
        "gpus": ", ".join(_gpus()),
        "numpy": np.__version__,
        "blas": blas_name(),
        "llvmlite": _llvmlite_version(),
        "onednn": "" if onednn_library.absent() else onednn_library.version(),
    }


def own_profile_file(folder: str) -> ProfileFile | None:
    """The profile of this machine in `folder`, the setting `cost_cache`; None if that is "none"."""
    return profile_file(machine_facts(), folder)


def own_profile(folder: str, otherwise: str) -> MachineProfile:
    """The costs in the profile of this machine, as `own_profile_file`; none if there is no file.

    A damaged file is a warning that tells what is done `otherwise`.
    """
    file = own_profile_file(folder)
    return file.read_or_warn(otherwise) if file is not None else MachineProfile()


def blas_name() -> str:
    """Name and version of the library that NumPy calls; "" if it does not tell."""
    config = getattr(np.__config__, "CONFIG", {})
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', '')} {blas.get('version', '')}".strip()


def _llvmlite_version() -> str:
    if llvm_cpu_compiler.absent():
        return ""
    import llvmlite

    return str(llvmlite.__version__)


def _first_processor(file: str = "/proc/cpuinfo") -> dict[str, str]:
    """The fields of the first processor; {} where the system has no such file."""
    try:
        block = Path(file).read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _gpus(pattern: str = "/proc/driver/nvidia/gpus/*/information") -> list[str]:
    """The models of NVIDIA's GPUs, as their driver reports them without CUDA."""
    models = []
    for file in sorted(glob.glob(pattern)):
        try:
            lines = Path(file).read_text(errors="replace").splitlines()
        except OSError:
            continue
        models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return models
