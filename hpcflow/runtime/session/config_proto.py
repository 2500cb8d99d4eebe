"""ConfigProto, RunOptions, RunMetadata and related TensorFlow 1 messages, as plain classes.

The docstrings list the fields that have an effect. The others keep their values and have none.
"""

from __future__ import annotations

import copy
import difflib
import numbers
from typing import TYPE_CHECKING, ClassVar

from hpcflow.errors import ArgumentError
from hpcflow.platform.exception_translation import user_line, value_text
from hpcflow.runtime.dynamic_types import FeedValue, Json


class ProtoMessage:
    """Base class: fields with defaults, set by keyword or by assignment.

    Errors: ArgumentError for an unknown field or a value of another type.
    """

    _fields: ClassVar[Json] = {}  # name -> default value, or type: Message, list, dict

    def __init__(self, **fields: FeedValue) -> None:
        for name, default in self._fields.items():
            vars(self)[name] = default() if isinstance(default, type) else default
        for name, value in fields.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> FeedValue: ...

    def __setattr__(self, name: str, value: FeedValue) -> None:
        if name not in self._fields:
            raise _unknown(self, name)
        vars(self)[name] = _fitting(self, name, self._fields[name], value)

    def CopyFrom(self, other: ProtoMessage) -> None:
        """Copy all fields of `other`, a message of the same class."""
        if type(other) is not type(self):
            kind = type(self).__name__
            raise ArgumentError(
                f"{kind}.CopyFrom({value_text(other)})", line=user_line(), hint=f"give an hf.{kind}"
            )
        vars(self).update(copy.deepcopy(vars(other)))

    def HasField(self, name: str) -> bool:
        """Whether a field differs from its default."""
        if name not in self._fields:
            raise _unknown(self, name)
        default = self._fields[name]
        return bool(vars(self)[name] != (default() if isinstance(default, type) else default))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        fields = [f"{name}={vars(self)[name]!r}" for name in self._fields if self.HasField(name)]
        return f"{type(self).__name__}({', '.join(fields)})"


def _unknown(message: ProtoMessage, name: str) -> ArgumentError:
    kind, fields = type(message).__name__, sorted(message._fields)
    near = difflib.get_close_matches(name, fields, n=1)
    return ArgumentError(
        f"{kind} has no field {name!r}; its fields are {', '.join(fields)}",
        line=user_line(),
        hint=f"write {near[0]}" if near else f"leave {name!r} out",
    )


def _fitting(message: ProtoMessage, name: str, default: FeedValue, value: FeedValue) -> FeedValue:
    """`value` converted to the type of the field. Errors: ArgumentError for another type."""
    if isinstance(default, type):
        if issubclass(default, ProtoMessage) and isinstance(value, default):
            return copy.deepcopy(value)
        if default is dict and isinstance(value, dict):
            return dict(value)
        if default is list and isinstance(value, (list, tuple)):
            return list(value)
        type_name = default.__name__
    else:
        type_name = type(default).__name__
        if isinstance(default, (bool, str)):
            fits = isinstance(value, type(default)) or (type_name == "bool" and value in (0, 1))
        else:
            fits = isinstance(
                value, numbers.Real if isinstance(default, float) else numbers.Integral
            )
        if fits:
            return type(default)(value)
    raise ArgumentError(
        f"{type(message).__name__}.{name} is {value_text(value)}",
        line=user_line(),
        hint=f"give a value of type {type_name}",
    )


class OptimizerOptions(ProtoMessage):
    """TensorFlow's graph optimizations; no field has an effect here."""

    L1, L0 = 0, -1
    DEFAULT, OFF, ON_1, ON_2 = 0, -1, 1, 2
    _fields: ClassVar[Json] = {
        "do_common_subexpression_elimination": False,
        "do_constant_folding": False,
        "max_folded_constant_in_bytes": 0,
        "do_function_inlining": False,
        "opt_level": 0,
        "global_jit_level": 0,
        "cpu_global_jit": False,
    }


class RewriterConfig(ProtoMessage):
    """TensorFlow's Grappler rewriters; no field has an effect here."""

    DEFAULT, ON, OFF, AGGRESSIVE = 0, 1, 2, 3
    _fields: ClassVar[Json] = {
        "arithmetic_optimization": 0,
        "auto_mixed_precision": 0,
        "constant_folding": 0,
        "debug_stripper": 0,
        "dependency_optimization": 0,
        "disable_meta_optimizer": False,
        "disable_model_pruning": False,
        "function_optimization": 0,
        "layout_optimizer": 0,
        "loop_optimization": 0,
        "memory_optimization": 0,
        "meta_optimizer_iterations": 0,
        "min_graph_nodes": 0,
        "optimizers": list,
        "pin_to_host_optimization": 0,
        "remapping": 0,
        "scoped_allocator_optimization": 0,
        "shape_optimization": 0,
    }


class GraphOptions(ProtoMessage):
    """TensorFlow's graph options; no field has an effect here."""

    _fields: ClassVar[Json] = {
        "enable_recv_scheduling": False,
        "optimizer_options": OptimizerOptions,
        "rewrite_options": RewriterConfig,
        "build_cost_model": 0,
        "build_cost_model_after": 0,
        "infer_shapes": False,
        "place_pruned_graph": False,
        "enable_bfloat16_sendrecv": False,
        "timeline_step": 0,
    }


class GPUOptions(ProtoMessage):
    """TensorFlow's GPU memory options; no field has an effect here."""

    _fields: ClassVar[Json] = {
        "per_process_gpu_memory_fraction": 0.0,
        "allow_growth": False,
        "allocator_type": "",
        "deferred_deletion_bytes": 0,
        "visible_device_list": "",
        "polling_active_delay_usecs": 0,
        "polling_inactive_delay_msecs": 0,
        "force_gpu_compatible": False,
    }


class ConfigProto(ProtoMessage):
    """Options of a session: `hf.Session(config=hf.ConfigProto(allow_soft_placement=True))`.

    `allow_soft_placement`: an operation whose task lacks the requested device runs on another one.
    `log_device_placement`: log the device of each operation of a plan.
    `operation_timeout_in_ms`: the deadline of each run without its own (`hpcflow help deadlines`).
    `device_count`: without GPUs, a job of one rank does not use its GPUs; with several CPUs, their
    names are aliases of the one CPU device.
    The other fields have no effect, but for warnings.
    """

    _fields: ClassVar[Json] = {
        "device_count": dict,
        "intra_op_parallelism_threads": 0,
        "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "placement_period": 0,
        "device_filters": list,
        "gpu_options": GPUOptions,
        "allow_soft_placement": False,
        "log_device_placement": False,
        "graph_options": GraphOptions,
        "operation_timeout_in_ms": 0,
        "isolate_session_state": False,
        "share_cluster_devices_in_session": False,
    }


class RunOptions(ProtoMessage):
    """Options of one run: `session.run(y, options=hf.RunOptions(timeout_in_ms=500))`."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = range(4)
    _fields: ClassVar[Json] = {
        "trace_level": 0,
        "timeout_in_ms": 0,
        "inter_op_thread_pool": 0,
        "output_partition_graphs": False,
        "report_tensor_allocations_upon_oom": False,
    }


class NodeExecStats(ProtoMessage):
    """The times of an operation in microseconds and nanoseconds; ends are relative to the start."""

    _fields: ClassVar[Json] = {
        "node_name": "",
        "all_start_micros": 0,
        "op_start_rel_micros": 0,
        "op_end_rel_micros": 0,
        "all_end_rel_micros": 0,
        "all_start_nanos": 0,
        "op_start_rel_nanos": 0,
        "op_end_rel_nanos": 0,
        "all_end_rel_nanos": 0,
        "memory": list,
        "output": list,
        "timeline_label": "",
        "scheduled_micros": 0,
        "scheduled_nanos": 0,
        "thread_id": 0,
    }


class DeviceStepStats(ProtoMessage):
    """The operations that ran on a device."""

    _fields: ClassVar[Json] = {"device": "", "node_stats": list}


class StepStats(ProtoMessage):
    """The operations that ran, by device."""

    _fields: ClassVar[Json] = {"dev_stats": list}


class RunMetadata(ProtoMessage):
    """Output of a run: `step_stats`, if it was traced."""

    _fields: ClassVar[Json] = {"step_stats": StepStats, "partition_graphs": list}
