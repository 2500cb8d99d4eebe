"""Measured step costs: rows of training steps that ran on a machine, with their features.

A row is a sample of the learned correction (`plan/cost/step_correction.py`): the features of the
step as planned, and its measured seconds. It has no times of operations: they are predicted from
the rows of operations whenever the row is used. The kind of an operation and the fed and fetched
bytes are part of the file's format, but no prediction reads them. `from_data` takes untrusted JSON
and raises ValueError if it is malformed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcflow.platform import measured_costs
from hpcflow.platform.measured_costs import SampleSummary

MOST_OPERATIONS = 256  # different ones of a row
PRODUCT, ELEMENTWISE, OTHER = "product", "elementwise", "other"  # kinds of operations


class CountedOperation(NamedTuple):
    """An operation of a step and how often the step calls it; all else is of one call.

    `constant_s` is its seconds by the constants of the cost model. If a size is known only at run
    time, `known` is False, and `flops` and `nbytes` are 0.
    """

    kind: str  # PRODUCT, ELEMENTWISE, OTHER
    type: str
    dtypes: tuple[str, ...]
    device: str  # the kind: cpu, gpu
    known: bool
    flops: int
    nbytes: int
    constant_s: float
    calls: int

    def as_data(self) -> list[Any]:
        """As JSON."""
        return [*self[:2], list(self.dtypes), *self[3:]]

    @classmethod
    def from_data(cls, data: Any) -> CountedOperation:
        """The inverse of `as_data`."""
        values = measured_costs.list_of(data, len(cls._fields))
        if len(values) != len(cls._fields):
            raise ValueError("an operation of a step has another number of fields")
        kind, type_, dtypes, device, known, flops, nbytes, constant_s, calls = values
        if kind not in (PRODUCT, ELEMENTWISE, OTHER) or not isinstance(known, bool):
            raise ValueError("an operation of a step is of no known kind")
        names = measured_costs.list_of(dtypes, measured_costs.MOST_DTYPES)
        return cls(
            kind,
            measured_costs.text_of(type_),
            tuple(map(measured_costs.text_of, names)),
            measured_costs.text_of(device),
            known,
            measured_costs.count_of(flops),
            measured_costs.count_of(nbytes),
            measured_costs.number_of(constant_s),
            measured_costs.count_of(calls, 1),
        )


class StepFeatures(NamedTuple):
    """What the predicted time of a step depends on, apart from the machine.

    All of it is that of the driver of one replica: its operations after fusion, the bytes of fed
    and fetched arrays, and the messages and collectives that it takes part in, with their bytes.
    """

    operations: tuple[CountedOperation, ...]
    fed_bytes: int = 0
    fetched_bytes: int = 0
    messages: int = 0
    message_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        return {**self._asdict(), "operations": [each.as_data() for each in self.operations]}

    @classmethod
    def from_data(cls, data: Any) -> StepFeatures:
        """The inverse of `as_data`."""
        fields = measured_costs.fields_of(data)
        rows = measured_costs.list_of(fields.get("operations"), MOST_OPERATIONS)
        counts = [measured_costs.count_of(fields.get(name)) for name in cls._fields[1:]]
        return cls(tuple(map(CountedOperation.from_data, rows)), *counts)


class StepKey(NamedTuple):
    """A plan by its digest, and the ranks that ran it.

    `ranks_on_node` are those on the node of rank 0, itself included. `threads` are of one rank.
    """

    plan: str
    ranks: int
    ranks_on_node: int
    nodes: int
    threads: int


class StepCost(NamedTuple):
    """Measured seconds of the steps of a run: of worker 0, without waiting for input.

    `step` is the whole step, `work` that without waiting for other ranks (its own work).
    """

    key: StepKey
    script: str  # its name, to show it
    features: StepFeatures
    work: SampleSummary
    step: SampleSummary
    updated: int = 0  # seconds since 1970

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        summaries = {"work": self.work.as_data(), "step": self.step.as_data()}
        row = {"script": self.script, **self.features.as_data(), **summaries}
        return {**self.key._asdict(), **row, "updated": self.updated}

    @classmethod
    def from_data(cls, data: Any) -> StepCost:
        """The inverse of `as_data`."""
        fields = measured_costs.fields_of(data)
        counts = [measured_costs.count_of(fields.get(name), 1) for name in StepKey._fields[1:]]
        return cls(
            StepKey(measured_costs.text_of(fields.get("plan")), *counts),
            measured_costs.text_of(fields.get("script")),
            StepFeatures.from_data(fields),
            SampleSummary.from_data(fields.get("work")),
            SampleSummary.from_data(fields.get("step")),
            measured_costs.count_of(fields.get("updated")),
        )

    def merged(self, other: StepCost) -> StepCost:
        """The row of the steps of both, whose keys are equal; the later one has the features."""
        last = max(self, other, key=lambda row: row.updated)
        return last._replace(work=self.work.merged(other.work), step=self.step.merged(other.step))
