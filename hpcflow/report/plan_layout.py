"""Layout of a plan's picture: places of the visible boxes, and routes of the edges between them.

Boxes stand in lines from top to bottom. An edge to the line above or below goes straight. Other
edges go through a *lane*, a vertical line beside the boxes: on the left side if they lead down, on
the right side if they lead up. So no edge crosses a box of its group. `plan_page.js` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.plan.listing.picture_groups import Picture

WIDTH, HEIGHT = 190, 48  # of a closed box
GAP_X, GAP_Y, PAD, HEADER = 28, 36, 12, 26
PER_LINE = 5  # boxes; a longer row goes on below, and an open group has a line of its own
LANE, LABEL = 11, 58  # widths of a lane, and of the text beside the lanes
PORT = 26  # distance of the ends of routes by lanes from the sides of a box

Pair = tuple[int, int]


class Frame(NamedTuple):
    """The rectangle of a box."""

    x: float
    y: float
    width: float
    height: float


class Route(NamedTuple):
    """The way of an edge: its corners. `lane` is False if it is straight."""

    is_up: bool
    lane: bool
    points: list[tuple[float, float]]


class Layout:
    """The frames of the visible boxes, and the routes of the edges `pairs` between boxes."""

    def __init__(self, picture: Picture, pairs: Sequence[Pair]) -> None:
        self.boxes, self.opened = picture.boxes, picture.opened
        self.lines: dict[int | None, list[list[int]]] = {None: self._lines(picture.tops)}
        for place in picture.opened:
            self.lines[place] = self._lines(self.boxes[place].children)
        self.line_of = {
            place: number
            for lines in self.lines.values()
            for number, line in enumerate(lines)
            for place in line
        }
        self.sides: dict[Pair, tuple[int | None, str, int]] = {}  # its group, side and lane
        self.lanes: dict[tuple[int | None, str], int] = {}  # of a group, how many
        self._choose_lanes(pairs)
        self.frames: dict[int, Frame] = {}
        self.width, self.height = self._size_of(None)
        self._place(None, 0, 0)
        self.routes = {pair: self._route(pair) for pair in pairs}

    def _lines(self, places: Sequence[int]) -> list[list[int]]:
        lines: list[list[int]] = []
        last_row = -1
        for place in places:
            row = self.boxes[place].row
            alone = place in self.opened or (lines and lines[-1][-1] in self.opened)
            if row != last_row or alone or len(lines[-1]) == PER_LINE:
                lines.append([])
            lines[-1].append(place)
            last_row = row
        return lines

    # -- lanes

    def _choose_lanes(self, pairs: Sequence[Pair]) -> None:
        """Give each edge that does not go straight a lane that is free from line to line."""
        spans: list[tuple[int, int, int, Pair, int | None, str]] = []
        for a, b in pairs:
            group, outer_a, outer_b = self._meeting(a, b)
            first, last = self.line_of[outer_a], self.line_of[outer_b]
            if (outer_a, outer_b) != (a, b) or abs(last - first) != 1:
                side = "left" if last > first else "right"
                low, high = min(first, last), max(first, last)
                spans.append((high - low, low, high, (a, b), group, side))
        taken: dict[tuple[int | None, str], list[list[tuple[int, int]]]] = {}
        for _, low, high, pair, group, side in sorted(spans, key=lambda span: span[:4]):
            lanes = taken.setdefault((group, side), [])
            free = (
                i
                for i, lane in enumerate(lanes)
                if all(high <= other_low or other_high <= low for other_low, other_high in lane)
            )
            lane = next(free, len(lanes))
            lanes[lane:] = lanes[lane:] or [[]]
            lanes[lane].append((low, high))
            self.sides[pair] = (group, side, lane)
        self.lanes = {key: len(lanes) for key, lanes in taken.items()}

    def _meeting(self, a: int, b: int) -> tuple[int | None, int, int]:
        """The innermost group around both boxes, and the box around each that it holds."""
        above_a, above_b = self._outwards(a), self._outwards(b)
        group: int | None = None
        for one, other in zip(above_a, above_b, strict=False):
            if one != other:
                return group, one, other
            group = one
        return group, a, b

    def _outwards(self, place: int) -> list[int]:
        chain = [place]
        while (outer := self.boxes[chain[-1]].parent) is not None:
            chain.append(outer)
        return chain[::-1]

    def _margin(self, group: int | None, side: str) -> float:
        count = self.lanes.get((group, side), 0)
        return PAD + (count * LANE + LABEL if count else 0)

    # -- frames

    def _size(self, place: int) -> tuple[float, float]:
        return self._size_of(place) if place in self.opened else (WIDTH, HEIGHT)

    def _size_of(self, group: int | None) -> tuple[float, float]:
        width, height = 0.0, 2.0 * PAD + (0 if group is None else HEADER)
        for number, line in enumerate(self.lines[group]):
            sizes = [self._size(place) for place in line]
            width = max(width, sum(w for w, _ in sizes) + GAP_X * (len(line) - 1))
            height += max(h for _, h in sizes) + (GAP_Y if number else 0)
        return width + self._margin(group, "left") + self._margin(group, "right"), height

    def _place(self, group: int | None, x: float, y: float) -> None:
        left = self._margin(group, "left")
        inner = self._size_of(group)[0] - left - self._margin(group, "right")
        y += PAD + (0 if group is None else HEADER)
        for line in self.lines[group]:
            sizes = [self._size(place) for place in line]
            total = sum(w for w, _ in sizes) + GAP_X * (len(line) - 1)
            at = x + left + (inner - total) / 2
            for place, (w, h) in zip(line, sizes, strict=True):
                self.frames[place] = Frame(at, y, w, h)
                if place in self.opened:
                    self._place(place, at, y)
                at += w + GAP_X
            y += max(h for _, h in sizes) + GAP_Y

    # -- routes

    def _route(self, pair: Pair) -> Route:
        a, b = self.frames[pair[0]], self.frames[pair[1]]
        is_up = b.y < a.y + a.height
        if is_up:
            start, end = (a.x + a.width - PORT, a.y), (b.x + b.width - PORT, b.y + b.height)
        else:
            port = PORT if pair in self.sides else WIDTH / 2
            start, end = (a.x + port, a.y + a.height), (b.x + port, b.y)
        if pair not in self.sides:
            return Route(is_up, False, [start, end])
        group, side, lane = self.sides[pair]
        frames = [self.frames[place] for line in self.lines[group] for place in line]
        if side == "left":
            x = min(f.x for f in frames) - LANE * (lane + 1)
        else:
            x = max(f.x + f.width for f in frames) + LANE * (lane + 1)
        turn = (8 + 2 * (lane % 6)) * (-1 if is_up else 1)  # lines of several lanes stay apart
        y1, y2 = start[1] + turn, end[1] - turn
        points = [start, (start[0], y1), (x, y1), (x, y2), (end[0], y2), end]
        return Route(is_up, True, points)
