"""Who runs a program: hpcflow with generated or plain kernels, the interpreter, TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

from .interpret import Interpreter, StuckError, earliest
from .lines import Program


@dataclasses.dataclass
class Outcome:
    """What a side made of a program: for each step the fetched values, then the variables'.

    `error` is what stopped it, "" if nothing did.
    """

    steps: list[list[Any]] = dataclasses.field(default_factory=list)
    error: str = ""


ALL = ("hpcflow", "plain kernels", "interpreter", "interpreter, another order")
Sides = dict[str, Outcome]
_contexts: dict[str, RankContext] = {}


def contexts(kernels: str) -> RankContext:
    """A rank alone that keeps no plans on disk, shared by all programs."""
    if kernels not in _contexts:
        _contexts[kernels] = RankContext(Settings(kernels=kernels, plan_cache="none"))
    return _contexts[kernels]


def with_hpcflow(program: Program, only: Collection[str] = ALL) -> Sides:
    """The program run by hpcflow with generated and with plain kernels, and by the interpreter."""
    names: dict[str, Any] = {"tf": hf, "np": np}
    with quiet(), hf.Graph().as_default() as graph:
        try:
            exec(program.graph_text(), names)
            init = hf.global_variables_initializer()
        except Exception as error:
            return dict.fromkeys(only, Outcome(error=told(error)))

        def run(kernels: str) -> Outcome:
            with hf.Session(graph=graph, context=contexts(kernels)) as session:
                return _steps(program, names, session.run, init)

        def interpreted(pick: Callable[..., int]) -> Outcome:
            return _steps(program, names, Interpreter(pick).run, init)

        sides: dict[str, Callable[[], Outcome]] = {
            "hpcflow": lambda: run("auto"),
            "plain kernels": lambda: run("plain"),
            "interpreter": lambda: interpreted(earliest),
            "interpreter, another order": lambda: interpreted(_at_random(program)),
        }
        return {name: side() for name, side in sides.items() if name in only}


def stuck(program: Program) -> bool:
    """Whether a step of it would never end."""
    return StuckError.__name__ in with_hpcflow(program, ["interpreter"])["interpreter"].error


def _at_random(program: Program) -> Callable[[list[Any]], int]:
    rng = random.Random(len(program.graph_text()))
    return lambda ready: rng.randrange(len(ready))


def _steps(program: Program, names: dict[str, Any], run: Callable[..., Any], init: Any) -> Outcome:
    outcome = Outcome()
    states = [names[v] for v in program.variables]
    try:
        run([init], {})
        for step in program.runs:
            fed = {names[name]: value for name, value in step.feeds.items()}
            found = list(run([names[f] for f in step.fetches], fed))
            if states:
                found += list(run(states, {}))
            outcome.steps.append([None if v is None else np.array(v) for v in found])
    except Exception as error:
        outcome.error = told(error)
    return outcome


def with_tensorflow(program: Program, all_values: bool = False) -> Outcome:
    """The program run by TensorFlow, as TensorFlow 1 with resource variables.

    With `all_values` each step also fetches all that its fetches need, which may change nothing.
    """
    tf = tensorflow()
    names: dict[str, Any] = {"tf": tf, "np": np}
    with quiet(), tf.Graph().as_default() as graph:
        try:
            exec(program.graph_text(), names)
            init = tf.global_variables_initializer()
        except Exception as error:
            return Outcome(error=told(error))
        config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.operation_timeout_in_ms = 30_000
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session(graph=graph, config=config) as session:

            def run(fetches: list[Any], feeds: dict[Any, Any]) -> list[Any]:
                more = _behind(fetches, feeds) if all_values else []
                return list(session.run([*fetches, *more], feeds)[: len(fetches)])

            return _steps(program, names, run, init)


def _behind(fetches: Sequence[Any], feeds: Collection[Any]) -> list[Any]:
    """The tensors of TensorFlow that fetches need, but those in branches and loops."""
    stack = [getattr(f, "op", f) for f in fetches]
    there = {t.op for t in feeds}
    seen, found = set(stack), []
    while stack:
        op = stack.pop()
        if op._get_control_flow_context() is None:  # no public way asks where an operation is
            found += [t for t in op.outputs if t.dtype not in ("resource", "variant")]
        if op not in there:
            new = {t.op for t in op.inputs} | set(op.control_inputs)
            stack += new - seen
            seen |= new
    return found


def tensorflow() -> Any:
    """TensorFlow's API of version 1. Errors: ImportError where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow

    tf = tensorflow.compat.v1
    if tf.executing_eagerly():
        tf.disable_v2_behavior()
        tf.enable_resource_variables()
        tf.logging.set_verbosity(tf.logging.FATAL)
    return tf


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings of NumPy or of libraries."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


def told(error: Exception) -> str:
    """An error by its class and the first line of its text."""
    lines = str(error).strip().splitlines() or [""]
    ours = isinstance(error, HpcflowError)
    return f"{'' if ours else 'raw '}{type(error).__name__}: {lines[0][:200]}"
