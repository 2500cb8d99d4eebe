"""TensorFlow 1's `DeviceSpec`: the parts of a device name, each optional."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import parse_device


class DeviceSpec:
    """A constraint on devices, part by part; `hf.device` accepts it or its string.

    `replica` is for compatibility with TensorFlow: it is in the string and has no effect.
    """

    def __init__(
        self,
        job: str | None = None,
        replica: int | None = None,
        task: int | None = None,
        device_type: str | None = None,
        device_index: int | None = None,
    ) -> None:
        self.job, self.replica, self.task = job, _as_index(replica), _as_index(task)
        self.device_type = None if device_type is None else device_type.upper()
        self.device_index = _as_index(device_index)
        parse_device(self.to_string())  # raises for an invalid name

    @staticmethod
    def from_string(spec: str) -> DeviceSpec:
        """Parse "/job:worker/task:1/device:GPU:0"; requirements are no part of it.

        Errors: PlacementError if it is invalid.
        """
        return DeviceSpec().parse_from_string(spec)

    def parse_from_string(self, spec: str) -> DeviceSpec:
        """Set the parts from a string."""
        if not isinstance(spec, str):
            raise PlacementError(f"{spec!r} is not the name of a device", hint="give a string")
        parsed = parse_device(spec)
        replica = next((p[8:] for p in spec.split("/") if p.startswith("replica:")), None)
        self.job, self.task, self.replica = parsed.job, parsed.task, _as_index(replica)
        self.device_type = None if parsed.kind is None else parsed.kind.upper()
        self.device_index = parsed.index
        return self

    def merge_from(self, dev: DeviceSpec) -> None:
        """Take over the parts that `dev` has."""
        for part in ("job", "replica", "task", "device_type", "device_index"):
            if getattr(dev, part) is not None:
                setattr(self, part, getattr(dev, part))

    def to_string(self) -> str:
        """The string "/job:worker/replica:0/task:1/device:GPU:0", without missing parts."""
        parts = (("job", self.job), ("replica", self.replica), ("task", self.task))
        text = "".join(f"/{name}:{value}" for name, value in parts if value is not None)
        if self.device_type is not None:
            index = "*" if self.device_index is None else self.device_index
            text += f"/device:{self.device_type}:{index}"
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceSpec) and self.to_string() == other.to_string()

    def __hash__(self) -> int:
        return hash(self.to_string())

    def __repr__(self) -> str:
        return f"DeviceSpec({self.to_string()!r})"


def _as_index(number: Any) -> int | None:
    if number is None:
        return None
    try:
        return int(number)
    except (TypeError, ValueError):
        raise PlacementError(f"{number!r} is not a device index") from None
