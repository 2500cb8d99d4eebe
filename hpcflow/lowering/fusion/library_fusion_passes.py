"""Library fusion passes: nodes that one library kernel computes together become one node."""

from __future__ import annotations

from hpcflow.lowering.fusion.bias_relu_epilogue import Serves, with_epilogues
from hpcflow.lowering.fusion.max_pool_relu_gradient import with_pool_gradients
from hpcflow.lowering.segments_between_waits import cut
from hpcflow.plan.ir.program import Part


def combined(part: Part, serves: Serves) -> Part:
    """The partition with library kernels fused where `serves` finds a better kernel.

    Rounding may change.
    """
    part = with_epilogues(part, cut(part), serves)
    return with_pool_gradients(part, cut(part), serves)
