"""Nodes that one kernel computes together become one node, if such a kernel serves them."""

from __future__ import annotations

from hpcflow.plan.fusion.epilogue import Serves, with_epilogues
from hpcflow.plan.fusion.pool_grad import with_pool_gradients
from hpcflow.plan.ir import Part
from hpcflow.plan.strands import cut


def combined(part: Part, serves: Serves) -> Part:
    """The part as it is compiled where `serves` says which nodes have a better than plain kernel.

    Rounding may change.
    """
    part = with_epilogues(part, cut(part), serves)
    return with_pool_gradients(part, cut(part), serves)
