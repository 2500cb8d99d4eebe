"""What all ranks know of a save: the chief decides it, and sends it to the writers as JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from hpcflow.checkpoint import header_digests
from hpcflow.checkpoint.checkpoint_layout import ArraySpec, decode_arrays

Facts = dict[str, Any]  # plain data, as in the user block of a file


@dataclasses.dataclass(frozen=True)
class SavePlan:
    """A save: its arrays, its writers, and where they write."""

    id: str
    step: int
    form: str  # "sharded": a file for each writer; "parallel": one file of all
    arrays: tuple[ArraySpec, ...]
    paths: Mapping[str, str]  # array -> its path in HDF5 files
    writers: tuple[int, ...]  # ranks
    facts: Facts  # further facts of the index
    wanted: Mapping[str, str] = dataclasses.field(default_factory=dict)  # variable -> array
    draft: str = ""  # the path that is written, and renamed at the end
    # of the form "parallel": bytes of the user block, alignment and offsets of the arrays
    block: int = 0
    align: int = 0
    offsets: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    waits: bool = False  # training waits for the save

    @property
    def is_parallel(self) -> bool:
        """Whether all writers write one file."""
        return self.form == "parallel"

    @functools.cached_property
    def by_name(self) -> dict[str, ArraySpec]:
        """The arrays by name."""
        return {array.name: array for array in self.arrays}

    @property
    def attributes(self) -> Facts:
        """Attributes of the HDF5 file, for readers that know nothing of hpcflow."""
        facts = {name: v for name, v in self.facts.items() if isinstance(v, (int, float, str))}
        version = header_digests.FORMAT_VERSION
        return {"format_version": version, "id": self.id, "step": self.step, **facts}

    @property
    def index_facts(self) -> Facts:
        """The facts of the index, in the order in which they are written."""
        header = {"id": self.id, "step": self.step, "form": self.form}
        return {**header, "arrays": list(self.arrays), "paths": dict(self.paths), **self.facts}

    def part_facts(self, rank: int) -> Facts:
        """The facts of a writer's own file."""
        return {"id": self.id, "step": self.step, "part": rank}

    def as_message(self) -> Facts:
        """This plan as plain data."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> SavePlan:
        """The plan in a message. Errors: KeyError, TypeError or ValueError for any other data."""
        values = {field.name: message[field.name] for field in dataclasses.fields(cls)}
        arrays, writers = tuple(decode_arrays(message).values()), tuple(message["writers"])
        return cls(**{**values, "arrays": arrays, "writers": writers})
