"""Plan as SVG: the boxes of its layers in rows by data flow, and the bytes between them."""

from __future__ import annotations

from pathlib import Path

from hpcflow.plan.ir.layer_names import FORWARD
from hpcflow.plan.listing.picture_groups import Picture, PictureEdge
from hpcflow.plan.listing.picture_operations import PHASES
from hpcflow.platform.quantity_text import format_bytes
from hpcflow.report.html_elements import Html, element
from hpcflow.report.plan_facts import NOTHING_MEASURED, Measured, PictureFacts
from hpcflow.report.plan_labels import Spot, free_spots, spots_of
from hpcflow.report.plan_layout import HEADER, Layout, Route

MOST_NAME, MOST_FACT = 20, 27  # characters of the two texts in a box
MOST_LABELS = 120  # edges; the bytes of others, and where there is no place: under the pointer
CORNER = 6  # radius
LEAST_WIDTH = 320  # of the picture: for its legend
ASSETS = Path(__file__).parent


def svg_of(picture: Picture, measured: Measured = NOTHING_MEASURED) -> Html:
    """The picture at the level of layers as one SVG element with its own style."""
    return _Drawing(picture, measured).svg()


class _Drawing:
    """Draws the visible boxes and the edges between them."""

    def __init__(self, picture: Picture, measured: Measured) -> None:
        self.picture, self.facts = picture, PictureFacts(picture, measured)
        self.edges = picture.edges(picture.opened)
        self.layout = Layout(picture, list(self.edges))
        self.spots = self._spots()

    def svg(self) -> Html:
        """The element."""
        width, top = max(self.layout.width, LEAST_WIDTH), self.layout.height
        frames = self.layout.frames
        legend = self._legend(top + 14)
        height = top + 14 + 20 * len(legend)
        count = sum(op.count for op in self.picture.operations)
        style = (ASSETS / "plan_picture.css").read_text(encoding="utf-8")
        style += (ASSETS / "plan_svg.css").read_text(encoding="utf-8")
        return element(
            "svg",
            element("title", f"plan of {count} operations"),
            Html(f"<style>{style}</style>"),
            element("rect", class_="paper", width=f"{width:g}", height=f"{height:g}"),
            *(self._group(place) for place in frames if place in self.picture.opened),
            *(self._edge(pair, edge) for pair, edge in self.edges.items()),
            *(self._label(pair, self.edges[pair]) for pair in self.spots),
            *(self._box(place) for place in frames if place not in self.picture.opened),
            *legend,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:g} {height:g}",
            width=f"{width:g}",
            height=f"{height:g}",
            role="img",
            class_="hpcflow-plan",
        )

    def _spots(self) -> dict[tuple[int, int], Spot]:
        """The places of the bytes of the MOST_LABELS largest edges, where they have one."""
        largest = sorted(self.edges.items(), key=lambda item: -item[1].nbytes)[:MOST_LABELS]
        texts = {pair: format_bytes(edge.nbytes) for pair, edge in largest if edge.nbytes}
        boxes = [
            frame._replace(height=HEADER) if place in self.picture.opened else frame
            for place, frame in self.layout.frames.items()
        ]
        return free_spots(self.layout.routes, texts, boxes)

    def _frame(self, place: int, kind: str) -> Html:
        """The rectangle of a box."""
        frame, phase = self.layout.frames[place], self.picture.boxes[place].phase
        return element(
            "rect", class_=kind + (" of-phase" if phase != FORWARD else ""), rx="5",
            x=f"{frame.x:g}", y=f"{frame.y:g}",
            width=f"{frame.width:g}", height=f"{frame.height:g}",
        )  # fmt: skip

    def _group(self, place: int) -> Html:
        """An open group without the boxes inside."""
        box, frame = self.picture.boxes[place], self.layout.frames[place]
        text = f"{box.name} · {self.facts.short(box)}"
        return element(
            "g",
            element("title", self.facts.text(box)),
            self._frame(place, "frame"),
            element("text", text, class_="name", x=f"{frame.x + 12:g}", y=f"{frame.y + 18:g}"),
        )

    def _box(self, place: int) -> Html:
        """A closed box: its texts, and a bar of its time by device and phase."""
        box, frame = self.picture.boxes[place], self.layout.frames[place]
        parts = self.facts.parts(box)
        color = self.facts.color(max(parts, key=lambda part: part.share).device)
        drawn = [
            element("title", self.facts.text(box)),
            self._frame(place, "card"),
            element("rect", class_=f"side {color}", x=f"{frame.x:g}", y=f"{frame.y:g}",
                    width="5", height=f"{frame.height:g}"),
        ]  # fmt: skip
        fact = self.facts.short(box)
        fact = fact if len(fact) <= MOST_FACT else f"{fact[: MOST_FACT - 1]}…"
        for kind, text, y in (("name", _shortened(box.name, MOST_NAME), 18), ("fact", fact, 34)):
            at = {"x": f"{frame.x + 12:g}", "y": f"{frame.y + y:g}"}
            drawn.append(element("text", text, class_=kind, **at))
        left, width = frame.x + 12, frame.width - 20
        for part in parts:
            length = width * part.share
            drawn.append(
                element("rect", class_=f"part {self.facts.color(part.device)} p{part.phase}",
                        x=f"{left:.1f}", y=f"{frame.y + 40:g}", width=f"{length:.1f}", height="4")
            )  # fmt: skip
            left += length
        return element("g", *drawn)

    def _edge(self, pair: tuple[int, int], edge: PictureEdge) -> Html:
        """The line of an edge, and its label if that is seen only under the pointer."""
        route = self.layout.routes[pair]
        kind = (" up" if route.is_up else "") + (" crossing" if edge.crosses else "")
        is_crowded = edge.nbytes and pair not in self.spots
        return element(
            "g",
            element("title", self._said(pair, edge)),
            element("path", d=_path(route), class_=f"edge{kind}"),
            element("path", d=_tip(route), class_=f"tip{kind}"),
            _amount(spots_of(route)[0], edge, "amount crowded") if is_crowded else None,
        )

    def _label(self, pair: tuple[int, int], edge: PictureEdge) -> Html:
        """The bytes of an edge, above the lines."""
        title = element("title", self._said(pair, edge))
        return element("g", title, _amount(self.spots[pair], edge, "amount"))

    def _said(self, pair: tuple[int, int], edge: PictureEdge) -> str:
        """An edge in words."""
        source, user = (self.picture.boxes[place].name for place in pair)
        said = f"{source} to {user}: {edge.values} values, {format_bytes(edge.nbytes)}"
        return said + (", sent to another task" if edge.crosses else "")

    def _legend(self, y: float) -> list[Html]:
        """Lines: the devices, phases and kinds of edges that the picture has."""
        rows = [([f"part {color}"], name) for color, name in self.facts.legend()]
        rows += [
            ([f"part {color} p{phase}" for color in colors], f"predicted time, {PHASES[phase]}")
            for phase, colors in self.facts.phases().items()
        ]
        ups = [route.is_up for route in self.layout.routes.values()]
        kinds = {
            "tip": ("value", False in ups),
            "tip up": ("value to an earlier box, as a gradient", True in ups),
            "tip crossing": ("value sent to another task", any(
                edge.crosses for edge in self.edges.values())),
        }  # fmt: skip
        rows += [([kind], text) for kind, (text, is_there) in kinds.items() if is_there]
        return [
            element(
                "g",
                *(
                    element("rect", class_=kind, x=14 + 16 * k, y=f"{y + 20 * i - 10:g}",
                            width="14", height="3" if kind.startswith("tip") else "12")
                    for k, kind in enumerate(kinds)
                ),
                element("text", text, class_="fact", x=18 + 16 * len(kinds), y=f"{y + 20 * i:g}"),
            )
            for i, (kinds, text) in enumerate(rows)
        ]  # fmt: skip


def _amount(spot: Spot, edge: PictureEdge, kind: str) -> Html:
    """The bytes of an edge at a place."""
    return element(
        "text", format_bytes(edge.nbytes), x=f"{spot.x:.0f}", y=f"{spot.y:.0f}", class_=kind,
        text_anchor="end" if spot.is_left else "start",
    )  # fmt: skip


def _shortened(text: str, most: int) -> str:
    """The text with its middle left out if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 3]}…{text[most // 3 + 1 - most :]}"


def _path(route: Route) -> str:
    """The path of an edge: a curve from line to line, or straight lines with round corners."""
    (x1, y1), (x2, y2) = route.points[0], route.points[-1]
    if not route.lane:
        middle = (y1 + y2) / 2
        return f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
    path = f"M{x1:.0f} {y1:.0f}"
    for before, at, after in zip(route.points, route.points[1:], route.points[2:], strict=False):
        (ax, ay), (bx, by) = _towards(at, before), _towards(at, after)
        path += f"L{ax:.0f} {ay:.0f}Q{at[0]:.0f} {at[1]:.0f} {bx:.0f} {by:.0f}"
    return path + f"L{x2:.0f} {y2:.0f}"


def _towards(at: tuple[float, float], to: tuple[float, float]) -> tuple[float, float]:
    """The point CORNER from `at` on the way to `to`, at most half of it."""
    dx, dy = to[0] - at[0], to[1] - at[1]
    length = max(abs(dx), abs(dy), 1.0)
    share = min(CORNER, length / 2) / length
    return at[0] + dx * share, at[1] + dy * share


def _tip(route: Route) -> str:
    """The arrowhead at the end of an edge."""
    x, y = route.points[-1]
    return f"M{x:.0f} {y:.0f}l-4 {7 if route.is_up else -7}h8z"
