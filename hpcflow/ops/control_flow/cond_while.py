"""Conditionals and loops: operations with function bodies that run depending on values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.composite_tensor import CompositeTensor
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import bool_, int32, tensor_array
from hpcflow.graph.function_body import Function, last_name, trace_function
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    user_line,
)
from hpcflow.graph.op_registry import NoGrad, lookup_op, op
from hpcflow.graph.static_shape import Shape, Spec, as_shape, common_shape, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.control_flow.cond_while_gradients import cond_gradient, while_gradient
from hpcflow.ops.control_flow.host_callback_ops import Assert
from hpcflow.ops.math.arithmetic_ops import add, cast, less, logical_and
from hpcflow.ops.math.reduction_ops import reduce_any, reduce_sum
from hpcflow.ops.shape_inference import Attrs, several

HISTORIES = ("keep", "host", "recompute")
_UNTOLD = object()  # an invariant that was not given


def _cond(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].shape not in (None, ()) or inputs[0].dtype != bool_:
        raise ShapeError(
            f"the predicate is {inputs[0].dtype} {shape_text(inputs[0].shape)}, not a scalar bool"
        )
    pairs = zip(attrs["then"].results, attrs["else"].results, strict=True)
    return [Spec(a.dtype, common_shape(a.shape, b.shape)) for a, b in pairs]


def _while(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    params = attrs["body"].params
    begin = params[: len(params) - attrs["lists"]]
    for init, param in zip(inputs, begin, strict=False):
        merge_shapes(init.shape, param.shape)
    return [Spec(p.dtype, p.shape) for p in params]


def _infer_from_attrs(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(dtype, shape) for dtype, shape in attrs["made"]]


_PLAN = NoGrad("inserted when the plan is made, after gradients are computed")
_FRAME: Attrs = {"infer": _infer_from_attrs, "grad": _PLAN, "stateful": True, "work": "start"}
op("Loop", control_flow="loop", **_FRAME)
op("LoopAcross", control_flow="loop", across_tasks=True, waits=True, **_FRAME)
op("Branch", control_flow="branch", **_FRAME)
op("BranchAcross", control_flow="branch", across_tasks=True, waits=True, **_FRAME)
op("If", infer=_cond, grad=cond_gradient, stateful=True, owner=True, control_flow="branch")
op("While", infer=_while, grad=while_gradient, stateful=True, owner=True, control_flow="loop")


# -- user values: structures of tensors and composite tensors


def components(leaf: Any) -> list[Any]:
    """The tensors of a leaf: the leaf itself, or the components of a composite."""
    return list(leaf.parts()) if hasattr(leaf, "parts") else [leaf]


def take_apart(structure: Any) -> tuple[list[Any], Callable[[Sequence[Tensor]], Any]]:
    """The tensors in a structure, and the function that packs such tensors into the structure."""
    leaves = nested_structure.flatten_structure(structure)
    parts = [components(leaf) for leaf in leaves]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rest, rebuilt = list(tensors), []
        for leaf, part in zip(leaves, parts, strict=True):
            leaf_tensors, rest = rest[: len(part)], rest[len(part) :]
            rebuilt.append(leaf.of(leaf_tensors) if hasattr(leaf, "parts") else leaf_tensors[0])
        return nested_structure.pack_structure(structure, rebuilt)

    return [t for part in parts for t in part], rebuild


# -- cond


@accepts_aliases(fn1="true_fn", fn2="false_fn")
def cond(
    pred: Any,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    strict: bool = False,
    name: str | None = None,
) -> Any:
    """`true_fn()` if `pred`, else `false_fn()`; only the branch taken runs.

    Both return the same structure of tensors with the same dtypes; sizes that differ are unknown in
    the result. A list of one tensor becomes that tensor unless `strict`. If both branches return
    only operations, so does cond. Tensors captured from outside are computed in any case.

    Gradient: through the branch taken.
    Errors:   GraphError or DTypeError if the branches differ; DTypeError for a Python bool.
    """
    if isinstance(pred, bool):
        raise DTypeError(
            f"the predicate of cond must be a tensor, not the Python bool {pred}",
            line=user_line(),
            hint="use Python's if, or hf.constant",
        )
    graph, pred = get_default_graph(), convert_to_tensor(pred)
    packed: list[Any] = []

    def branch(make: Callable[[], Any]) -> Function:
        return trace_function(
            graph, f"{name or 'cond'}/branch", [], make, lambda output: _branch(packed, output)
        )

    then, orelse = branch(true_fn), branch(false_fn)
    if bool(then.results) != bool(orelse.results):
        then, orelse = (_as_updates(f) for f in (then, orelse))
        packed = [[] if not f.results else g for f, g in zip((then, orelse), packed, strict=True)]
    nested_structure.check_same_structure(packed[0], packed[1], "the branches of cond")
    for a, b in zip(then.results, orelse.results, strict=True):
        if a.dtype != b.dtype:
            raise DTypeError(
                f"the branches of cond return {a.dtype} ({a.name!r}) and {b.dtype} ({b.name!r})",
                line=user_line(),
                hint="hf.cast one of them",
            )
    inputs = [pred, *then.outer, *orelse.outer]
    operation = graph.create_op("If", inputs, {"then": then, "else": orelse}, name or "cond")
    if not operation.outputs:
        return operation
    result = take_apart(packed[0])[1](_results(operation, "Merge"))
    single = isinstance(result, (list, tuple)) and len(result) == 1 and not strict
    return result[0] if single else result


def _branch(packed: list[Any], output: Any) -> tuple[list[Any], list[Operation]]:
    """The result tensors of a branch, and the operations it must run."""
    leaves = nested_structure.flatten_structure(output)
    if all(leaf is None or isinstance(leaf, Operation) for leaf in leaves):
        packed.append([])
        return [], [leaf for leaf in leaves if leaf is not None]
    packed.append(nested_structure.map_structure(_value, output))
    return take_apart(packed[-1])[0], []


def _as_updates(branch: Function) -> Function:
    """The branch as operations only, if its results are all values after updates."""
    reads = [t.op for t in branch.results]
    updates = [any(lookup_op(c.type).writes for c in read.control_inputs) for read in reads]
    if not all(updates) or any(read.type != "ReadVariable" for read in reads):
        return branch
    return branch.but(results=(), targets=(*branch.targets, *reads))


def _value(leaf: Any) -> Any:
    """A leaf as a tensor, or as a composite tensor."""
    if isinstance(leaf, Operation):
        raise GraphError(
            f"the result must hold tensors only; {leaf.name!r} is an operation",
            line=leaf.line,
            hint="return tensors under hf.control_dependencies([operation])",
        )
    return leaf if hasattr(leaf, "parts") else convert_to_tensor(leaf)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """The result of the function of the first true predicate, else of `default`.

    `pred_fn_pairs` is a list of (predicate, function), or a dict. Without `default` one predicate
    must be true; with `exclusive` at most one may be.
    Errors: AssertError at run time if this is violated.
    """
    entries = pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs
    pairs = [(convert_to_tensor(p), f) for p, f in several(entries, "case")]
    if not pairs:
        raise GraphError("case needs at least one pair", line=user_line())
    with get_default_graph().name_scope(name):
        preds = stack([p for p, _ in pairs])
        checks = []
        if exclusive:
            count = reduce_sum(cast(preds, int32))
            checks.append(Assert(less(count, 2), ["several predicates of case hold:", preds]))
        if default is None:
            checks.append(Assert(reduce_any(preds), ["no predicate of case holds:", preds]))
            default, pairs = pairs[-1][1], pairs[:-1]
        chain: Callable[[], Any] = default
        for pred, function in reversed(pairs):
            chain = functools.partial(cond, pred, function, chain, strict)
        with get_default_graph().control_dependencies(checks):
            return chain()


def _results(owner: Operation, name: str) -> list[Tensor]:
    """The outputs through separate Identity operations, so that each can be followed alone."""
    graph = owner.graph
    with graph.control_dependencies(None), graph.device(None), graph.name_scope(f"{owner.name}/"):
        return [
            t if t.dtype == tensor_array else graph.create_op("Identity", [t], {}, name).outputs[0]
            for t in owner.outputs
        ]


# -- while


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
    *,
    history: str = "keep",
) -> Any:
    """Replace `loop_vars` by `body(*loop_vars)` while `cond(*loop_vars)`; returns the last values.

    They are packed as the result of `body`: tuples, lists, named tuples or dicts. A list or tuple
    of one tensor becomes that tensor, unless `return_same_structure`.

    Shapes:   `body` returns the structure, dtypes and shapes of `loop_vars`. `shape_invariants`
              (same structure) has None for sizes that change between iterations. The invariant of a
              SparseTensor is the shape of its `dense_shape`, that of IndexedSlices the shape of
              their `values`; the number of values of a SparseTensor may always change.
    Gradient: through the iterations that ran. `history` says how intermediate values are kept: on
              the device ("keep"), in "host" memory (also `swap_memory`), or only the loop
              variables, from which the rest is computed again ("recompute"). With "keep", weight
              gradients are computed by one product after the loop; its factors are kept too.
    Ranks:    the body may be placed on several tasks; each runs its part, the predicate is sent.
    Errors:   ShapeError for a variable that grows without an invariant.

    `parallel_iterations` is accepted and has no effect: on each task an iteration begins when the
    previous one has ended.
    """
    if history not in HISTORIES:
        raise GraphError(
            f"history {history!r} is not known", hint=f"use one of {', '.join(HISTORIES)}"
        )
    if maximum_iterations is not None:
        return _bounded_loop(**locals())
    history = "host" if swap_memory and history == "keep" else history
    facts = {"back_prop": bool(back_prop), "history": history}
    return _build_while(cond, body, loop_vars, shape_invariants, name, return_same_structure, facts)


def _build_while(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any,
    name: str | None,
    return_same_structure: bool,
    facts: Attrs,
) -> Any:
    graph = get_default_graph()
    single = not isinstance(loop_vars, (list, tuple))
    structure = [loop_vars] if single else loop_vars
    structure = nested_structure.map_structure(_value, structure)
    inits, rebuild = take_apart(structure)
    if not inits:
        raise GraphError("a loop needs loop variables", line=user_line())
    params = _loop_params(inits, structure, shape_invariants, single)
    scope = name or "while"

    def given(tensors: Sequence[Tensor]) -> Sequence[Any]:
        values = rebuild(tensors)
        return list(values.values()) if isinstance(values, dict) else values

    last: list[Any] = []

    def next_values(results: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        last.append(_next_values(results, structure, single))
        return take_apart(last[-1])[0], []

    test = _test(graph, scope, params, lambda *p: cond(*given(p)))
    step = _step(graph, scope, params, lambda *p: body(*given(p)), next_values)
    attrs: Attrs = {"cond": test, "body": step, "lists": 0, **facts}
    loop = graph.create_op("While", [*inits, *test.outer, *step.outer], attrs, scope)
    result = nested_structure.pack_structure(
        last[-1], nested_structure.flatten_structure(rebuild(_results(loop, "Exit")))
    )
    alone = len(inits) == 1 and isinstance(result, (list, tuple)) and not return_same_structure
    return result[0] if single or alone else result


def _test(
    graph: Graph, scope: str, params: Sequence[tuple[Spec, str]], cond: Callable[..., Any]
) -> Function:
    """The function of the loop condition."""
    test = trace_function(graph, f"{scope}/cond", params, cond, lambda made: ([made], []))
    _check_predicate(test.results[0])
    return test


def _step(
    graph: Graph,
    scope: str,
    params: Sequence[tuple[Spec, str]],
    body: Callable[..., Any],
    take: Callable[[Any], tuple[Sequence[Any], Sequence[Any]]],
) -> Function:
    """The function of one iteration."""
    step = trace_function(graph, f"{scope}/body", params, body, take)
    for param, result in zip(step.params, step.results, strict=True):
        _check_invariant(param, result)
    return step


def _loop_params(
    inits: list[Tensor], structure: Any, invariants: Any, single: bool
) -> list[tuple[Spec, str]]:
    """The specs and names of the loop variables in the body."""
    leaves = nested_structure.flatten_structure(structure)
    declared = [_UNTOLD] * len(leaves)
    if invariants is not None:
        declared = _shapes_of([invariants] if single else invariants, structure)
    shapes = [s for leaf, t in zip(leaves, declared, strict=True) for s in _invariants_of(leaf, t)]
    for t, shape in zip(inits, shapes, strict=True):
        merge_shapes(t.shape, shape)
    return [(Spec(t.dtype, shape), last_name(t.op)) for t, shape in zip(inits, shapes, strict=True)]


def _invariants_of(leaf: Any, invariant: Any) -> list[Shape]:
    """The shape invariants of a leaf's tensors; `invariant` is the user's invariant, if any."""
    if isinstance(leaf, CompositeTensor):
        return leaf.invariants(None if invariant is _UNTOLD else (as_shape(invariant),))
    if invariant is _UNTOLD or hasattr(leaf, "parts"):
        return [t.shape for t in components(leaf)]
    return [as_shape(invariant)]


def _shapes_of(invariants: Any, like: Any) -> list[Any]:
    """The shape for each leaf of `like`; a list of sizes is one shape where `like` has a leaf."""
    if isinstance(like, dict):
        return [s for key in sorted(like) for s in _shapes_of(invariants[key], like[key])]
    if isinstance(like, (list, tuple)):
        if len(invariants) != len(like):
            raise GraphError(f"{len(invariants)} shape_invariants for {len(like)} loop variables")
        return [s for i, v in zip(invariants, like, strict=True) for s in _shapes_of(i, v)]
    return [invariants]


def _check_predicate(pred: Tensor) -> None:
    if pred.dtype != bool_ or pred.shape not in (None, ()):
        raise ShapeError(
            f"the condition of a loop must be a scalar bool, not {pred.dtype} "
            f"{shape_text(pred.shape)}",
            op=pred.op.name,
            line=pred.op.line,
            hint="reduce it with hf.reduce_any or hf.reduce_all",
        )


def _next_values(output: Any, structure: Any, single: bool) -> Any:
    """The result of the body as tensors, checked against the loop variables."""
    if not isinstance(output, (list, tuple, dict)) or single:
        output = [output]
    nested_structure.check_same_structure(
        structure, output, "the loop variables and the result of the body"
    )
    return nested_structure.map_structure(_value, output)


def _check_invariant(param: Tensor, result: Tensor) -> None:
    """Check that the body's value has the type of the loop variable."""
    facts: Any = {"op": result.op.name, "line": result.op.line or user_line()}
    name = last_name(param.op)
    if param.dtype != result.dtype:
        raise DTypeError(
            f"loop variable {name!r} is {param.dtype} and becomes {result.dtype}",
            hint="hf.cast it in the body",
            **facts,
        )
    if common_shape(param.shape, result.shape) != param.shape:
        raise ShapeError(
            f"loop variable {name!r} has shape {shape_text(param.shape)} and becomes "
            f"{shape_text(result.shape)}",
            hint="give shape_invariants with None for the sizes that change",
            **facts,
        )


def _bounded_loop(maximum_iterations: Any, **arguments: Any) -> Any:
    """A loop with a maximum number of iterations, which has a counter."""
    cond, body, loop_vars = (arguments.pop(k) for k in ("cond", "body", "loop_vars"))
    limit = convert_to_tensor(maximum_iterations, int32)
    listed = isinstance(loop_vars, (list, tuple))
    values = loop_vars if listed else [loop_vars]

    def go_on(i: Tensor, inner: Any) -> Tensor:
        return logical_and(less(i, limit), cond(*inner))

    def step(i: Tensor, inner: Any) -> Any:
        output = body(*inner)
        is_all = listed and isinstance(output, (list, tuple))
        if len(values) == 1 and nested_structure.same_structure(output, values[0]):  # not in a list
            is_all = False
        return add(i, 1), output if is_all else [output]

    if arguments["shape_invariants"] is not None:
        invariants = arguments["shape_invariants"]
        arguments["shape_invariants"] = [(), invariants if listed else [invariants]]
    _, result = while_loop(go_on, step, [constant(0), values], **arguments)
    keep_list = len(values) > 1 or (listed and arguments["return_same_structure"])
    return result if keep_list else result[0]
