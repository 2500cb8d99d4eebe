"""A tiny interpreter of graphs and of plans, to compare what is cut with what is not."""

from __future__ import annotations

import collections

import numpy as np

from hpcflow.graph.graph import Operation
from hpcflow.ops.array.slice_ops import index_of


def pure(type, attrs, given, specs):
    """The outputs of a pure op, computed plainly."""
    if type == "Const":
        return [attrs["value"]]
    if type == "Fill":
        return [np.full(specs[0].shape, attrs["value"], specs[0].dtype)]
    if type == "MatMul":
        a, b = given
        a = a.T if attrs.get("transpose_a") else a
        b = b.T if attrs.get("transpose_b") else b
        return [a @ b]
    if type == "Concat":
        return [np.concatenate(given, attrs["axis"])]
    if type == "Split":
        return np.split(given[0], np.cumsum(attrs["sizes"])[:-1], attrs["axis"])
    if type == "Pack":
        return [np.stack(given, attrs["axis"])]
    if type == "Unpack":
        return list(np.moveaxis(given[0], attrs["axis"], 0))
    if type == "Rows":
        return [given[0][attrs["start"] : attrs["stop"]]]
    if type == "Sum":
        return [given[0].sum(axis=attrs["axis"], keepdims=attrs["keepdims"])]
    if type == "AddN":
        return [np.sum(given, axis=0)]
    if type == "StridedSlice":
        return [given[0][index_of(attrs["key"])]]
    if type == "Shape":
        return [np.array(given[0].shape, attrs["dtype"])]
    if type in ("Reshape", "ExpandDims", "MeanGrad", "SumToShape"):
        shape = tuple(given[1]) if len(given) > 1 else specs[0].shape
        return [_shaped(type, given[0], shape)]
    if type == "Mean":
        return [np.asarray(given[0].mean(axis=attrs["axis"], keepdims=attrs["keepdims"]))]
    if type == "Cast":
        return [given[0].astype(attrs["dtype"])]
    if type == "Parcel":
        return [np.frombuffer(_in_a_row(given), np.uint8)]
    if type == "FromParcel":
        (spec,), start = specs, attrs["start"]
        nbytes = spec.dtype.itemsize * np.prod(spec.shape, dtype=int)
        data = given[0].tobytes()[start : start + nbytes]
        return [np.frombuffer(data, spec.dtype).reshape(spec.shape)]
    plain = {
        "Add": np.add,
        "BiasAdd": np.add,
        "Maximum": np.maximum,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Neg": np.negative,
        "Tanh": np.tanh,
        "TanhGrad": lambda g, y: g * (1 - y * y),
        "Square": np.square,
        "Copy": lambda x: x,
        "Identity": lambda x: x,
    }
    return [plain[type](*given)]


def _in_a_row(values):
    """The bytes of several values, each begun at a multiple of the size of its elements."""
    data = b""
    for value in values:
        data += bytes(-len(data) % value.itemsize) + value.tobytes()
    return data


def _shaped(type, x, shape):
    if type in ("Reshape", "ExpandDims"):
        return x.reshape(shape)
    if type == "MeanGrad":
        return np.broadcast_to(x / np.float32(np.prod(shape, dtype=int) // x.size), shape)
    return x.sum(axis=tuple(range(x.ndim - len(shape)))) if x.shape != shape else x


def changed(type, old, given):
    """The new values of the written variables."""
    if type == "Assign":
        return [given[0]]
    if type in ("AssignAdd", "AssignSub"):
        return [old[0] + given[0] if type == "AssignAdd" else old[0] - given[0]]
    if type == "ApplyGradientDescent":
        return [old[0] - given[0] * given[1]]
    assert type == "ApplyMomentum", type
    slot = old[1] * given[1] + given[2]
    return [old[0] - given[0] * slot, slot]


def run_graph(fetches, feeds, state):
    """Fetched values, straight from the graph, in creation order; `state` by variable."""
    needed, stack = set(), [f if isinstance(f, Operation) else f.op for f in fetches]
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [t.op for t in op.inputs] + list(op.control_inputs)
    values = dict(feeds)
    for op in sorted(needed, key=lambda op: op.index):
        if op.type in ("Placeholder", "NoOp", "Variable"):
            continue
        if op.type == "ReplicaShare":
            outputs = [np.float32(1)]
        elif op.type == "ReplicaSum":
            outputs = [values[op.inputs[0]]]
        else:
            outputs = _one(
                op.type,
                op.attrs,
                [(t.op.name if t.op.type == "Variable" else values[t]) for t in op.inputs],
                op.outputs,
                state,
            )
        values.update(zip(op.outputs, outputs, strict=True))
    return [None if isinstance(f, Operation) else values[f] for f in fetches]


def _one(type, attrs, given, specs, state):
    if type == "ReadVariable":
        return [state[given[0]]]
    handles = [g for g in given if isinstance(g, str)]
    if handles:
        values = [g for g in given if not isinstance(g, str)]
        old = [state.get(h) for h in handles]
        state.update(zip(handles, changed(type, old, values), strict=True))
        return []
    return pure(type, attrs, given, specs)


def run_plans(plans, feeds, states, rng=None):
    """Fetches of each plan (a replica), their parts running in turns, in random turns with `rng`.

    `states[i][task]` maps variables (or their parts) of a task of replica i. AssertionError if all
    wait for each other.
    """
    wires = collections.defaultdict(collections.deque)
    board: dict = {}
    results: list = [None] * len(plans)
    running = [
        _part(plan, part, i, feeds[i], states[i].setdefault(task, {}), wires, board, results)
        for i, plan in enumerate(plans)
        for task, part in plan.parts.items()
    ]
    board["replicas"] = len(plans)
    while running:
        if rng is not None:
            rng.shuffle(running)
        moved = False
        for one in list(running):
            try:
                moved = next(one) or moved
            except StopIteration:
                running.remove(one)
                moved = True
        assert moved, "every task waits for another"
    assert not any(wires.values()), "a message was never received"
    return results


def _part(plan, part, i, feeds, state, wires, board, results):
    values: dict = {}
    fed = dict(zip(part.feeds, feeds, strict=True)) if part.feeds else {}
    for node in part.nodes.values():
        given = [values[ref] for ref in node.inputs]
        if node.type == "Feed":
            outputs = [fed[node.name]]
        elif node.type == "Variable":
            outputs = [node.name]
        elif node.type in ("NoOp", "WaitInitialized"):
            outputs = []
        elif node.type == "Send":
            wires[i, node.attrs["channel"]].append(given[0] if given else np.empty(0))
            outputs = []
        elif node.type == "Recv":
            wire = wires[i, node.attrs["channel"]]
            while not wire:
                yield False
            outputs = [wire.popleft()]
        elif node.row.collective:
            key = (part.task, node.attrs["sequence"])
            board.setdefault(key, {})[i] = given
            while len(board[key]) < board["replicas"]:
                yield False
            given = [board[key][r] for r in range(board["replicas"])]
            if node.type == "Broadcast":
                outputs = given[node.attrs["root"]]
            else:
                outputs = [sum(column) for column in zip(*given, strict=True)]
        else:
            outputs = _one(node.type, node.attrs, given, node.specs, state)
        for index, output in enumerate(outputs):
            assert output.__class__ is str or output.shape == node.specs[index].shape, node.name
            values[(node.name, index)] = output
        yield True
    if part.task == plan.driver:
        results[i] = [values[ref] for ref in part.fetches]


def run_plan(plan, feeds, state, rng=None):
    """Fetches of one plan; `state` by task, then variable."""
    return run_plans([plan], [feeds], [state], rng)[0]


def whole_state(plan_or_plans, states):
    """All variables of some tasks by name, the parts of cut ones joined."""
    plans = plan_or_plans if isinstance(plan_or_plans, list) else [plan_or_plans]
    pieces: dict = {}
    for plan in plans:
        for task, part in plan.parts.items():
            for node in part.nodes.values():
                if node.type == "Variable" and node.name in states.get(task, {}):
                    value = states[task][node.name]
                    if "piece" in node.attrs:
                        name = node.name.rsplit("/part_", 1)[0]
                        pieces.setdefault(name, {})[node.attrs["piece"]] = value
                    else:
                        pieces[node.name] = {(0, 0): value}
    return {
        name: np.concatenate([found[k] for k in sorted(found)])
        if len(found) > 1
        else next(iter(found.values()))
        for name, found in pieces.items()
    }
