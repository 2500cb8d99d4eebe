"""ONNX backend interface: prepare a model and run it on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from hpcflow.errors import DeviceError, OnnxError
from hpcflow.graph.graph import Graph
from hpcflow.onnx.element_types import carried, from_onnx, is_narrow
from hpcflow.onnx.importer import Importer, import_model, name_for
from hpcflow.onnx.importers.constant_propagation import UnknownValueError
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.runtime.session.session import Session

# most cached graphs of a model, per input shapes and shape-determining values
MAX_CACHED_GRAPHS = 16


class PreparedModel(BackendRep):
    """A model prepared to run: a graph and a session, rebuilt for new shape-determining values."""

    def __init__(self, model: onnx.ModelProto, device: str) -> None:
        self.model, self.device = model, device
        initial = {proto.name for proto in model.graph.initializer}
        self.names = [v.name for v in model.graph.input if v.name not in initial]
        self._types = [v.type.tensor_type.elem_type for v in model.graph.output]
        self._exact = False  # whether sizes left open by the model must be known
        self._fixed: set[str] = set()  # inputs whose values are constants of the graph
        self._cached_graphs: dict[Any, SpecializedGraph] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for `inputs`: arrays in order or by name, or a single array."""
        if kwargs:
            raise OnnxError(f"unknown options {sorted(kwargs)}")
        if isinstance(inputs, Mapping):
            arrays = {name: carried(np.asarray(value)) for name, value in inputs.items()}
        else:
            feeds = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            arrays = {n: carried(np.asarray(v)) for n, v in zip(self.names, feeds, strict=True)}
        outputs = self._ready(arrays).run(arrays)
        return tuple(
            a.astype(onnx.helper.tensor_dtype_to_np_dtype(t)) if is_narrow(t) else a
            for a, t in zip(outputs, self._types, strict=True)
        )

    def _ready(self, arrays: Mapping[str, np.ndarray]) -> SpecializedGraph:
        while True:
            fixed = {name: arrays[name] for name in sorted(self._fixed)}
            fed = {name: a for name, a in arrays.items() if name not in fixed}
            shapes = {name: a.shape for name, a in fed.items()} if self._exact else {}
            key = (
                tuple((name, a.shape, a.tobytes()) for name, a in fixed.items()),
                tuple(shapes.items()),
            )
            if key in self._cached_graphs:
                return self._cached_graphs[key]
            try:
                ready = SpecializedGraph(self.model, fixed, shapes, self.device)
            except UnknownValueError as missing:
                if not self._exact:
                    self._exact = True
                    continue
                missing_inputs = set(missing.inputs) & set(arrays)
                if not missing_inputs - self._fixed:
                    raise
                self._fixed |= missing_inputs
                continue
            if len(self._cached_graphs) >= MAX_CACHED_GRAPHS:
                del self._cached_graphs[next(iter(self._cached_graphs))]
            self._cached_graphs[key] = ready
            return ready


class SpecializedGraph:
    """A graph of the model with constants for some inputs, shapes for others, and its session."""

    def __init__(
        self,
        model: onnx.ModelProto,
        fixed: Mapping[str, np.ndarray],
        shapes: Mapping[str, tuple[int, ...]],
        device: str,
    ) -> None:
        graph = Graph()
        types = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
        with graph.as_default(), graph.device(device):
            graph_inputs: dict[str, Any] = dict(fixed)
            for name, shape in shapes.items():
                graph_inputs[name] = placeholder(from_onnx(types[name]), shape, name_for(name))
            imported = import_model(model, graph_inputs, trainable=False)
        self.fed = {name: t for name, t in imported.inputs.items() if name not in fixed}
        self.fetches = list(imported.outputs.values())
        self.session = Session(graph)

    def run(self, arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Compute the outputs."""
        feeds = {tensor: arrays[name] for name, tensor in self.fed.items()}
        return tuple(self.session.run(self.fetches, feeds))


class HpcflowBackend(Backend):
    """ONNX backend hpcflow: `HpcflowBackend.prepare(model).run(arrays)`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported, apart from unknown shapes."""
        if not cls.supports_device(device):
            return False
        try:
            with Graph().as_default():
                Importer(model, False).run({})
        except UnknownValueError:
            return True
        except OnnxError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """The model as an object whose `run` computes it on arrays."""
        if not cls.supports_device(device):
            raise DeviceError(f"device {device!r} is not available here")
        return PreparedModel(model, _device(device))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of a model for `inputs`."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node for `inputs`, arrays in order; by default of the newest opset."""
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        arrays = [np.asarray(x) for x in inputs]
        names = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
            )
            for name, a in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        return cls.prepare(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for CPU; for CUDA if this process has a GPU."""
        kind = Device(device).type
        if kind == DeviceType.CUDA:
            from hpcflow.runtime.device.device import device_names

            return device_names(False, 0)[0].startswith("gpu")
        return bool(kind == DeviceType.CPU)


def _device(device: str) -> str:
    """The hpcflow name of the device."""
    parsed = Device(device)
    return f"/{'gpu' if parsed.type == DeviceType.CUDA else 'cpu'}:{parsed.device_id}"


is_compatible = HpcflowBackend.is_compatible
prepare = HpcflowBackend.prepare
run_model = HpcflowBackend.run_model
run_node = HpcflowBackend.run_node
supports_device = HpcflowBackend.supports_device
