"""Pass list: all passes from the graph to the code of a task, in the order in which they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.fusion.bias_relu_epilogue import fuse_epilogues
from hpcflow.lowering.fusion.elementwise_fusion import sum_in_float32
from hpcflow.lowering.fusion.max_pool_relu_gradient import fuse_pool_gradients
from hpcflow.lowering.fusion.sparse_optimizer_fusion import fuse_sparse_optimizers
from hpcflow.lowering.fusion.sparse_update_operands import fuse_sparse_operands
from hpcflow.lowering.fusion.split_hoisting import hoist_splits
from hpcflow.lowering.fusion.strided_matmul_fusion import fuse_strided_products
from hpcflow.lowering.kept_values import mark_owned_values
from hpcflow.lowering.lowering_target import LoweringTarget
from hpcflow.lowering.python_codegen import CODE_PASSES
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.lowering.weight_packing import pack_weights
from hpcflow.plan import pass_contexts
from hpcflow.plan.algebra.matmul_batching import batch_products
from hpcflow.plan.algebra.outer_products import multiply_outer_products
from hpcflow.plan.algebra.overlapping_concat_sharing import share_overlapping_concats
from hpcflow.plan.algebra.reduction_reshaping import reshape_reductions
from hpcflow.plan.algebra.reshape_hoisting import hoist_reshapes
from hpcflow.plan.algebra.slice_gradient_concat import concat_slice_gradients
from hpcflow.plan.algebra.split_concat_to_views import rows_as_views
from hpcflow.plan.algebra.sum_of_matmuls import merge_product_sums
from hpcflow.plan.algebra.unused_product_columns import drop_unused_columns
from hpcflow.plan.communication.atomic_step_commit import insert_commit
from hpcflow.plan.communication.control_edge_merging import merge_control_edges
from hpcflow.plan.communication.gradient_bucketing import bucket_gradients
from hpcflow.plan.communication.message_coalescing import coalesce_messages
from hpcflow.plan.communication.send_recv_insertion import partition
from hpcflow.plan.communication.step_order import order_step
from hpcflow.plan.distribution.initial_value_sharding import place_initializers
from hpcflow.plan.distribution.partial_sum_hoisting import hoist_partial_sums
from hpcflow.plan.distribution.variable_sharding import shard_variables
from hpcflow.plan.frontend.capture_hoisting import hoist_variable_reads, sink_constants
from hpcflow.plan.frontend.common_subexpression_elimination import merge_common_subexpressions
from hpcflow.plan.frontend.constant_folding import Evaluate, fold_static_shapes
from hpcflow.plan.frontend.dead_loop_variable_elimination import drop_dead_loop_variables
from hpcflow.plan.frontend.dead_read_elimination import drop_dead_reads
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.frontend.identity_elimination import eliminate_identities, eliminate_noops
from hpcflow.plan.frontend.py_func_threads import thread_py_func_calls
from hpcflow.plan.ir.program import Cluster, Partition, Plan, Program
from hpcflow.plan.ir.program_rewriting import eliminate_dead_nodes
from hpcflow.plan.pass_contexts import Lowering, Planning
from hpcflow.plan.pass_row import (
    Form,
    Pass,
    PlainContext,
    Watch,
    run_pass,
    run_passes,
    unknown_pass_error,
)
from hpcflow.plan.user_passes import UserPass, form_at, register, registered, with_registered
from hpcflow.platform.exception_translation import user_line
from hpcflow.settings import Settings

GRAPH, PROGRAM, PLACED = Form.GRAPH, Form.PROGRAM, Form.PLACED
PLAN, PARTITION = Form.PLAN, Form.PARTITION


# -- the list

ONE_TASK = "one task a replica, no check_numerics"
ROUNDS = f"{ONE_TASK}, no exact"
SERVERS = "parameter servers"
FUSES = "no check_numerics"
GENERATES = f"{FUSES}, llvmlite"


def _simplify(name: str, rationale: str, holds: str, run: Any, **more: Any) -> Pass:
    return Pass(
        name, "simplification", PROGRAM, PROGRAM, rationale, holds, run, in_bodies=True, **more
    )


def _algebra(name: str, rationale: str, holds: str, run: Any, exact: bool = False) -> Pass:
    """A rewrite; `exact` if it changes no bit."""
    when = ONE_TASK if exact else ROUNDS
    on = (lambda context: context.rewrites) if exact else (lambda context: context.rounds)
    return Pass(name, "algebra", PROGRAM, PROGRAM, rationale, holds, run, when, on, True)


def _fusion(name: str, rationale: str, holds: str, run: Any, generates: bool = False) -> Pass:
    """A fusion; `generates` if it is for generated loops."""
    when = GENERATES if generates else FUSES
    on = (lambda context: context.target.generates) if generates else (lambda _: True)
    return Pass(name, "fusion", PARTITION, PARTITION, rationale, holds, run, when, on)


PASSES = (
    Pass(
        *("graph_pruning", "frontend", GRAPH, PROGRAM),
        "A step runs only the operations that its fetches need.",
        "Feeds are Feed nodes, If is Branch, While is Loop; shapes follow from the feeds.",
        lambda asked, context: prune_to_fetches(*asked),
    ),
    Pass(
        *("variable_placement", "frontend", PROGRAM, PROGRAM),
        "Analysis: later passes must know on which servers a variable is.",
        "Each variable is on a server, sharded over servers, or local; the program is unchanged.",
        pass_contexts.variable_placement,
    ),
    Pass(
        *("capture_hoisting", "frontend", PROGRAM, PROGRAM),
        "A read in a body would run in each iteration.",
        "A read that no update of its body can change is before the loop or branch.",
        lambda program, context: hoist_variable_reads(program),
    ),
    Pass(
        *("replica_lowering", "replicas", PROGRAM, PROGRAM),
        "The graph does not depend on the mode: single, collective, parameter servers.",
        "Shares are constants; a sum over replicas is an AllReduce, its input, or for servers.",
        pass_contexts.replica_lowering,
        in_bodies=True,
    ),
    Pass(
        *("initial_value_sharding", "replicas", PROGRAM, PROGRAM),
        "An initial value is computed where its variable is, not sent.",
        "The initializers of a variable that is whole on a server are on that server.",
        lambda program, context: place_initializers(program, context.placements),
        in_bodies=True,
    ),
    Pass(
        *("variable_sharding", "replicas", PROGRAM, PROGRAM),
        "A large variable is spread over several servers.",
        "No handle is of a variable that has several pieces.",
        lambda program, context: shard_variables(program, context.placements),
        in_bodies=True,
    ),
    _simplify(
        "read_uses",
        "Analysis: simplification removes only reads that were used before it.",
        "The reads whose values are used are known; the program is unchanged.",
        pass_contexts.read_uses,
    ),
    _simplify(
        "identity_elimination",
        "An identity would copy its input or hide a pattern from later passes.",
        "No CustomGradient is left, and no identity without a device or control input.",
        lambda program, context: eliminate_identities(program),
    ),
    _simplify(
        "shape_folding",
        "Shapes are known when the plan is made.",
        "A value that follows from static shapes is a constant.",
        lambda program, context: fold_static_shapes(program),
    ),
    _simplify(
        "dead_code_elimination",
        "Nodes of which only shapes were used need not be folded.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
    ),
    _simplify(
        "constant_folding",
        "What depends only on constants is computed once.",
        "No small pure node has only constant inputs, where folding gives the bits of a run.",
        pass_contexts.constant_folding,
        when="in a session",
        on=lambda context: context.evaluate is not None,
    ),
    _simplify(
        "dead_code_elimination.2",
        "Folding leaves nodes that nobody uses.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
    ),
    _simplify(
        "dead_read_elimination",
        "A read of which only the shape was used still delays updates.",
        "A read that simplification made useless is gone; the order around it stays.",
        lambda program, context: drop_dead_reads(program, context.reads),
    ),
    _simplify(
        "common_subexpression_elimination",
        "Gradients compute again what the forward pass has computed.",
        "No two pure nodes, and no two reads at one place in the order, are equal.",
        lambda program, context: merge_common_subexpressions(program),
    ),
    _simplify(
        "noop_elimination",
        "A NoOp would be a message if its neighbours are on other tasks.",
        "No NoOp is left that has no device, where this adds few edges.",
        lambda program, context: eliminate_noops(program),
    ),
    _simplify(
        "dead_code_elimination.3",
        "Merged nodes leave inputs that nobody uses.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
    ),
    Pass(
        *("captured_constants", "simplification", PROGRAM, PROGRAM),
        "A constant can only be folded in the body that uses it.",
        "Small constants that a body captures are in the body.",
        lambda program, context: sink_constants(program),
        in_bodies=True,
    ),
    _algebra(
        "split_concat_to_views",
        "Splitting and joining rows would copy them.",
        "Splits along axis 0 are Rows; joined neighbours are what they are rows of.",
        lambda program, context: rows_as_views(program),
        exact=True,
    ),
    _algebra(
        "reshape_hoisting",
        "Elementwise operations of one shape become one loop.",
        "A Reshape is before the elementwise operations, not between them.",
        lambda program, context: hoist_reshapes(program),
        exact=True,
    ),
    _algebra(
        "common_subexpression_elimination.2",
        "Moved Reshapes are often equal.",
        "No two pure nodes, and no two reads at one place in the order, are equal.",
        lambda program, context: merge_common_subexpressions(program),
        exact=True,
    ),
    _algebra(
        "dead_code_elimination.4",
        "Views leave copies that nobody uses.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
        exact=True,
    ),
    _algebra(
        "matmul_batching",
        "One large matrix product is faster than many small ones.",
        "Independent products with a common right operand are one product.",
        lambda program, context: batch_products(program),
    ),
    _algebra(
        "split_concat_to_views.2",
        "Batched products are joined and split by rows.",
        "Splits along axis 0 are Rows; joined neighbours are what they are rows of.",
        lambda program, context: rows_as_views(program),
    ),
    _algebra(
        "sum_of_matmuls",
        "The gradient of shared weights is a sum of products.",
        "A sum of several products, or of row sums, is one product or one row sum.",
        lambda program, context: merge_product_sums(program),
    ),
    _algebra(
        "slice_gradient_concat",
        "The gradient of slices is a sum of arrays that are mostly zero.",
        "The sum of gradients of adjacent row slices is a Concat.",
        lambda program, context: concat_slice_gradients(program),
    ),
    _algebra(
        "split_concat_to_views.3",
        "The Concats of the passes before may join what was split.",
        "Splits along axis 0 are Rows; joined neighbours are what they are rows of.",
        lambda program, context: rows_as_views(program),
    ),
    _algebra(
        "common_subexpression_elimination.3",
        "Sums of one list of rows join the same rows.",
        "No two pure nodes, and no two reads at one place in the order, are equal.",
        lambda program, context: merge_common_subexpressions(program),
    ),
    _algebra(
        "dead_code_elimination.5",
        "Products that became rows of one are left.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
    ),
    _algebra(
        "overlapping_concat_sharing",
        "The states before and after each step of a recurrent network overlap.",
        "Two Concats of which one continues the other are views of one.",
        lambda program, context: share_overlapping_concats(program),
    ),
    _algebra(
        "unused_product_columns",
        "The gradient of a Concat splits a product, also into parts that nobody reads.",
        "A product of known shapes has no first or last columns that only a Split drops.",
        lambda program, context: drop_unused_columns(program),
    ),
    _algebra(
        "outer_products",
        "BLAS is slow for products over an axis of one element.",
        "No product of known shapes sums one element, but for gradients of weights.",
        lambda program, context: multiply_outer_products(program),
    ),
    _algebra(
        "reduction_reshaping",
        "A reduction of another shape than its operand's loop needs a loop of its own.",
        "Sums are in front of Reshapes, or by rows first; scalars are not broadcast.",
        lambda program, context: reshape_reductions(program),
    ),
    _algebra(
        "common_subexpression_elimination.4",
        "Sums in a new place may be equal.",
        "No two pure nodes, and no two reads at one place in the order, are equal.",
        lambda program, context: merge_common_subexpressions(program),
    ),
    _algebra(
        "dead_code_elimination.6",
        "Shared Concats and moved sums leave nodes that nobody uses.",
        "Fetches or targets need each node that is no feed.",
        lambda program, context: eliminate_dead_nodes(program),
    ),
    Pass(
        *("control_flow_bodies", "bodies", PROGRAM, PROGRAM),
        "Loops and branches hold programs; the passes marked *bodies* also run on these.",
        "What these passes say of the program also holds of the bodies.",
        pass_contexts.control_flow_bodies,
        in_bodies=True,
    ),
    Pass(
        *("loop_invariant_hoisting", "bodies", PROGRAM, PROGRAM),
        "A loop computes the same of its captured values in each iteration.",
        "Products, reductions and small results of captured values are in front of the loop.",
        lambda program, context: pass_contexts.loop_invariant_hoisting(program),
        ONE_TASK,
        lambda context: context.rewrites,
    ),
    Pass(
        *("loop_accumulation_hoisting", "bodies", PROGRAM, PROGRAM),
        "A loop adds a small product to the gradient of its weights in each iteration.",
        "Such a sum is one product behind the loop, and so is the sum of its rows.",
        lambda program, context: pass_contexts.loop_accumulation_hoisting(program),
        ROUNDS,
        lambda context: context.rounds,
        in_bodies=True,
    ),
    Pass(
        *("dead_loop_variable_elimination", "bodies", PROGRAM, PROGRAM),
        "A gradient keeps values of a loop of which it needs only the shapes.",
        "Each variable of a loop, and each output of a branch, is needed.",
        lambda program, context: drop_dead_loop_variables(program),
        in_bodies=True,
    ),
    Pass(
        *("loop_trip_counts", "bodies", PROGRAM, PROGRAM),
        "Analysis: predictions must know how often the body of a loop runs.",
        "A loop whose counter has constant bounds has its number of iterations in `trips`.",
        lambda program, context: pass_contexts.loop_trip_counts(program),
        in_bodies=True,
    ),
    Pass(
        *("sync_program_split", "servers", PROGRAM, PROGRAM),
        "Servers update variables when the synchronization rule says so, not in a worker's step.",
        "The step sends gradients; the updates are a program of their own, which goes on below.",
        pass_contexts.sync_program_split,
        SERVERS,
        lambda context: context.cluster.mode == "ps",
        keeps_effects=False,
    ),
    Pass(
        *("py_func_threads", "placement", PROGRAM, PROGRAM),
        "Two Python functions of the user may wait for each other.",
        "A PyFunc that no path orders with another runs in a thread.",
        lambda program, context: thread_py_func_calls(program),
    ),
    Pass(
        *("device_placement", "placement", PROGRAM, PLACED),
        "A node runs where it was asked for, else beside its state, else as `placement` says.",
        "Each node has a full device name, and a reason for it.",
        pass_contexts.device_placement,
    ),
    Pass(
        *("partial_sum_hoisting", "placement", PLACED, PLACED),
        "Terms of a sum that are on one device need one message.",
        "An AddN has at most one term from each other device.",
        lambda program, context: hoist_partial_sums(program),
        "no exact",
        lambda context: not context.settings.exact,
    ),
    Pass(
        *("control_flow_frames", "placement", PLACED, PLACED),
        "The body of a loop may be on several tasks.",
        "Each loop or branch is on one task, and its bodies are partitions.",
        pass_contexts.control_flow_frames,
    ),
    Pass(
        *("gradient_bucketing", "communication", PLACED, PLACED),
        "Many small allreduces cost a call and messages each.",
        "AllReduces are buckets; all collectives are numbered, the same on all replicas.",
        lambda program, context: bucket_gradients(
            program, context.settings, context.cluster, context.reasons
        ),
    ),
    Pass(
        *("atomic_step_commit", "communication", PLACED, PLACED),
        "If a replica dies in a step, the others must be able to repeat it.",
        "All updates of variables are behind one last allreduce.",
        lambda program, context: insert_commit(program),
        "survive, collective mode",
        lambda context: context.settings.survive and context.cluster.mode == "collective",
    ),
    Pass(
        *("control_edge_merging", "communication", PLACED, PLACED),
        "Each control edge between tasks would be a message.",
        "For nodes of one task that another task waits for, there is one NoOp.",
        lambda program, context: merge_control_edges(program, context.cluster.lead),
    ),
    Pass(
        *("message_coalescing", "communication", PLACED, PLACED),
        "Many small messages cost a latency each.",
        "Small values of one segment for one task are in one Parcel.",
        lambda program, context: coalesce_messages(program, context.cluster.lead),
    ),
    Pass(
        *("step_order", "communication", PLACED, PLACED),
        "Tasks that follow one order cannot wait for each other in a circle.",
        "The nodes are in one topological order, collectives early and in their sequence.",
        lambda program, context: order_step(program),
    ),
    Pass(
        *("send_recv_insertion", "communication", PLACED, PLAN),
        "A task runs only its own nodes.",
        "Each value for another task has a Send and a Recv, for another device a Copy.",
        lambda program, context: partition(
            program, context.cluster, context.reasons, context.edges
        ),
    ),
    Pass(
        *("server_traffic", "communication", PLAN, PLAN),
        "Analysis: counters of traffic by variable cost nothing in a step.",
        "The bytes of each variable in each message to or from a server are known.",
        pass_contexts.server_traffic,
        SERVERS,
        lambda context: context.cluster.mode == "ps" and context.subject == "step",
    ),
    _fusion(
        "sparse_optimizer_fusion",
        "An optimizer's formula over the rows of a sparse gradient is one loop.",
        "A sparse update of a variable and its slots is one node.",
        lambda part, context: fuse_sparse_optimizers(part, context.target.exact),
        generates=True,
    ),
    _fusion(
        "sparse_update_operands",
        "Scaling and joining the rows of a sparse gradient would copy them.",
        "Sparse updates take a scale, and their rows in pieces.",
        lambda part, context: fuse_sparse_operands(part),
        generates=True,
    ),
    _fusion(
        "weight_packing",
        "A product of few rows would reorder its weights in each call.",
        "Weights of many products of a segment or loop are packed once.",
        lambda part, context: pack_weights(part, context.target.is_fast(part)),
    ),
    _fusion(
        "bias_relu_epilogue",
        "A library computes a product or convolution together with its bias and relu.",
        "Bias and relu are in the product, where a library serves it.",
        lambda part, context: fuse_epilogues(
            part, split_segments(part), context.target.is_fast(part)
        ),
    ),
    _fusion(
        "max_pool_relu_gradient",
        "The gradients of pooling, relu and bias would each pass over the same memory.",
        "They are one node, where a kernel serves it.",
        lambda part, context: fuse_pool_gradients(
            part, split_segments(part), context.target.is_fast(part)
        ),
    ),
    _fusion(
        "strided_matmul_fusion",
        "Transposes and slices around batched products would copy.",
        "Products read and write strided arrays, where a library serves them.",
        lambda part, context: fuse_strided_products(part, context.target.is_fast(part)),
    ),
    _fusion(
        "split_hoisting",
        "A Split between elementwise operations would end their loop.",
        "Elementwise values are split before they are computed.",
        lambda part, context: hoist_splits(part, context.target.exact, context.target.kinds),
        generates=True,
    ),
    _fusion(
        "batch_norm_expansion",
        "Batch normalization alone would pass over memory apart from its neighbours.",
        "On GPUs it is column sums and elementwise operations, which are fused.",
        pass_contexts.batch_norm_expansion,
        generates=True,
    ),
    _fusion(
        "half_precision_sums",
        "A generated loop adds rows up in its result, which must have the digits of the sum.",
        "Sums of 16-bit floats over leading axes give float32, which a Cast rounds.",
        lambda part, context: sum_in_float32(part, context.target.exact, context.target.kinds),
        generates=True,
    ),
    _fusion(
        "elementwise_fusion",
        "One loop goes over memory once, and one call costs less than many.",
        "Elementwise and row-wise nodes of one iteration space that share values are one Fused.",
        pass_contexts.elementwise_fusion,
        generates=True,
    ),
    _fusion(
        "kept_values",
        "A loop keeps values of each iteration for its gradient; a copy reads and writes them.",
        "A tensor list or array keeps a value that has memory of its own as it is.",
        lambda part, context: mark_owned_values(
            part, context.target.infos(part), context.owned_feeds
        ),
    ),
    *CODE_PASSES,
)
FUSION = tuple(row for row in PASSES if row.gives is PARTITION)


def all_passes() -> tuple[Pass, ...]:
    """Return the passes in their order, with those that users registered."""
    passes = registered()
    return with_registered(PASSES, passes) if passes else PASSES


def register_pass(
    function: Callable[[Program], Program],
    name: str | None = None,
    *,
    before: str = "",
    after: str = "",
) -> None:
    """Run `function`, from program to program, before or after a pass of the list.

    `hpcflow plan --passes SCRIPT` lists the passes. Each rank that makes plans must register the
    same passes, before the first step. After each run of the function hpcflow checks that the nodes
    exist and that no update, fetch or order of effects was lost. A pass of the same name takes the
    place of an earlier one.

    Errors: GraphError for an unknown place, or one that has no program. When a plan is made:
    VerifyError that names the pass.
    """
    name = name or getattr(function, "__name__", "")
    if not callable(function) or not name:
        raise GraphError("register_pass takes a function and its name", line=user_line())
    place = before or after
    row = next((row for row in PASSES if row.name == place), None)
    if bool(before) == bool(after):
        raise GraphError("register_pass takes either before= or after=", line=user_line())
    if name in {row.name for row in PASSES}:
        raise GraphError(f"hpcflow has a pass {name!r} itself", line=user_line())
    if row is None:
        raise unknown_pass_error(place, PASSES, user_line())
    if form_at(row, bool(before)) not in (PROGRAM, PLACED):
        form = form_at(row, bool(before)).value
        raise GraphError(
            f"a registered pass takes a program; {'before' if before else 'after'} {place} there "
            f"is a {form}",
            line=user_line(),
            hint="choose a place after graph_pruning and before send_recv_insertion",
        )
    register(UserPass(name, function, before, after, user_line()))


# -- running it


def make_plan(
    graph: Graph,
    fetches: Sequence[Tensor | Operation],
    feeds: Mapping[Tensor, Spec],
    cluster: Cluster,
    settings: Settings,
    replica: int = 0,
    evaluate: Evaluate | None = None,
    finished: Container[Operation] = (),
) -> Plan:
    """Return the plan of one step of `replica`, from `feeds` to `fetches`.

    `feeds` hold the shapes of the fed arrays. Operations in `finished` ran in an earlier part of
    the step (partial run) and do not run again.
    Errors: FeedError, FetchError, ShapeError, PlacementError, VerifyError.
    """
    program = pruned(graph, fetches, feeds, finished)
    return plan_program(program, graph, cluster, settings, replica, evaluate)


def pruned(
    graph: Graph,
    fetches: Sequence[Tensor | Operation],
    feeds: Mapping[Tensor, Spec],
    finished: Container[Operation] = (),
    watch: Watch | None = None,
) -> Program:
    """Return the program of a step, after the first pass; arguments as of `make_plan`.

    Errors: FeedError, FetchError, ShapeError.
    """
    request = graph, fetches, feeds, finished
    program: Program = run_pass(PASSES[0], request, PlainContext(watch=watch, subject="step"))
    return program


def plan_program(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    replica: int = 0,
    evaluate: Evaluate | None = None,
    watch: Watch | None = None,
) -> Plan:
    """Return the plan of `program`, the subgraph of `graph` that a step needs.

    `evaluate(node, arrays)` computes a pure node for constant folding. Without it no node is
    folded. The caller verifies the plan (`hpcflow.plan.verification.plan_verifier`) before the plan
    runs.
    Errors: ShapeError, PlacementError, VerifyError.
    """
    sums = any(node.row.lowers_to for node in program.nodes.values())
    rows = [row for row in all_passes() if row.takes in (PROGRAM, PLACED, PLAN)]
    planning = Planning(graph, cluster, settings, replica, evaluate, watch, rows, sums=sums)
    plan: Plan = run_passes(rows, program, planning)
    plan = dataclasses.replace(
        plan,
        forecast=planning.forecast,
        task_seconds=planning.task_seconds,
        warnings=planning.warnings,
    )
    if planning.update is None:
        return plan
    begin = next(i for i, row in enumerate(rows) if row.name == "sync_program_split") + 1
    update = run_passes(rows[begin:], planning.update, planning.of_update())
    return dataclasses.replace(plan, round=update, updates=planning.updates)


def fused(
    part: Partition,
    target: LoweringTarget,
    verify: bool = False,
    watch: Watch | None = None,
    subject: str = "",
    owned_feeds: frozenset[str] = frozenset(),
) -> Partition:
    """Return the partition as it runs on `target`: operations of one kernel are one node.

    Errors: VerifyError if `verify` is set and a pass lost an effect.
    """
    fused_part: Partition = run_passes(
        FUSION, part, Lowering(target, verify, watch, subject, owned_feeds)
    )
    return fused_part
