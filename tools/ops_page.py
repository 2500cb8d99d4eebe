"""Writes docs/ops.md from the op table: `python tools/ops_page.py > docs/ops.md`."""

from __future__ import annotations

from hpcflow.graph.op_registry import NoGrad, OpDef, all_ops
from hpcflow.kernels.kernel_registry import names

HEAD = """# The op table

One row an op, as `hpcflow/ops/` declares it; this page is made by `tools/ops_page.py`. *Kernel*:
the op has one for NumPy and CuPy; the others are done by the plan and the engine. *State*: it reads
or updates a variable, may not be repeated, or waits for other ranks.

| op | kernel | gradient | state |
|---|---|---|---|
"""


def main() -> None:
    """Print the page."""
    print(page(), end="")


def page() -> str:
    """The whole page."""
    ops, kernels = all_ops(), names()
    return HEAD + "".join(_row(ops[name], name in kernels) for name in sorted(ops))


def _row(row: OpDef, kernel: bool) -> str:
    gradient = f"none: {row.grad.reason}" if isinstance(row.grad, NoGrad) else "yes"
    facts = {
        "reads": row.reads,
        "updates": row.writes,
        "sums over ranks": row.collective,
        "waits": row.waits,
        "not repeatable": row.stateful,
    }
    state = ", ".join(word for word, fact in facts.items() if fact)
    return f"| {row.name} | {'yes' if kernel else ''} | {gradient} | {state} |\n"


if __name__ == "__main__":
    main()
