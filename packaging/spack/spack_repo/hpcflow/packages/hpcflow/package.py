# SPDX-License-Identifier: Apache-2.0
"""The Spack package of hpcflow; tests/test_packaging.py compares it with pyproject.toml."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class Hpcflow(PythonPackage):
    """Trains models on supercomputers as one dataflow graph over MPI ranks."""

    # There is no release archive: build from a clone, spack develop --path CLONE hpcflow@=0.1.0
    license("Apache-2.0")

    version("0.1.0")

    variant("fast", default=True, description="Generate code by LLVM")
    variant("onnx", default=False, description="Import, export and run ONNX models")
    variant("plot", default=False, description="Draw reports")
    variant("tensorboard", default=False, description="Write events for TensorBoard")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.18:", type="build")

    depends_on("py-numpy@1.23:", type=("build", "run"))
    depends_on("py-ml-dtypes@0.3:", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-h5py@3.8:", type=("build", "run"))

    depends_on("py-llvmlite@0.44:", type=("build", "run"), when="+fast")
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"), when="+fast")
    depends_on("py-onnx@1.16:", type=("build", "run"), when="+onnx")
    depends_on("py-onnxruntime@1.17:", type=("build", "run"), when="+onnx")
    depends_on("py-matplotlib@3.7:", type=("build", "run"), when="+plot")
    depends_on("py-tensorboardx@2.6:", type=("build", "run"), when="+tensorboard")
