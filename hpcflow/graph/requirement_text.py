"""Texts of requirements of `hf.device`: `gpu, 20 GB`, and the task of `near`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from hpcflow.errors import HpcflowError, PlacementError
from hpcflow.graph.device_names import NOTHING, Requirement, Reservation, parse_device
from hpcflow.platform.exception_translation import value_text
from hpcflow.settings import as_bytes

_MEMORY = re.compile(r"\d+(?:\.\d+)?(?:e\d+)? *[kmgt]i?b", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?) *(?:([kmgt]i?)b?\b)?", re.ASCII | re.IGNORECASE)
_TASK = re.compile(r"(?:job:)?(worker|ps)?[ /:]*(?:task)?[ :]*(\d{1,9})", re.ASCII)


def parse_requirement(
    requires: str | None, near: str | None, new_scope: Callable[[], int]
) -> Requirement:
    """Return the requirement of a device scope; `new_scope()` numbers its memory.

    Errors: PlacementError with the nearest valid text.
    """
    needs = NOTHING if near is None else Requirement(near=(_task(near),))
    if requires is None:
        return needs
    if not isinstance(requires, str):
        _refuse(requires, "'gpu, 20 GB'")
    nbytes = 0
    for item in (part.strip() for part in requires.split(",")):
        if item.lower() == "gpu":
            needs = needs._replace(gpu=True)
        elif _MEMORY.fullmatch(item) and not nbytes:
            nbytes = _nbytes(item, requires)
        else:
            _refuse(requires, _nearest(requires))
    if nbytes:
        needs = needs._replace(memory=(Reservation(new_scope(), nbytes),))
    return needs


def _nbytes(item: str, requires: str) -> int:
    try:
        nbytes = as_bytes(item)
    except HpcflowError:  # more than any machine has
        nbytes = 0
    if not 0 < nbytes < 10**18:
        _refuse(requires, "'20 GB'")
    return nbytes


def _refuse(requires: object, instead: str) -> NoReturn:
    hint = f"write requires={instead}; known are gpu and one size of memory, with its unit"
    if isinstance(requires, str) and "near" in requires.lower():
        hint = "write near='/job:worker/task:3', an argument of its own"
    raise PlacementError(f"requires={value_text(requires)} is no requirement", hint=hint)


def _nearest(requires: str) -> str:
    """Return the valid text nearest to `requires`, in quotes."""
    found = ["gpu"] if re.search(r"gpu|cuda", requires, re.IGNORECASE) else []
    sizes = [m for m in _NUMBER.finditer(requires) if m[2] or not found]
    if sizes:
        found.append(f"{sizes[0][1]} {(sizes[0][2] or 'G').upper().replace('I', 'i')}B")
    return repr(", ".join(found) or "gpu, 20 GB")


def _task(near: str) -> tuple[str, int]:
    """Return the job and number of a task. Errors: PlacementError if the text names none."""
    wish = None
    if isinstance(near, str):
        try:
            wish = parse_device(near)
        except PlacementError:
            wish = None
    job = "worker" if wish is None or wish.job is None else wish.job
    if wish is None or wish.task is None or wish.needs or job not in ("worker", "ps"):
        loose = _TASK.fullmatch(near.strip().lower()) if isinstance(near, str) else None
        name = f"/job:{loose[1] or 'worker'}/task:{loose[2]}" if loose else "/job:worker/task:3"
        raise PlacementError(f"near={value_text(near)} names no task", hint=f"write near='{name}'")
    return job, wish.task


def requirement_text(needs: Requirement) -> str:
    """Return a requirement for messages: `gpu, 20 GB, the node of /job:worker/task:3`."""
    items = ["gpu"] * needs.gpu
    if needs.memory:
        items.append(" + ".join(size_text(size) for _, size in needs.memory))
    return ", ".join([*items, *(f"the node of /job:{job}/task:{task}" for job, task in needs.near)])


def size_text(nbytes: float) -> str:
    """Return a number of bytes with the unit that leaves the fewest digits."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if nbytes >= size:
            number = f"{nbytes / size:.3f}".rstrip("0").rstrip(".")
            return f"{number} {unit}"
    return f"{nbytes:.0f} B"
