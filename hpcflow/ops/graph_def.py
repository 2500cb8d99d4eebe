"""GraphDef: a graph as plain data for JSON, exported and imported.

{"format": FORMAT, "seed": int, "nodes": [...], "bodies": [...], "collections": {name: [...]}}: a
node is an operation with its name, type, inputs, control inputs, attributes, device and colocation,
in order of creation. A body has the nodes of a function (loop body, condition or branch);
attributes refer to it by number.
"""

from __future__ import annotations

import base64
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import as_dtype, string, text_of
from hpcflow.graph.function_body import Function, FunctionBody
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.string_encoding import decode_strings, encode_strings
from hpcflow.ops.variables.variable_ops import Variable, variable_of_op

FORMAT = "hpcflow-graph-1"
GraphDef = dict[str, Any]

# -- export


def as_graph_def(graph: Graph) -> GraphDef:
    """The graph as plain data, for `hf.import_graph_def`, without lines of the program.

    Its collections are exported with variables, operations, tensors, strings and numbers.
    Errors: GraphError for an operation with a Python function.
    """
    names = graph.get_all_collection_keys()
    collections = {
        name: [_item_out(item, graph) for item in graph.get_collection(name)] for name in names
    }
    bodies = _BodyWriter()
    nodes = [_node_out(op, bodies) for op in graph.get_operations()]
    return {
        "format": FORMAT,
        "seed": graph.seed or 0,
        "nodes": nodes,
        "bodies": bodies.written,
        "collections": {name: [x for x in items if x] for name, items in collections.items()},
    }


class _BodyWriter:
    """The exported bodies, each written once, since functions may share one."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}

    def function(self, f: Function) -> list[Any]:
        """A function: the number of its body, and the names of its inputs and outputs."""
        if id(f.body) not in self._numbers:
            nodes = [_node_out(op, self) for op in f.body.get_operations()]
            self._numbers[id(f.body)] = len(self.written)
            self.written.append({"name": f.body.prefix[:-1], "nodes": nodes})
        return [
            "function",
            self._numbers[id(f.body)],
            [t.name for t in f.params],
            [[outer.name, param.name] for outer, param in f.captures],
            [t.name for t in f.results],
            [op.name for op in f.targets],
        ]


def _node_out(op: Operation, bodies: _BodyWriter) -> dict[str, Any]:
    try:
        attrs = {
            name: bodies.function(value) if isinstance(value, Function) else _value_out(value)
            for name, value in op.attrs.items()
        }
    except TypeError as error:
        raise GraphError(
            f"{op.name!r} ({op.type}) cannot be exported: {error}",
            op=op.name,
            line=op.line,
            hint="export the graph without it",
        ) from None
    return {
        "name": op.name,
        "type": op.type,
        "inputs": [t.name for t in op.inputs],
        "control": [c.name for c in op.control_inputs],
        "attrs": attrs,
        "shapes": [None if t.shape is None else list(t.shape) for t in op.outputs],
        "device": op.device,
        "colocate": list(op.colocate),
    }


def _value_out(value: Any) -> Any:
    """An attribute value: None, bool, int and str as they are, others as [kind, ...]."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    if isinstance(value, np.dtype):
        return ["dtype", text_of(value)]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, [_value_out(v) for v in value]]
    if isinstance(value, Mapping):
        return ["dict", {str(key): _value_out(v) for key, v in value.items()}]
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        data = encode_strings(array) if as_dtype(array.dtype) == string else array.tobytes()
        return ["array", text_of(array.dtype), list(array.shape), _text(data)]
    raise TypeError(f"a {type(value).__name__} cannot be serialized")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _item_out(item: Any, graph: Graph) -> Any:
    if isinstance(item, Variable) and item.graph is graph:
        names = (item.op.name, item.initializer.name, item.fetched.name)
        return ["variable", *names, item.trainable]
    if isinstance(item, (Tensor, Operation)) and item.graph is graph:
        return ["tensor" if isinstance(item, Tensor) else "operation", item.name]
    if isinstance(item, (str, int, float)):
        return ["value", _value_out(item)]
    return None


# -- import


def import_graph_def(
    graph_def: Mapping[str, Any],
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Tensor | Operation] | None:
    """Add the operations of `graph_def` to the default graph, with names under `name/`.

    `name` None means "import"; "" keeps the names. `input_map` maps names in the data ("x:0" or
    "x") to replacement tensors. Returns the operations or tensors named by `return_elements`. The
    contents of collections are added to those of the graph, variables as variables.
    Errors: GraphError for malformed data, a name that is in use, or an unknown name.
    """
    graph = get_default_graph()
    scope = graph.name_scope("import" if name is None else name)
    with scope as prefix, graph.control_dependencies(None):
        reader = _GraphReader(graph, prefix, input_map or {})
        try:
            reader.read(graph_def)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, GraphError):
                raise
            raise GraphError(f"this is not a graph in the format {FORMAT}: {error!r}") from None
        return None if return_elements is None else [reader.element(e) for e in return_elements]


class _GraphReader:
    """Creates the operations of a graph given as plain data."""

    def __init__(self, graph: Graph, prefix: str, input_map: Mapping[str, Any]) -> None:
        self.graph, self.prefix = graph, prefix
        self.input_map = {
            key if ":" in key else f"{key}:0": convert_to_tensor(value)
            for key, value in input_map.items()
        }
        self.ops: dict[str, Operation] = {}
        self.reservations = defaultdict[int, int](graph.new_reservation)  # number there -> here
        self.variables: dict[str, Variable] = {}
        self.bodies: dict[int, FunctionBody] = {}

    def read(self, graph_def: Mapping[str, Any]) -> None:
        if graph_def["format"] != FORMAT:
            raise ValueError(f"its format is {graph_def['format']!r}")
        self.written = graph_def["bodies"]
        there = {f"{n['name']}:{i}" for n in graph_def["nodes"] for i in range(len(n["shapes"]))}
        unknown = sorted(set(self.input_map) - there)
        if unknown:
            raise GraphError(f"input_map names {unknown[0]!r}, which the imported graph lacks")
        for node in graph_def["nodes"]:
            self.ops[node["name"]] = self._operation(node, self.graph)
        for name, items in graph_def["collections"].items():
            for item in items:
                self.graph.add_to_collection(name, self._item(*item))

    def element(self, name: str) -> Tensor | Operation:
        """The operation or tensor imported from `name`."""
        if ":" in name:
            return self._tensor(name)
        if name not in self.ops:
            raise GraphError(f"the imported graph has no operation {name!r}")
        return self.ops[name]

    def _tensor(self, name: str) -> Tensor:
        if name in self.input_map:
            return self.input_map[name]
        op, _, index = name.rpartition(":")
        if op not in self.ops or int(index) >= len(self.ops[op].outputs):
            raise GraphError(f"the imported graph has no tensor {name!r}")
        return self.ops[op].outputs[int(index)]

    def _function(
        self, outer: Graph, number: int, params: Any, captures: Any, results: Any, targets: Any
    ) -> Function:
        """A function of a body in `outer`, created at its first use."""
        if number not in self.bodies:
            body_def = self.written[number]
            body = self.bodies[number] = FunctionBody(outer, body_def["name"])
            for node in body_def["nodes"]:
                with body.inside(), body.device(None):
                    self.ops[node["name"]] = self._operation(node, body)
        body = self.bodies[number]
        pairs = tuple((self._tensor(o), self._tensor(p)) for o, p in captures)
        for outer_tensor, param in pairs:
            body.capture(outer_tensor, param)
        return Function(
            body,
            tuple(self._tensor(t) for t in params),
            pairs,
            tuple(self._tensor(t) for t in results),
            tuple(self.ops[t] for t in targets),
        )

    def _device(self, text: str) -> str:
        """The constraint with new numbers of its reservations, as the graph may have these."""
        wish = parse_device(text)
        memory = tuple(
            reservation._replace(scope=self.reservations[reservation.scope])
            for reservation in wish.needs.memory
        )
        return str(wish._replace(needs=wish.needs._replace(memory=memory)))

    def _operation(self, node: Mapping[str, Any], graph: Graph) -> Operation:
        expected_name = self.prefix + node["name"]
        full = self.graph.unique_name(node["name"])
        if full != expected_name:
            raise GraphError(
                f"the graph has an operation {expected_name!r} already",
                op=expected_name,
                hint="use another scope: import_graph_def(..., name='scope')",
            )
        with contextlib.ExitStack() as stack:
            for mate in node["colocate"]:
                stack.enter_context(graph.colocate_with(self.ops[mate]))
            stack.enter_context(graph.device(self._device(node["device"])))
            stack.enter_context(graph.control_dependencies([self.ops[c] for c in node["control"]]))
            attrs = {
                key: self._function(graph, *value[1:]) if _is_function(value) else _value_in(value)
                for key, value in node["attrs"].items()
            }
            inputs = [self._tensor(t) for t in node["inputs"]]
            extended = self.ops.get(node["attrs"].get("extends", ""))
            if extended is not None:
                attrs["extends"] = extended.name
            operation = graph.create_op(node["type"], inputs, attrs, f"{full}/")
            if extended is not None:
                graph.extensions[extended] = operation
        for t, shape in zip(operation.outputs, node["shapes"], strict=True):
            if shape is not None:
                t.set_shape(shape)
        return operation

    def _item(self, kind: str, value: Any, *more: Any) -> Any:
        if kind == "value":
            return _value_in(value)
        if kind != "variable":
            return self.element(value)
        if value not in self.variables:
            initializer, read, trainable = more
            self.variables[value] = variable_of_op(
                self.ops[value],
                self.ops[initializer],
                None if read is None else self._tensor(read),
                trainable,
            )
        return self.variables[value]


def _is_function(value: Any) -> bool:
    return isinstance(value, list) and value[:1] == ["function"]


def _value_in(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return _KINDS[value[0]](*value[1:])


def _array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    raw, kind = base64.b64decode(data), as_dtype(dtype)
    flat = decode_strings(raw, tuple(shape)) if kind == string else np.frombuffer(raw, kind)
    array = flat.reshape(shape)
    array.flags.writeable = False
    return array


_KINDS: dict[str, Callable[..., Any]] = {
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "bytes": base64.b64decode,
    "dtype": as_dtype,
    "tuple": lambda values: tuple(_value_in(v) for v in values),
    "list": lambda values: [_value_in(v) for v in values],
    "dict": lambda values: {key: _value_in(v) for key, v in values.items()},
    "array": _array,
}
