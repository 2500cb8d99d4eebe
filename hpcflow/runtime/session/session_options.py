"""Session options: interpretation of ConfigProto and RunOptions."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import GraphError
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.platform import cpu_threads
from hpcflow.platform.exception_translation import user_line, value_text
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.runtime.dynamic_types import FeedValue
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.config_proto import ConfigProto, ProtoMessage, RunMetadata, RunOptions
from hpcflow.runtime.step.step_deadline import StepDeadline


def check_config(config: ConfigProto | None, context: RankContext) -> ConfigProto:
    """Check `config`, by default an empty one; warn once of thread and GPU options without effect.

    Errors: GraphError if it is no ConfigProto.
    """
    if config is None:
        return ConfigProto()
    _check_option("config", config, ConfigProto)
    threads, own_threads = config.intra_op_parallelism_threads, cpu_threads.chosen_threads().threads
    if threads and threads != own_threads:
        say_once(
            f"intra_op_parallelism_threads={threads} has no effect: this rank has {own_threads} "
            "threads; "
            f"HPCFLOW_THREADS={threads} in the environment gives it as many"
        )
    on_gpu = any(d.startswith("gpu") for d in context.cluster.devices)
    if on_gpu and _without_gpus(config) and context.cluster.mode != "single":
        say_once("device_count without GPUs has no effect in a job of several ranks")
    if on_gpu and config.gpu_options.visible_device_list:
        say_once("visible_device_list has no effect: each rank has one GPU, CUDA_VISIBLE_DEVICES")
    if on_gpu and config.gpu_options.per_process_gpu_memory_fraction:
        say_once("per_process_gpu_memory_fraction has no effect: memory_limit is a setting")
    return config


def _check_option(name: str, value: FeedValue, kind: type[ProtoMessage]) -> None:
    if not isinstance(value, kind):
        raise GraphError(
            f"{name}={value_text(value)} is no {kind.__name__}",
            line=user_line(),
            hint=f"give hf.{kind.__name__}(...)",
        )


def _without_gpus(config: ConfigProto) -> bool:
    return any(str(kind).upper() == "GPU" and not n for kind, n in config.device_count.items())


def run_deadline(config: ConfigProto) -> float | None:
    """The deadline of each run of a session in seconds; None: no deadline."""
    ms = config.operation_timeout_in_ms
    return ms / 1000 if ms > 0 else None


def configured_cluster(config: ConfigProto, base_cluster: Cluster) -> Cluster:
    """The cluster `base_cluster` with the devices and placement options of a session's config."""
    counts = {str(kind).upper(): n for kind, n in config.device_count.items()}
    devices = base_cluster.devices
    if _without_gpus(config) and base_cluster.mode == "single":
        devices = tuple(d for d in devices if not d.startswith("gpu")) or devices
    soft, cpus = config.allow_soft_placement, counts.get("CPU", 1)
    if (devices, soft, cpus) == (base_cluster.devices, base_cluster.soft, base_cluster.cpus):
        return base_cluster
    return dataclasses.replace(base_cluster, devices=devices, soft=soft, cpus=cpus)


def requested_options(
    options: RunOptions | None,
    metadata: RunMetadata | None,
    deadline: float | None,
    limit_s: float | None,
) -> tuple[StepDeadline | None, bool]:
    """The deadline of a run, and whether it is traced into `metadata`.

    The deadline is `deadline`, else that of `options`, else `limit_s`, the session's; in seconds. A
    run without `metadata` is not traced.
    Errors: GraphError for options or metadata of another type.
    """
    if options is not None:
        _check_option("options", options, RunOptions)
        if deadline is None and options.timeout_in_ms > 0:
            deadline = options.timeout_in_ms / 1000
    if metadata is not None:
        _check_option("run_metadata", metadata, RunMetadata)
    seconds = limit_s if deadline is None else deadline
    traces = metadata is not None and options is not None and options.trace_level > 0
    return None if seconds is None else StepDeadline(seconds), traces


def merge_options(options: RunOptions | None, other_options: RunOptions) -> RunOptions:
    """Merge two options: the higher trace level, the longer timeout."""
    _check_option("options", other_options, RunOptions)
    if options is None:
        return other_options
    _check_option("options", options, RunOptions)
    names = RunOptions._fields
    return RunOptions(
        **{name: max(getattr(options, name), getattr(other_options, name)) for name in names}
    )


def log_placement(plan: Plan) -> None:
    """Log the device of each operation of a plan."""
    rows = [
        f"{node.name}: ({node.type}): {node.device}"
        for part in plan.parts.values()
        for node in part.nodes.values()
        if node.device
    ]
    logger.info("placement of operations:\n  %s", "\n  ".join(rows))
