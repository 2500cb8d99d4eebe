"""ONNX: import models into a graph, export inference graphs, and run models as a backend.

`hpcflow help onnx` lists what is not imported and exported.
"""

from __future__ import annotations

from hpcflow.errors import MissingPackageError
from hpcflow.platform.exception_translation import translate_module
from hpcflow.platform.install_hints import install_hint

try:
    import onnx  # noqa: F401  (what follows needs it; said here once what brings it)
except ImportError as error:
    raise MissingPackageError(
        "hpcflow.onnx needs the package onnx", hint=install_hint("onnx")
    ) from error

from hpcflow.onnx.backend import (
    HpcflowBackend,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)
from hpcflow.onnx.exporter import export_model
from hpcflow.onnx.importer import Imported, import_model

__all__ = [
    "HpcflowBackend",
    "Imported",
    "export_model",
    "import_model",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

translate_module(globals(), __all__)
