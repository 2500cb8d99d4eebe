"""ONNX importer: model -> graph; initializers become variables or constants, nodes operations."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from hpcflow.errors import MALFORMED, HpcflowError, OnnxError
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.onnx.element_types import carried, from_onnx, is_narrow, to_onnx
from hpcflow.onnx.importers import importer_table
from hpcflow.onnx.importers.constant_propagation import ConstantValues
from hpcflow.onnx.importers.import_scope import ImportScope
from hpcflow.onnx.importers.onnx_node import OnnxNode, values_of
from hpcflow.onnx.importers.opset6_broadcasting import aligned
from hpcflow.onnx.unsupported_operators import OPS as DECLINED
from hpcflow.ops.array.array_ops import constant, placeholder
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.artifact_cache import as_path

OLDEST = 6
Trainable = bool | Callable[[str, np.ndarray], bool]


@dataclasses.dataclass(frozen=True)
class Imported:
    """An imported model: inputs, outputs and variables by their ONNX names."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    variables: dict[str, Variable]


def import_model(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    trainable: Trainable = True,
) -> Imported:
    """Build an ONNX model in the default graph.

    `inputs` gives tensors or arrays for some inputs; the others become placeholders. With
    `trainable`, floating-point initializers of rank 1 or more become variables, or those for which
    `trainable(name, array)` is true. All others become constants; with False all do.
    Errors: OnnxError names an unsupported node and the reason; also for data that is no model, and
            for missing files of external tensors. OSError.
    """
    try:
        return Importer(_loaded(model), trainable).run(inputs or {})
    except HpcflowError:
        raise
    except MALFORMED as error:
        raise OnnxError(f"the model is malformed: {error!r}") from error


def _loaded(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Load a model. Errors: OnnxError, OSError."""
    try:
        if isinstance(model, bytes):
            model = onnx.load_model_from_string(model)
        elif not isinstance(model, onnx.ModelProto):
            model = onnx.load(as_path(model, "model"))
    except (DecodeError, onnx.checker.ValidationError) as error:
        name = "these bytes" if isinstance(model, bytes) else str(model)
        raise OnnxError(f"{name} is not an ONNX model: {error}") from error
    if not model.graph.output:
        raise OnnxError("the model has no outputs", hint="check that it is an ONNX model")
    return model


class Importer:
    """The import of one model into the default graph."""

    def __init__(self, model: onnx.ModelProto, trainable: Trainable) -> None:
        self.model, self.trainable = model, trainable
        self.values = ConstantValues()
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.variables: dict[str, Variable] = {}
        self.narrow: dict[Tensor, int] = {}  # tensors with values of a narrower type

    def mark(self, tensor: Tensor, elem_type: int) -> Tensor:
        """Record that `tensor` has values of `elem_type`."""
        if is_narrow(elem_type):
            self.narrow[tensor] = elem_type
        return tensor

    def run(self, input_values: Mapping[str, Any]) -> Imported:
        """Build the whole model."""
        graph = self.model.graph
        scope = ImportScope(self, versions_of(self.model.opset_import))
        self._check_version(scope.versions)
        initial = self._initializers(graph, scope, self.trainable)
        graph_inputs = [v for v in graph.input if v.name not in initial]
        unknown = set(input_values) - {v.name for v in graph_inputs}
        if unknown:
            names = ", ".join(v.name for v in graph_inputs)
            raise OnnxError(f"the model has no inputs {sorted(unknown)}", hint=f"it has {names}")
        inputs = {v.name: self._input(v, input_values.get(v.name)) for v in graph_inputs}
        scope.values.update(inputs)
        self._nodes(graph, scope)
        outputs = {v.name: scope.find(v.name) for v in graph.output}
        return Imported(inputs, outputs, self.variables)

    def _check_version(self, versions: Mapping[str, int]) -> None:
        version, newest = versions.get("", OLDEST), onnx.defs.onnx_opset_version()
        old = version < OLDEST and any(changed(n, version) for n in self.model.graph.node)
        if old or version > newest:
            raise OnnxError(
                f"the model has opset {version}; supported are opsets {OLDEST} to {newest}",
                hint="convert it with onnx.version_converter.convert_version",
            )

    def _input(self, info: onnx.ValueInfoProto, argument: Any) -> Tensor:
        if info.type.WhichOneof("value") != "tensor_type":
            kind = info.type.WhichOneof("value")
            raise OnnxError(f"input {info.name!r} is a {kind}, only tensors are supported")
        elem_type = info.type.tensor_type.elem_type
        dtype = from_onnx(elem_type)
        if argument is not None and not isinstance(argument, Tensor):
            tensor = constant(np.asarray(argument, dtype), name=name_for(info.name))
        elif argument is not None:
            tensor = convert_to_tensor(argument, dtype)
        else:
            tensor = placeholder(dtype, shape_of(info), name_for(info.name))
        if tensor.spec.value is None:
            self.values.inputs[tensor.op] = info.name
        return self.mark(tensor, elem_type)

    def _initializers(
        self, graph: onnx.GraphProto, scope: ImportScope, trainable: Trainable
    ) -> set[str]:
        if graph.sparse_initializer:
            raise OnnxError(
                f"initializer {graph.sparse_initializer[0].values.name!r} is sparse, "
                "which is not supported"
            )
        for proto in graph.initializer:
            array = carried(values_of(proto))
            tensor = self._initializer(proto.name, array, trainable)
            scope.values[proto.name] = self.mark(tensor, proto.data_type)
        return {proto.name for proto in graph.initializer}

    def _initializer(self, name: str, array: np.ndarray, trainable: Trainable) -> Tensor:
        varies = trainable(name, array) if callable(trainable) else trainable and array.ndim > 0
        if not varies or array.dtype.kind != "f":
            return constant(array, name=name_for(name))
        self.variables[name] = variable = Variable(array, name=name_for(name))
        self.values.initializers[variable.fetched] = array
        return variable.fetched

    # -- graphs and nodes

    def _nodes(self, graph: onnx.GraphProto | onnx.FunctionProto, scope: ImportScope) -> None:
        for proto in graph.node:
            self._node(proto, scope)

    def body(
        self, graph: onnx.GraphProto, inputs: Sequence[Tensor], outer: ImportScope
    ) -> list[Tensor]:
        """Build a subgraph attribute; it can use names of enclosing graphs."""
        scope = ImportScope(self, outer.versions, outer, outer.attributes)
        self._initializers(graph, scope, False)
        scope.values.update(zip((v.name for v in graph.input), inputs, strict=False))
        self._nodes(graph, scope)
        return [scope.find(v.name) for v in graph.output]

    def _node(self, proto: onnx.NodeProto, scope: ImportScope) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        version = scope.versions.get(domain, 1)
        node = OnnxNode(proto, scope, version)
        inputs = [scope.find(name) if name else None for name in proto.input]
        with get_default_graph().name_scope(name_for(proto.name) if proto.name else None):
            try:
                outputs = self._build(node, domain, inputs)
            except HpcflowError as error:
                if "ONNX " not in error.message:
                    error.message = f"{node.description}: {error.message}"
                raise
            except MALFORMED as error:
                raise OnnxError(f"{node.description} cannot be built: {error!r}") from error
        if len(outputs) < sum(map(bool, proto.output)):
            raise node.declined(
                f"it has {len(proto.output)} outputs, but {len(outputs)} are supported"
            )
        for name, tensor in zip(proto.output, outputs, strict=False):
            if name and tensor is not None:
                scope.values[name] = tensor

    def _build(
        self, node: OnnxNode, domain: str, inputs: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """The outputs of a node: by a model function, the table, or the standard's body."""
        model_function = self.functions.get((node.proto.domain, node.type))
        if model_function is not None:
            return self._call(model_function, node, inputs)
        row = importer_table.find_importer(domain, node.type, node.version)
        if row is not None:
            outputs = row.build(node, *(inputs if domain else aligned(node, inputs)))
            return [outputs] if isinstance(outputs, Tensor) else outputs
        if node.type in DECLINED:
            raise node.declined(DECLINED[node.type])
        types = [self._type(t) for t in inputs]
        function = standard_function(node.resolved(), domain, node.version, types)
        if function is None:
            raise node.declined(f"the operator is not known in opset {node.version} of {domain!r}")
        return self._call(function, node, inputs)

    def _type(self, tensor: Tensor | None) -> onnx.TypeProto:
        """The ONNX type of an input; an empty type if it is omitted."""
        if tensor is None:
            return onnx.TypeProto()
        elem_type = self.narrow.get(tensor) or to_onnx(tensor.dtype)
        return onnx.helper.make_tensor_type_proto(elem_type, tensor.shape)

    def _call(
        self, function: onnx.FunctionProto, node: OnnxNode, inputs: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Inline the body of a function with these inputs."""
        attributes = {a.name: a for a in function.attribute_proto}
        attributes.update(default_attributes(node.proto, node.version))
        attributes.update(node.attributes)
        versions = versions_of(function.opset_import) or node.scope.versions
        scope = ImportScope(self, versions, node.scope, attributes)
        names = list(function.input)
        bound = zip(names, inputs, strict=False)
        scope.values.update((name, tensor) for name, tensor in bound if tensor is not None)
        absent = set(names) - set(scope.values)
        for proto in function.node:
            self._node(_drop_missing_inputs(proto, absent), scope)
        return [scope.values.get(name) for name in function.output]


def _drop_missing_inputs(proto: onnx.NodeProto, absent: set[str]) -> onnx.NodeProto:
    """A node of a function without the inputs that its call omits."""
    if not absent.intersection(proto.input):
        return proto
    changed = onnx.NodeProto()
    changed.CopyFrom(proto)
    changed.input[:] = ["" if name in absent else name for name in proto.input]
    return changed


def changed(proto: onnx.NodeProto, version: int) -> bool:
    """Whether the operator of an old opset differs from that in the oldest imported opset."""
    try:
        now = onnx.defs.get_schema(proto.op_type, OLDEST, proto.domain)
        return now.since_version > version
    except onnx.defs.SchemaError:
        return True


def versions_of(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Opset version by domain."""
    return {"" if i.domain == "ai.onnx" else i.domain: i.version for i in imports}


def standard_function(
    proto: onnx.NodeProto, domain: str, version: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """The function body that the ONNX standard gives for an operator, if any."""
    try:
        schema: Any = onnx.defs.get_schema(proto.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    function = onnx.FunctionProto()
    body_version = _body_version(schema.function_opset_versions, version)
    if body_version is not None:
        function.ParseFromString(schema.get_function_with_opset_version(body_version))
        return function
    body_version = _body_version(schema.context_dependent_function_opset_versions, version)
    if body_version is None:
        return None
    complete_node = onnx.NodeProto()
    complete_node.CopyFrom(proto)
    attribute_names = {a.name for a in proto.attribute}
    complete_node.attribute.extend(
        a for n, a in default_attributes(proto, version).items() if n not in attribute_names
    )
    body = schema.get_context_dependent_function_with_opset_version(
        body_version, complete_node.SerializeToString(), [t.SerializeToString() for t in types]
    )
    function.ParseFromString(body)
    return function


def _body_version(versions: Sequence[int], requested_version: int) -> int | None:
    """The newest opset of a body up to `requested_version`; otherwise its oldest."""
    if not versions:
        return None
    return max((v for v in versions if v <= requested_version), default=min(versions))


def default_attributes(proto: onnx.NodeProto, version: int) -> dict[str, onnx.AttributeProto]:
    """The default values of attributes in the standard, by name."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except onnx.defs.SchemaError:
        return {}
    return {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}


def shape_of(info: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """The declared shape of an input; None for symbolic sizes."""
    tensor_type = info.type.tensor_type
    if not tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor_type.shape.dim)


def name_for(name: str) -> str:
    """A valid operation name for an ONNX name."""
    name = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"x{name}"
