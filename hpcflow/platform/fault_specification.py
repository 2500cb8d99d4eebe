"""Fault specification: parses the faults to inject, from `--inject` and `HPCFLOW_INJECT`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import NamedTuple

from hpcflow.errors import LaunchError

SEPARATOR = ";"


@dataclasses.dataclass(frozen=True)
class InjectedFault:
    """One injected fault: its kind, rank and time.

    `rank` None means all ranks. `step` counts the training steps of that rank from 1, `save` the
    checkpoints that it writes; 0 means from the start.
    """

    kind: str
    text: str  # as the user wrote it
    rank: int | None = None
    step: int = 0
    save: int = 0
    factor: float = 1.0
    op: str = ""

    def __str__(self) -> str:
        return self.text


class _FaultKind(NamedTuple):
    usage: str
    takes: tuple[str, ...]  # names of `name=value` after the colon
    needs: str  # required names
    moments: tuple[str, ...]  # names allowed after the @


_AT_STEP = (("rank",), "rank step", ("step",))
KINDS = {
    "kill": _FaultKind("kill:rank=R@step=N", *_AT_STEP),
    "term": _FaultKind("term:rank=R@step=N", *_AT_STEP),
    "stop": _FaultKind("stop:rank=R@step=N", *_AT_STEP),
    "stall": _FaultKind("stall:rank=R@step=N", *_AT_STEP),
    "slow": _FaultKind("slow:rank=RxFACTOR[@step=N]", ("rank",), "rank", ("step",)),
    "disk-full": _FaultKind("disk-full[:rank=R][@step=N|@save=K]", ("rank",), "", ("step", "save")),
    "nan": _FaultKind("nan:op=NAME[,rank=R][@step=N]", ("op", "rank"), "op", ("step",)),
}
USAGES = tuple(kind.usage for kind in KINDS.values())


def parse_faults(text: str) -> tuple[InjectedFault, ...]:
    """The faults in a text, separated by semicolons.

    Errors: LaunchError with the problem, its character position, and the correct usage.
    """
    faults, at = [], 0
    for part in text.split(SEPARATOR):
        if part.strip():
            faults.append(_FaultParser(text, part, at).fault())
        at += len(part) + len(SEPARATOR)
    return tuple(faults)


def check_faults(text: str, ranks: int) -> tuple[InjectedFault, ...]:
    """The faults in a text, each of an existing rank.

    Errors: LaunchError.
    """
    faults = parse_faults(text)
    for fault in faults:
        if fault.rank is not None and fault.rank >= ranks:
            raise LaunchError(
                f"cannot inject {fault}: the job has {ranks} rank{'s' if ranks > 1 else ''}",
                hint=f"name a rank from 0 to {ranks - 1}",
            )
    return faults


class _FaultParser:
    """Parses one fault, which begins at character `start` of `whole`."""

    def __init__(self, specification: str, text: str, start: int) -> None:
        self.specification = specification
        self.start = start + len(text) - len(text.lstrip())
        self.text = text.strip()
        self.usage = ""

    def fault(self) -> InjectedFault:
        """The parsed fault."""
        head, _, moment = self.text.partition("@")
        name, _, field_text = head.partition(":")
        if name not in KINDS:
            raise self._wrong(f"there is no fault {name!r}", 0, _nearest_name(name))
        kind = KINDS[name]
        self.usage = kind.usage
        pairs = self._fields(field_text, len(name) + 1, kind.takes)
        if "@" in self.text:
            moment_pairs = self._fields(moment, len(head) + 1, kind.moments)
            if not moment_pairs:
                raise self._wrong("nothing stands behind the @", len(head))
            pairs |= moment_pairs
        for need in kind.needs.split():
            if need not in pairs:
                raise self._wrong(f"it does not say which {need}", len(self.text))
        return self._make_fault(name, {field: value for field, (value, _) in pairs.items()}, pairs)

    def _fields(
        self, text: str, at: int, allowed_names: tuple[str, ...]
    ) -> dict[str, tuple[str, int]]:
        """name -> its value and the value's position."""
        pairs: dict[str, tuple[str, int]] = {}
        for word in text.split(",") if text else ():
            name, equals, value = word.partition("=")
            if name not in allowed_names:
                raise self._wrong(f"{word!r} is none of {_name_list(allowed_names)}", at)
            if not equals or not value:
                raise self._wrong(f"{name} has no value", at)
            if name in pairs:
                raise self._wrong(f"{name} is said twice", at)
            pairs[name] = value, at + len(name) + 1
            at += len(word) + 1
        return pairs

    def _make_fault(
        self, kind: str, values: dict[str, str], places: dict[str, tuple[str, int]]
    ) -> InjectedFault:
        factor = 1.0
        if kind == "slow":
            values["rank"], _, times = values["rank"].partition("x")
            factor = self._factor(times, places["rank"][1] + len(values["rank"]))
        numbers = {
            field: self._number(values[field], places[field][1], least)
            for field, least in (("rank", 0), ("step", 1), ("save", 1))
            if field in values
        }
        return InjectedFault(kind, self.text, factor=factor, op=values.get("op", ""), **numbers)

    def _number(self, text: str, at: int, least: int) -> int:
        if not text.isdecimal() or int(text) < least:
            raise self._wrong(f"{text!r} is no whole number of at least {least}", at)
        return int(text)

    def _factor(self, text: str, at: int) -> float:
        if not text:
            raise self._wrong("it does not say how many times slower, as x4", at)
        if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) < 1:
            raise self._wrong(f"{text!r} is no number of at least 1", at + 1)
        return float(text)

    def _wrong(self, problem: str, at: int, hint: str = "") -> LaunchError:
        """The error for character `at` of this fault."""
        place = self.start + at
        return LaunchError(
            f"cannot inject {self.specification!r}: {problem}, at character {place + 1}\n"
            f"    {self.specification}\n    {' ' * place}^",
            hint=hint or f"write {self.usage}",
        )


def _name_list(names: tuple[str, ...]) -> str:
    return " or ".join(f"{name}=" for name in names)


def _nearest_name(name: str) -> str:
    near = difflib.get_close_matches(name, KINDS, n=1)
    return "write " + (KINDS[near[0]].usage if near else ", ".join(USAGES))
