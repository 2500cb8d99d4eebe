"""Plan verifier: proves that a plan is consistent and free of deadlock, or names the rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcflow.errors import HpcflowError, VerifyError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import LISTS, resource
from hpcflow.graph.op_registry import OPS, all_ops
from hpcflow.graph.static_shape import merge_shapes, shape_text
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Node, Partition, Plan
from hpcflow.plan.ir.program_rewriting import cyclic_nodes

NodeLocation = tuple[str, str]  # task, node


def verify_plan(plan: Plan) -> None:
    """Check every rule that a single plan can break; each error has the name of its rule.

    Errors: VerifyError with `rule`, naming node and task.
    """
    for part in plan.parts.values():
        verify_partition(part)
    _check_driver(plan)
    _check_channels(plan)
    _check_edges(plan)
    _check_collectives(plan)
    _check_acyclic(plan)
    _check_reaches_driver(plan)


def verify_replicas(plans: Sequence[Plan]) -> None:
    """Check that each task runs the same collectives in the same order on all replicas.

    Errors: VerifyError (same-collectives).
    """
    first, *others = (_collective_calls(plan) for plan in plans)
    for number, calls in enumerate(others, 1):
        for task in dict.fromkeys((*first, *calls)):
            base, actual = first.get(task, []), calls.get(task, [])
            if base == actual:
                continue
            at = next((i for i, (a, b) in enumerate(zip(base, actual, strict=False)) if a != b), -1)
            detail = (
                f"replica 0 runs {len(base)} collectives, replica {number} {len(actual)}"
                if at < 0
                else f"collective {at} is {base[at]} on replica 0, {actual[at]} on {number}"
            )
            raise VerifyError("same-collectives", f"on {task} {detail}")


def _rule_violation(rule: str, node: Node, task: str, message: str) -> VerifyError:
    return VerifyError(rule, f"{node.name!r} on {task}: {message}", op=node.name, line=node.line)


# -- rules of one partition


def verify_partition(part: Partition) -> None:
    """Check the rules that involve the partition of one task only."""
    earlier: dict[str, Node] = {}
    for name, node in part.nodes.items():
        if name != node.name:
            raise _rule_violation("name", node, part.task, f"it is listed as {name!r}")
        if node.type not in OPS and node.type not in all_ops():
            raise _rule_violation("op-known", node, part.task, f"there is no op {node.type!r}")
        _check_device(node, part.task)
        _check_inputs(node, earlier, part)
        _check_state(node, earlier, part.task)
        _check_shapes(node, earlier, part.task)
        earlier[name] = node
        _check_frame(node, part.task)
    for ref in part.fetches:
        if ref.node not in earlier or not 0 <= ref.index < len(earlier[ref.node].specs):
            raise VerifyError("fetch-exists", f"{part.task} has no value {ref} to hand out")


def _check_frame(node: Node, task: str) -> None:
    """Check the partitions in a loop or branch, and that their feeds are valid slots."""
    if not node.row.control_flow:
        return
    loop = node.row.control_flow == "loop"
    slots = len(node.inputs) + (node.attrs["empty"] if loop else -1)
    for key in ("cond", "body") if loop else ("then", "else"):
        part, feeds = node.attrs.get(key), node.attrs.get(f"{key}_feeds")
        if not isinstance(part, Partition) or part.task != task:
            raise _rule_violation("frame-has-parts", node, task, f"it has no {key} for its task")
        verify_partition(part)
        if len(feeds or ()) != len(part.feeds) or not all(0 <= i < slots for i in feeds or ()):
            raise _rule_violation(
                "frame-has-parts", node, task, f"the feeds of its {key} are not its slots"
            )
        results = 1 if key == "cond" else len(node.specs)
        if len(part.fetches) != results:
            raise _rule_violation(
                "frame-has-parts", node, task, f"its {key} gives {len(part.fetches)} values"
            )


def _check_device(node: Node, task: str) -> None:
    try:
        device = parse_device(node.device)
    except HpcflowError:
        device = None
    if device is None or None in device or device.host != task:
        raise _rule_violation("device-of-task", node, task, f"its device is {node.device!r}")


def _check_inputs(node: Node, earlier: Mapping[str, Node], part: Partition) -> None:
    for before in node.before():
        if before not in part.nodes:
            raise _rule_violation(
                "input-exists", node, part.task, f"it needs {before!r}, which is not there"
            )
        if before not in earlier:
            raise _rule_violation(
                "input-before-use", node, part.task, f"it stands before its {before!r}"
            )
    for ref in node.inputs:
        maker = earlier[ref.node]
        if not 0 <= ref.index < len(maker.specs):
            raise _rule_violation("input-exists", node, part.task, f"{ref} is no output")
        is_list = maker.specs[ref.index].dtype in LISTS
        if maker.device != node.device and node.row.message != "copy" and not is_list:
            raise _rule_violation(
                "same-device",
                node,
                part.task,
                f"it runs on {node.device}, its input {ref} is on {maker.device}",
            )
        if node.row.message == "copy" and node.attrs.get("source") != maker.device:
            raise _rule_violation(
                "same-device", node, part.task, f"it copies {ref} from the wrong device"
            )


def _check_state(node: Node, earlier: Mapping[str, Node], task: str) -> None:
    handles = [
        i for i, r in enumerate(node.inputs) if earlier[r.node].specs[r.index].dtype == resource
    ]
    for i in (*node.row.reads, *node.row.writes):
        if i >= len(node.inputs) or i not in handles:
            raise _rule_violation("state-beside-handle", node, task, f"input {i} must be a handle")
        handle = earlier[node.inputs[i].node]
        if handle.device != node.device:
            raise _rule_violation(
                "state-beside-handle", node, task, f"its state is on {handle.device}"
            )
    if handles and node.row.message in ("send", "copy"):
        raise _rule_violation("state-beside-handle", node, task, "a handle cannot leave its device")


def _check_shapes(node: Node, earlier: Mapping[str, Node], task: str) -> None:
    input_specs = [earlier[ref.node].specs[ref.index] for ref in node.inputs]
    try:
        inferred = node.row.infer(input_specs, node.attrs)
        fits = len(inferred) == len(node.specs)
        for a, b in zip(inferred, node.specs, strict=False):
            merge_shapes(a.shape, b.shape)
            fits = fits and a.dtype == b.dtype
    except Exception as error:  # the attributes may be untrusted bytes: reject any error
        raise _rule_violation("shape-rule", node, task, str(error)) from None
    if not fits:
        spec_text = ", ".join(f"{s.dtype} {shape_text(s.shape)}" for s in inferred)
        raise _rule_violation("shape-rule", node, task, f"its op makes ({spec_text})")


# -- rules between partitions


def _of_role(plan: Plan, role: str) -> Iterable[tuple[str, Node]]:
    """Yield the (task, node) pairs of a message role, loops and branches included."""
    for task, part in plan.parts.items():
        for node in (*part.nodes.values(), *nested_nodes(part.nodes)):
            if node.row.message == role:
                yield task, node


def _by_channel(plan: Plan, role: str) -> dict[int, tuple[str, Node]]:
    by_channel: dict[int, tuple[str, Node]] = {}
    for task, node in _of_role(plan, role):
        channel = node.attrs.get("channel")
        if not isinstance(channel, int):
            raise _rule_violation("channel-unique", node, task, f"its channel is {channel!r}")
        if channel in by_channel:
            other_name = by_channel[channel][1].name
            raise _rule_violation(
                "channel-unique", node, task, f"{other_name!r} too uses channel {channel}"
            )
        by_channel[channel] = (task, node)
    return by_channel


def _check_channels(plan: Plan) -> None:
    sends, receives = _by_channel(plan, "send"), _by_channel(plan, "receive")
    for channel, (task, node) in sends.items():
        if channel not in receives:
            raise _rule_violation(
                "send-has-receive", node, task, f"nobody receives channel {channel}"
            )
        if node.attrs.get("dest") != receives[channel][0]:
            raise _rule_violation(
                "right-task",
                node,
                task,
                f"it sends to {node.attrs.get('dest')}, {receives[channel][0]} receives",
            )
    for channel, (task, node) in receives.items():
        if channel not in sends:
            raise _rule_violation("receive-has-send", node, task, f"nobody sends channel {channel}")
        if node.attrs.get("source") != sends[channel][0]:
            raise _rule_violation(
                "right-task",
                node,
                task,
                f"it receives from {node.attrs.get('source')}, {sends[channel][0]} sends",
            )
        _check_pair(plan, sends[channel], (task, node))


def _check_pair(plan: Plan, sender: tuple[str, Node], receiver: tuple[str, Node]) -> None:
    (source, send), (task, receive) = sender, receiver
    if bool(send.attrs.get("token")) != bool(receive.attrs.get("token")):
        raise _rule_violation(
            "same-token", receive, task, "one side takes it for a token, the other not"
        )
    if send.attrs.get("token"):
        if send.inputs or receive.specs[0].nbytes or not send.control:
            raise _rule_violation(
                "same-token", send, source, "a token carries no value, only an order"
            )
        return
    if len(send.inputs) != 1:
        raise _rule_violation("send-has-value", send, source, "a Send has one input")
    ref, got = send.inputs[0], receive.specs[0]
    part = plan.parts[source]
    maker = part.nodes.get(ref.node) or next(
        n for n in nested_nodes(part.nodes) if n.name == ref.node
    )
    sent = maker.specs[ref.index]
    if sent.dtype != got.dtype:
        raise _rule_violation(
            "same-dtype", receive, task, f"{sent.dtype} is sent, {got.dtype} received"
        )
    if sent.shape != got.shape:
        raise _rule_violation(
            "same-shape",
            receive,
            task,
            f"{shape_text(sent.shape)} is sent, {shape_text(got.shape)} received",
        )


def _check_edges(plan: Plan) -> None:
    sends = _by_channel(plan, "send")
    listed = [edge.channel for edge in plan.edges]
    if sorted(listed) != sorted(sends):
        raise VerifyError("edges-listed", "the plan's edges are not those of its Send nodes")
    receives = _by_channel(plan, "receive")
    for edge in plan.edges:
        task, node = sends[edge.channel]
        spec = receives[edge.channel][1].specs[0]
        if (edge.source, edge.dest, edge.token, edge.spec.dtype, edge.spec.shape) != (
            task,
            node.attrs["dest"],
            bool(node.attrs.get("token")),
            spec.dtype,
            spec.shape,
        ):
            raise _rule_violation(
                "edges-listed", node, task, f"edge {edge.channel} says something else"
            )


def _check_driver(plan: Plan) -> None:
    if plan.driver not in plan.parts:
        raise VerifyError("driver", f"the driver {plan.driver} has no part")
    for task, part in plan.parts.items():
        if task != part.task:
            raise VerifyError("driver", f"the part of {part.task} is listed as {task}")
        feeds = {n.name for n in part.nodes.values() if n.row.source == "feed"}
        if feeds and task != plan.driver:
            raise VerifyError("feeds-on-driver", f"{task} has the feeds {sorted(feeds)}")
        if feeds != set(part.feeds) or len(feeds) != len(part.feeds):
            raise VerifyError("feeds-on-driver", f"{task} lists feeds that are not its Feed nodes")
        if part.fetches and task != plan.driver:
            raise VerifyError("fetch-exists", f"{task} has fetches; only the driver may")


def _check_collectives(plan: Plan) -> None:
    numbers: dict[int, str] = {}
    for task, part in plan.parts.items():
        last = -1
        for node in part.nodes.values():
            if not node.row.collective:
                continue
            number = node.attrs.get("sequence")
            if not isinstance(number, int) or number in numbers:
                raise _rule_violation(
                    "collective-order", node, task, f"its sequence {number} is not its own"
                )
            if number <= last:
                raise _rule_violation(
                    "collective-order", node, task, f"{number} stands behind {last}"
                )
            numbers[number] = node.name
            last = number
    if sorted(numbers) != list(range(len(numbers))):
        raise VerifyError("collective-order", "the collectives are not numbered from 0 on")


def _collective_calls(plan: Plan) -> dict[str, list[str]]:
    """Return the collectives of each task as text, which must be equal on all replicas."""
    calls: dict[str, list[str]] = {}
    for task, part in plan.parts.items():
        for node in part.nodes.values():
            if node.row.collective:
                root = f" from {node.attrs['root']}" if "root" in node.attrs else ""
                values = ", ".join(f"{spec.dtype} {shape_text(spec.shape)}" for spec in node.specs)
                calls.setdefault(task, []).append(f"{node.type}{root} of {values}")
    return calls


# -- order over all partitions


def order_pairs(plan: Plan) -> list[tuple[NodeLocation, NodeLocation]]:
    """Return (before, after) for every Send and its Recv, except those in loops and branches."""
    sends, receives = _by_channel(plan, "send"), _by_channel(plan, "receive")
    pairs = [(sends[c], receives[c]) for c in sends]
    return [
        ((a, send.name), (b, receive.name))
        for (a, send), (b, receive) in pairs
        if send.name in plan.parts[a].nodes
    ]


def _check_acyclic(plan: Plan) -> None:
    """Check that all task orders and the Send-before-Recv pairs have a common order."""
    names: dict[str, Node] = {}
    extra: list[tuple[str, str]] = []
    for task, part in plan.parts.items():
        before = None
        for node in part.nodes.values():
            key = f"{task} {node.name}"
            names[key] = node.but(inputs=(), control=())
            if before is not None:
                extra.append((before, key))
            before = key
    extra += [(" ".join(a), " ".join(b)) for a, b in order_pairs(plan)]
    stuck = [key for key in cyclic_nodes(names, extra) if names[key].row.message == "receive"]
    if stuck:
        task, name = stuck[0].split(" ", 1)
        node = plan.parts[task].nodes[name]
        raise _rule_violation("acyclic", node, task, "it waits, through other tasks, for itself")


def _check_reaches_driver(plan: Plan) -> None:
    """Check that every node has run when the driver's partition has run."""
    before: dict[NodeLocation, list[NodeLocation]] = {}
    for after_this, then in order_pairs(plan):
        before.setdefault(then, []).append(after_this)
    stack = [(plan.driver, name) for name in plan.parts[plan.driver].nodes]
    visited: set[NodeLocation] = set()
    while stack:
        at = stack.pop()
        if at not in visited:
            visited.add(at)
            task, name = at
            stack += [(task, b) for b in plan.parts[task].nodes[name].before()]
            stack += before.get(at, [])
    for task, part in plan.parts.items():
        for node in part.nodes.values():
            if (task, node.name) not in visited:
                raise _rule_violation(
                    "reaches-driver", node, task, "the driver would not wait for its end"
                )
