"""Machine profile: a file of measured costs for each kind of node, in the user's cache folder.

The name of the file is a digest of the facts of the machine, so that unlike nodes with one home
folder have a file each. Jobs that end at the same time add to it in turn. No fault of the file
fails a job: a damaged file is replaced at the next write, one that cannot be written is left, and
one line tells it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpcflow.errors import HpcflowError
from hpcflow.platform import file_locks
from hpcflow.platform.artifact_cache import COSTS, cache_place
from hpcflow.platform.measured_costs import CollectiveCost, LinkCost, OperationCost
from hpcflow.platform.measured_step_costs import StepCost
from hpcflow.platform.measured_waits import WaitCost
from hpcflow.platform.rank_logging import logger
from hpcflow.platform.record_files import read_json_object, unreadable_error
from hpcflow.platform.terminal_escaping import escape_line

FORMAT = "hpcflow-costs-1"  # also part of the file's name
MOST_ROWS = 2048  # of operations; those that were not measured for the longest time are removed
MOST_STEPS = 64  # rows of steps, likewise
PATIENCE_S = 20.0  # longest wait for the lock of the file


class _Row(Protocol):
    """A row of a table of the profile."""

    @property
    def key(self) -> Any: ...

    def merged(self, other: Any) -> Any: ...


Row = TypeVar("Row", bound=_Row)


@dataclasses.dataclass(frozen=True)
class MachineProfile:
    """What is known of one kind of node; the keys of the rows of a table differ."""

    operations: tuple[OperationCost, ...] = ()
    links: tuple[LinkCost, ...] = ()
    collectives: tuple[CollectiveCost, ...] = ()
    steps: tuple[StepCost, ...] = ()
    waits: tuple[WaitCost, ...] = ()

    def merged(self, other: MachineProfile) -> MachineProfile:
        """The rows of both; those with equal keys become one."""
        operations = _merged_rows((*self.operations, *other.operations))
        steps = _merged_rows((*self.steps, *other.steps))
        return MachineProfile(
            tuple(sorted(operations, key=lambda row: -row.updated)[:MOST_ROWS]),
            _merged_rows((*self.links, *other.links)),
            _merged_rows((*self.collectives, *other.collectives)),
            tuple(sorted(steps, key=lambda row: -row.updated)[:MOST_STEPS]),
            _merged_rows((*self.waits, *other.waits)),
        )

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        tables = (field.name for field in dataclasses.fields(self))
        return {name: [row.as_data() for row in getattr(self, name)] for name in tables}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> MachineProfile:
        """The inverse of `as_data`. Errors: ValueError if a table or row is malformed.

        A profile that was written before there were rows of steps or waits has none.
        """
        tables = [
            {"steps": [], "waits": [], **data}.get(field.name) for field in dataclasses.fields(cls)
        ]
        if not all(isinstance(table, list) for table in tables):
            raise ValueError("a table is missing")
        operations, links, collectives, steps, waits = tables
        return cls().merged(
            cls(
                tuple(map(OperationCost.from_data, operations or ())),
                tuple(map(LinkCost.from_data, links or ())),
                tuple(map(CollectiveCost.from_data, collectives or ())),
                tuple(map(StepCost.from_data, steps or ())),
                tuple(map(WaitCost.from_data, waits or ())),
            )
        )


class ProfileFile:
    """The file of the profile of one kind of node, whose facts are `machine`."""

    def __init__(self, folder: Path, machine: Mapping[str, str]) -> None:
        facts = json.dumps({"format": FORMAT, **machine}, sort_keys=True)
        self.machine = dict(machine)
        self.path = folder / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"

    def read(self) -> MachineProfile:
        """The profile; an empty one if there is no file.

        Errors: HpcflowError if the file cannot be read, or is not of this format and machine.
        """
        data = read_json_object(self.path)
        if data is None:
            return MachineProfile()
        if data.get("format") != FORMAT or data.get("machine") != self.machine:
            raise unreadable_error(self.path, "it is of another version or machine")
        try:
            return MachineProfile.from_data(data)
        except (ValueError, OverflowError, RecursionError) as error:
            raise unreadable_error(self.path, str(error)) from None

    def read_or_warn(self, otherwise: str) -> MachineProfile:
        """The profile; an empty one if it cannot be read, with a warning that tells `otherwise`."""
        try:
            return self.read()
        except HpcflowError as error:
            _warn(f"{error.message}: {otherwise}")
            return MachineProfile()

    def add(self, measured: MachineProfile) -> bool:
        """Add rows to the file; False, with a warning, if it cannot be written.

        A damaged file is replaced, with a warning.
        """
        lock = self.path.with_name(f".{self.path.stem[:16]}.lock")
        try:
            with file_locks.exclusive(lock, "the machine profile", PATIENCE_S):
                self._write(self.read_or_warn("it is replaced").merged(measured))
        except OSError as error:
            _warn(f"measured costs are not kept in {self.path}: {error.strerror or error}")
            return False
        return True

    def clear(self) -> bool:
        """Remove the file; whether there was one. Errors: OSError if it cannot be removed."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _write(self, profile: MachineProfile) -> None:
        data = {"format": FORMAT, "machine": self.machine, **profile.as_data()}
        text = json.dumps(data, allow_nan=False) + "\n"
        descriptor, draft = tempfile.mkstemp(dir=self.path.parent, prefix=".costs-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(draft, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise


def profile_file(machine: Mapping[str, str], folder: str = "") -> ProfileFile | None:
    """The file for a machine with these facts in `folder`, the value of the setting `cost_cache`.

    "": the folder of HPCFLOW_COST_CACHE, or in the user's cache folder. None if it is "none".
    """
    place = cache_place(COSTS, folder)
    return ProfileFile(place.directory, machine) if place else None


def _merged_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    merged: dict[Any, Row] = {}
    for row in rows:
        merged[row.key] = merged[row.key].merged(row) if row.key in merged else row
    return tuple(merged.values())


def _warn(line: str) -> None:
    logger.warning("%s", escape_line(line))
