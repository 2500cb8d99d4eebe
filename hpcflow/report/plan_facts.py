"""Facts of a plan's picture: what a box costs in words, and its parts by device and phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpcflow.plan.listing.picture_groups import Box, Picture
from hpcflow.plan.listing.picture_operations import PHASES, UPDATES_OF_SERVER
from hpcflow.platform.quantity_text import format_bytes, format_flops, format_milliseconds

COLORS = 8  # device colours of plan_picture.css; further devices have the last


class Part(NamedTuple):
    """The part of a box on one device in one phase: its share of the predicted time."""

    device: int
    phase: int
    share: float


Measured = Mapping[tuple[str, str], float]  # seconds of a call, by task and name of the operation
NOTHING_MEASURED: Measured = {}


class PictureFacts:
    """Costs of the boxes of a picture."""

    def __init__(self, picture: Picture, measured: Measured = NOTHING_MEASURED) -> None:
        self.picture, self._measured = picture, measured
        names = dict.fromkeys(op.device for op in picture.operations)
        self.devices = {name: i for i, name in enumerate(names)}

    def color(self, device: int) -> str:
        """Return the class of a device's colour."""
        return f"d{min(device, COLORS - 1)}"

    def legend(self) -> list[tuple[str, str]]:
        """Return the colour and the name of each device."""
        names = list(self.devices)
        if len(names) > COLORS:
            names[COLORS - 1 :] = [f"{len(names) - COLORS + 1} more devices"]
        return [(self.color(i), name or "not placed yet") for i, name in enumerate(names)]

    def phases(self) -> dict[int, list[str]]:
        """Return the phases that the picture has: the colours of the devices in each."""
        found = sorted({(op.phase, self.devices[op.device]) for op in self.picture.operations})
        colors: dict[int, list[str]] = {}
        for phase, device in found:
            known = colors.setdefault(phase, [])
            if self.color(device) not in known:
                known.append(self.color(device))
        return colors

    def seconds(self, box: Box, phase: int | None = None) -> float:
        """Return the predicted seconds of a box, of one phase or of all, one after the other."""
        operations = (self.picture.operations[i] for i in box.members)
        return sum(op.seconds for op in operations if phase in (None, op.phase))

    def measured(self, box: Box) -> tuple[float, int]:
        """Return the measured seconds of a box, and of how many operations they are."""
        operations = (self.picture.operations[i] for i in box.members)
        keys = ((op.task.removesuffix(UPDATES_OF_SERVER), op.node_name) for op in operations)
        found = [self._measured[key] for key in keys if key in self._measured]
        return sum(found), len(found)

    def count(self, box: Box) -> int:
        """Return the number of operations in a box."""
        return sum(self.picture.operations[i].count for i in box.members)

    def parts(self, box: Box) -> list[Part]:
        """Return the parts of a box; by the numbers of operations if all take no time."""
        total, shares = self.seconds(box), dict[tuple[int, int], float]()
        for i in box.members:
            op = self.picture.operations[i]
            key = (self.devices[op.device], op.phase)
            share = op.seconds / total if total else 1 / len(box.members)
            shares[key] = shares.get(key, 0.0) + share
        return [Part(*key, share) for key, share in sorted(shares.items())]

    def short(self, box: Box) -> str:
        """Return a few words: time, and the type of an operation or the size of a group."""
        if box.operation is not None:
            kind = self.picture.operations[box.operation].type
        else:
            kind = f"{self.count(box)} ops"
        return f"{format_milliseconds(self.seconds(box))} · {kind}"

    def text(self, box: Box) -> str:
        """Return all facts of a box as a sentence."""
        operations = [self.picture.operations[i] for i in box.members]
        if box.operation is not None:
            kind = operations[0].type
        else:
            kind = f"{self.count(box)} operations"
        flops = sum(op.flops for op in operations)
        moved = sum(op.nbytes for op in operations)
        unsized = sum(op.unsized for op in operations)
        measured, known = self.measured(box)
        facts = [
            f"{box.name}: {kind}",
            format_flops(flops),
            f"{format_bytes(moved)} read and written",
            f"{format_milliseconds(self.seconds(box))} predicted{self._phases(box)}",
            f"on {', '.join(dict.fromkeys(op.device for op in operations)) or 'no device'}",
        ]
        if known:
            share = "" if known == self.count(box) else f" in {known} of them"
            facts.insert(4, f"{format_milliseconds(measured)} measured{share}")
        facts += [f"{unsized} with sizes that only a step tells"] if unsized else []
        return "; ".join(facts)

    def _phases(self, box: Box) -> str:
        seconds = {name: self.seconds(box, phase) for phase, name in enumerate(PHASES)}
        known = [f"{name} {format_milliseconds(value)}" for name, value in seconds.items() if value]
        return f" ({', '.join(known)})" if len(known) > 1 else ""
