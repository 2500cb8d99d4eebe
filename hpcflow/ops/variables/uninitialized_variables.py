"""Uninitialized variables: ops that report or assert them."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.graph.dtypes import string
from hpcflow.graph.graph import Operation, Tensor, get_default_graph
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.slice_ops import boolean_mask
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import logical_not
from hpcflow.ops.variables.variable_ops import (
    Variable,
    global_variables,
    is_variable_initialized,
    local_variables,
)


def _all(var_list: Sequence[Variable] | None) -> list[Variable]:
    return global_variables() + local_variables() if var_list is None else list(var_list)


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """The names of uninitialized variables, a vector of strings.

    It checks `var_list`, by default all variables created so far, including local ones.
    """
    variables = _all(var_list)
    with get_default_graph().name_scope(name):
        if not variables:
            return constant([], string)
        there = stack([is_variable_initialized(v) for v in variables])
        return boolean_mask(constant([v.name for v in variables], string), logical_not(there))


def assert_variables_initialized(var_list: Sequence[Variable] | None = None) -> Operation | None:
    """An operation that fails unless `var_list`, by default all variables, are initialized.

    None if there are no variables.

    Errors: UninitializedError at run time, naming the first one.
    """
    if not (variables := _all(var_list)):
        return None
    return group(*(v.read_value() for v in variables), name="assert_variables_initialized")
