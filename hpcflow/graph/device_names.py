"""Device names: `/job:worker/task:3/gpu:0`, each part optional in a constraint."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from hpcflow.errors import PlacementError
from hpcflow.platform.exception_translation import value_text

_PART = re.compile(
    r"/?(?:job:(?P<job>[a-zA-Z_]\w*)|replica:\d{1,9}|task:(?P<task>\d{1,9})"
    r"|(?:device:)?(?P<kind>(?!(?:job|task|replica)\b)[a-zA-Z]\w*)(?::(?P<index>\d{1,9}|\*))?)",
)


class DeviceName(NamedTuple):
    """A device or, with parts missing, a constraint on devices."""

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index

    def __str__(self) -> str:
        text = f"/job:{self.job}" if self.job is not None else ""
        text += f"/task:{self.task}" if self.task is not None else ""
        if self.kind is not None:
            text += f"/{self.kind}" + (f":{self.index}" if self.index is not None else "")
        return text

    @property
    def host(self) -> str:
        """The task alone: `/job:ps/task:0`."""
        return str(self._replace(kind=None, index=None))

    def within(self, outer: DeviceName) -> DeviceName:
        """This constraint inside the scope `outer`: its own parts take precedence."""
        job, task = (self.job, self.task) if self.job is not None else (outer.job, self.task)
        if self.job is None and self.task is None:
            task = outer.task
        kind, index = (
            (self.kind, self.index) if self.kind is not None else (outer.kind, outer.index)
        )
        return DeviceName(job, task, kind, index)

    def matches(self, device: DeviceName) -> bool:
        """True if `device` satisfies this constraint."""
        return all(need is None or need == field for need, field in zip(self, device, strict=True))


def parse_device(text: str) -> DeviceName:
    """Parse a device name; TensorFlow's `/replica:0` and `/device:GPU:0` are accepted."""
    if not isinstance(text, str):
        raise PlacementError(f"{value_text(text)} is not a device name", hint="give a string")
    return _parse_cached(text)


@functools.lru_cache(maxsize=4096)  # plans parse the same few names many times
def _parse_cached(text: str) -> DeviceName:
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise PlacementError(
                f"{text!r} is not a device name", hint="write /job:ps/task:0/cpu:0 or a part of it"
            )
        fields.update({k: v for k, v in part.groupdict().items() if v is not None})
        at = part.end()
    index = fields.get("index")
    return DeviceName(
        fields.get("job"),
        int(fields["task"]) if "task" in fields else None,
        fields["kind"].lower() if "kind" in fields else None,
        int(index) if index not in (None, "*") else None,
    )
