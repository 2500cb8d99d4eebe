"""Device names: `/job:worker/task:3/gpu:0`, each part optional in a constraint.

A constraint may also have requirements, as `/requires:gpu/requires:20000000000@1/near:worker:3`.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from hpcflow.errors import PlacementError
from hpcflow.platform.exception_translation import value_text

_PART = re.compile(
    r"/?(?:job:(?P<job>[a-zA-Z_]\w*)|replica:\d{1,9}|task:(?P<task>\d{1,9})"
    r"|requires:(?:(?P<gpu>gpu)|(?P<nbytes>\d{1,18})@(?P<scope>\d{1,9}))"
    r"|near:(?P<mate>worker|ps):(?P<mate_task>\d{1,9})"
    r"|(?:device:)?(?P<kind>(?!(?:job|task|replica|requires|near)\b)[a-zA-Z]\w*)"
    r"(?::(?P<index>\d{1,9}|\*))?)",
)


class Reservation(NamedTuple):
    """Memory that the operations of one device scope require together, on each of their tasks."""

    scope: int  # its number in the graph
    nbytes: int


class Requirement(NamedTuple):
    """What a task must offer to operations: a GPU, memory, the node of other tasks."""

    gpu: bool = False
    memory: tuple[Reservation, ...] = ()
    near: tuple[tuple[str, int], ...] = ()  # job and task

    @property
    def nbytes(self) -> int:
        """The bytes of memory, of all scopes."""
        return sum(reservation.nbytes for reservation in self.memory)

    def __bool__(self) -> bool:
        return self != NOTHING

    def __str__(self) -> str:
        """The requirement as parts of a device name."""
        text = "/requires:gpu" * self.gpu
        text += "".join(f"/requires:{size}@{scope}" for scope, size in self.memory)
        return text + "".join(f"/near:{job}:{task}" for job, task in self.near)

    def both(self, other: Requirement) -> Requirement:
        """Return the requirement of what both ask for."""
        return Requirement(
            self.gpu or other.gpu,
            tuple(sorted({*self.memory, *other.memory})),
            tuple(sorted({*self.near, *other.near})),
        )


NOTHING = Requirement()


class DeviceName(NamedTuple):
    """A device or, with parts missing, a constraint on devices."""

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index
    needs: Requirement = NOTHING

    def __str__(self) -> str:
        text = f"/job:{self.job}" if self.job is not None else ""
        text += f"/task:{self.task}" if self.task is not None else ""
        if self.kind is not None:
            text += f"/{self.kind}" + (f":{self.index}" if self.index is not None else "")
        return f"{text}{self.needs}"

    @property
    def host(self) -> str:
        """The task alone: `/job:ps/task:0`."""
        return str(DeviceName(self.job, self.task))

    def within(self, outer: DeviceName) -> DeviceName:
        """This constraint inside the scope `outer`: its own parts take precedence.

        The requirements of both hold.
        """
        job, task = (self.job, self.task) if self.job is not None else (outer.job, self.task)
        if self.job is None and self.task is None:
            task = outer.task
        kind, index = (
            (self.kind, self.index) if self.kind is not None else (outer.kind, outer.index)
        )
        return DeviceName(job, task, kind, index, self.needs.both(outer.needs))

    def matches(self, device: DeviceName) -> bool:
        """True if `device` satisfies this constraint, without its requirements."""
        pairs = zip(self[:4], device[:4], strict=True)
        return all(need is None or need == field for need, field in pairs)


def parse_device(text: str) -> DeviceName:
    """Parse a device name; TensorFlow's `/replica:0` and `/device:GPU:0` are accepted."""
    if not isinstance(text, str):
        raise PlacementError(f"{value_text(text)} is not a device name", hint="give a string")
    return _parse_cached(text)


@functools.lru_cache(maxsize=4096)  # plans parse the same few names many times
def _parse_cached(text: str) -> DeviceName:
    fields: dict[str, str] = {}
    needs = NOTHING
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise PlacementError(
                f"{text!r} is not a device name", hint="write /job:ps/task:0/cpu:0 or a part of it"
            )
        found = {k: v for k, v in part.groupdict().items() if v is not None}
        needs = needs.both(_requirement(found))
        fields.update(found)
        at = part.end()
    index = fields.get("index")
    return DeviceName(
        fields.get("job"),
        int(fields["task"]) if "task" in fields else None,
        fields["kind"].lower() if "kind" in fields else None,
        int(index) if index not in (None, "*") else None,
        needs,
    )


def _requirement(found: dict[str, str]) -> Requirement:
    """Return the requirement of one part of a name."""
    if "nbytes" in found:
        return Requirement(memory=(Reservation(int(found["scope"]), int(found["nbytes"])),))
    if "mate" in found:
        return Requirement(near=((found["mate"], int(found["mate_task"])),))
    return Requirement(gpu="gpu" in found)
