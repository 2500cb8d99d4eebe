"""Code generator of einsums of two arrays that are bound by memory bandwidth.

Such an einsum is no matrix product, or one with a vector for each of a batch: hardly any element is
used twice. Reading the arrays takes all the time, so the loops follow the order of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.llvm_builder import TYPES, LlvmValue, number
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module

ARRAYS = ("%x", "%y", "%out")
OUT = ARRAYS[2]


def innermost(terms: Sequence[str], out: str) -> str:
    """The label of the inner loop: the last axis of each array that has it; "" if there is none."""
    arrays = [labels for labels in (out, *terms) if labels]
    lasts = [term[-1] for term in arrays]
    fit = [c for c in lasts if all(term[-1] == c for term in arrays if c in term)]
    return max(fit, key=lasts.count, default="")


def text(terms: Sequence[str], out: str, dtype: str) -> str:
    """The LLVM IR of a kernel of two arrays and the result, in C order; the terms label their axes.

    The outer loops are those over the labels of `out`, then those over the summed labels, in the
    order of the terms. `innermost` is the inner loop; it must exist. Threads split the first outer
    loop.
    """
    head = BasicBlocks(ARRAYS)
    length = _lengths(head, (*terms, out))
    elements = int64_constant(1)
    for label in length:
        elements = head.binary("mul", elements, length[label])
    writer = _EinsumWriter(terms, out, dtype)
    outer = [c for c in out if c != writer.inner]
    last = length[outer[0]] if outer else int64_constant(1)
    writer.ranged(outer)
    return module(head, python_call_abi.KernelRanges("0", last.text, elements.text), writer)


def _lengths(b: BasicBlocks, axes: Sequence[str]) -> dict[str, LlvmValue]:
    """The size of each label."""
    lengths: dict[str, LlvmValue] = {}
    for name, labels in zip(ARRAYS, axes, strict=True):
        for axis, label in enumerate(labels):
            lengths.setdefault(label, b.size(name, axis))
    return lengths


class _EinsumWriter(BasicBlocks):
    """Writes the loops: `length` of a label, and its `step` (stride) in each array."""

    def __init__(self, terms: Sequence[str], out: str, dtype: str) -> None:
        super().__init__(ARRAYS)
        self.element_type, self.inner = TYPES[dtype], innermost(terms, out)
        self.axes = dict(zip(ARRAYS, (*terms, out), strict=True))
        together = dict.fromkeys("".join(terms))
        self.summed = [c for c in together if c not in out and c != self.inner]
        self.length = _lengths(self, (*terms, out))
        self.step: dict[tuple[str, str], LlvmValue] = {}
        for name in ARRAYS:
            behind = int64_constant(1)
            for label in reversed(self.axes[name]):
                self.step[name, label] = behind
                behind = self.binary("mul", behind, self.length[label])

    def ranged(self, labels: Sequence[str]) -> None:
        """The loop over a thread's range of the first outer label, one iteration without labels."""
        starts = {name: self.data(name) for name in ARRAYS}
        with self.loop(COUNT) as loop:
            i = self.binary("add", BEGIN, loop.i)
            self.outer_loops(labels[1:], self.further(starts, labels[0], i) if labels else starts)

    def outer_loops(self, labels: Sequence[str], starts: dict[str, LlvmValue]) -> None:
        """A loop for each outer label; inside, a row or one element of the result."""
        if labels:
            with self.loop(self.length[labels[0]]) as loop:
                self.outer_loops(labels[1:], self.further(starts, labels[0], loop.i))
        elif self.inner not in self.axes[OUT]:
            total = self.total(self.summed, starts, number(0, self.element_type))
            self.store(total, starts[OUT])
        elif self.summed:
            with self.loop(self.length[self.inner], free=True) as loop:
                self.store(
                    number(0, self.element_type),
                    self.element_address(starts[OUT], loop.i, self.element_type),
                    loop.tag,
                )
            self.rows(self.summed, starts)
        else:
            self.row(starts, is_first=True)

    def further(
        self, starts: dict[str, LlvmValue], label: str, i: LlvmValue
    ) -> dict[str, LlvmValue]:
        """The base addresses of the arrays in iteration `i` of the loop over a label."""
        addresses = dict(starts)
        for name in ARRAYS:
            if label in self.axes[name]:
                away = self.binary("mul", i, self.step[name, label])
                addresses[name] = self.element_address(starts[name], away, self.element_type)
        return addresses

    def rows(self, summed: Sequence[str], starts: dict[str, LlvmValue]) -> None:
        """Add rows of products to a row of the result."""
        if not summed:
            self.row(starts)
            return
        with self.loop(self.length[summed[0]]) as loop:
            self.rows(summed[1:], self.further(starts, summed[0], loop.i))

    def row(self, starts: dict[str, LlvmValue], is_first: bool = False) -> None:
        """Add one row of products to a row of the result, or store it with `is_first`."""
        same = self.unmoved(starts)
        with self.loop(self.length[self.inner], free=True) as loop:
            element = self.product(same, starts, loop.i, loop.tag)
            at = self.element_address(starts[OUT], loop.i, self.element_type)
            if not is_first:
                element = self.binary("add", self.load(at, self.element_type, loop.tag), element)
            self.store(element, at, loop.tag)

    def total(
        self, summed: Sequence[str], starts: dict[str, LlvmValue], sum: LlvmValue
    ) -> LlvmValue:
        """The sum of products; additions of the inner loop may be reordered."""
        label = summed[0] if summed else self.inner
        same = {} if summed else self.unmoved(starts)
        with self.loop(self.length[label], [sum], free=not summed) as loop:
            if summed:
                further = self.further(starts, label, loop.i)
                loop.next = [self.total(summed[1:], further, loop.carried[0])]
            else:
                x, word = self.product(same, starts, loop.i, loop.tag), "fadd reassoc"
                loop.next = [self.binary(word, loop.carried[0], x)]
        return loop.ends[0]

    def unmoved(self, starts: dict[str, LlvmValue]) -> dict[str, LlvmValue]:
        """The factors that are invariant in the inner loop."""
        names = [name for name in ARRAYS[:2] if self.inner not in self.axes[name]]
        return {name: self.load(starts[name], self.element_type) for name in names}

    def product(
        self, invariants: dict[str, LlvmValue], starts: dict[str, LlvmValue], i: LlvmValue, tag: str
    ) -> LlvmValue:
        """The product of the elements of iteration `i`."""
        x, y = (
            invariants.get(name)
            or self.load(
                self.element_address(starts[name], i, self.element_type), self.element_type, tag
            )
            for name in ARRAYS[:2]
        )
        return self.binary("mul", x, y)
