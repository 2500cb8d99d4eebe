"""What a rank knows of a load: its driver sends it as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class LoadPlan:
    """A load of one checkpoint into the variables of a rank."""

    path: str
    id: str  # of the save, as all ranks must find it
    wanted: Mapping[str, str]  # variable -> name in the checkpoint
    own: Mapping[str, Sequence[str]]  # variable -> names whose values are added
    seed: Sequence[int] | None  # of the job and its session; None: not restored
    draws: Sequence[tuple[str, str, int]]  # (fetches, op, draws made)

    def as_message(self) -> dict[str, Any]:
        """This plan as plain data."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> LoadPlan:
        """The plan in a message. Errors: KeyError for any other data."""
        return cls(**{field.name: message[field.name] for field in dataclasses.fields(cls)})
