"""Labels of the edges of a plan's picture: places at which they meet neither each other nor a box.

The largest sums of bytes choose first. `plan_page.js` does the same with the sizes in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcflow.report.plan_layout import Frame, Pair, Route

LETTER, ASCENT, DESCENT = 7.0, 10.0, 3.0  # of a label in pixels; wide fonts are within
GAP = 4.0  # between a line and its label
CENTERED, BELOW, ABOVE = 4.0, 12.0, -4.0  # the base of a label below the point beside which it is
STEEP = 8.0  # pixels to the side, up to which a curve is a vertical line
ALONG_CURVE = (
    0.5,
    0.35,
    0.65,
    0.25,
    0.75,
)  # shares of the way, in the order in which they are tried
ALONG_LANE = (0.5, 0.38, 0.62, 0.26, 0.74, 0.14, 0.86)


class Spot(NamedTuple):
    """A place for a label: beside a line, which it ends at (`is_left`) or begins at."""

    x: float
    y: float
    is_left: bool

    def frame(self, text: str) -> Frame:
        """The rectangle of a label here."""
        width = LETTER * len(text)
        x = self.x - width if self.is_left else self.x
        return Frame(x, self.y - ASCENT, width, ASCENT + DESCENT)


def spots_of(route: Route) -> list[Spot]:
    """The places beside an edge, the best first: left of one that leads down, right of one up."""
    if route.lane:
        x, (y1, y2) = route.points[2][0], (route.points[2][1], route.points[3][1])
        return [_beside(x, y1 + share * (y2 - y1), not route.is_up) for share in ALONG_LANE]
    (x1, y1), (x2, y2) = route.points
    points, falls = [], (x2 - x1) * (y2 - y1) > 0  # to the right
    for t in ALONG_CURVE:  # a cubic curve that leaves and arrives vertically, as _path draws it
        x = x1 + (x2 - x1) * (3 - 2 * t) * t * t
        y = y1 + (y2 - y1) * (1.5 * t - 1.5 * t * t + t**3)
        points.append((x, y))
    spots = []
    for left in (not route.is_up, route.is_up):
        side = BELOW if left == falls else ABOVE  # where the curve is not
        down = CENTERED if abs(x2 - x1) < STEEP else side
        spots += [_beside(x, y, left, down) for x, y in points]
    return spots


def _beside(x: float, y: float, is_left: bool, down: float = CENTERED) -> Spot:
    return Spot(x - GAP if is_left else x + GAP, y + down, is_left)


def free_spots(
    routes: Mapping[Pair, Route], texts: Mapping[Pair, str], boxes: Sequence[Frame]
) -> dict[Pair, Spot]:
    """A place for each label that has one; the first of `texts` choose first."""
    taken, found = list(boxes), dict[Pair, Spot]()
    for pair, text in texts.items():
        for spot in spots_of(routes[pair]):
            frame = spot.frame(text)
            if not any(meet(frame, other) for other in taken):
                found[pair] = spot
                taken.append(frame)
                break
    return found


def meet(one: Frame, other: Frame) -> bool:
    """Whether two rectangles overlap."""
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )
