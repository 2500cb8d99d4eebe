"""Picture of a plan: an SVG file of its layers, and a page in which groups open.

Both are self-contained files. The page opens in a browser without a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcflow.graph.device_names import parse_device
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.picture_groups import Picture, picture_of
from hpcflow.plan.listing.picture_operations import PHASES
from hpcflow.platform.quantity_text import format_milliseconds
from hpcflow.report.html_elements import Html, data_script, element
from hpcflow.report.plan_facts import COLORS, PictureFacts
from hpcflow.report.plan_svg import svg_of

ASSETS = Path(__file__).parent
EDGES = {
    "value": "values",
    "value up": "values to an earlier box, as gradients",
    "value crossing": "values sent to another task",
}


def plan_svg(plan: Plan) -> str:
    """The layers of a plan as an SVG file."""
    return f"{svg_of(picture_of(plan))}\n"


def plan_page(plan: Plan, name: str) -> str:
    """A page of the plan of the script `name`."""
    picture, title = picture_of(plan), f"hpcflow plan: {name}"
    facts = PictureFacts(picture)
    styles = "".join(_asset(name) for name in ("plan_picture.css", "plan_page.css"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        Html(f"<style>{styles}</style>"),
    )
    total = sum(op.seconds for op in picture.operations)
    main = element(
        "main",
        element("h1", title),
        element(
            "p",
            f"{len(picture.operations)} operations, {format_milliseconds(total)} predicted on one "
            "core. A click on a group, or Enter, opens and closes it.",
        ),
        _legend(facts),
        element(
            "p",
            element("button", "Layers", type="button", id="layers"),
            " ",
            element("button", "Close all", type="button", id="none"),
            class_="controls",
        ),
        element("p", "Point at a box, or move to it by Tab, to see its costs.", class_="facts"),
        element("div", element("div", class_="stage"), class_="scroll"),
        element("noscript", svg_of(picture)),
    )
    body = element(
        "body",
        main,
        data_script(picture_data(picture, facts)),
        Html(f"<script>{_asset('plan_page.js')}</script>"),
        class_="hpcflow-plan",
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def picture_data(picture: Picture, facts: PictureFacts) -> dict[str, Any]:
    """The picture as data for the page's script: lists instead of objects, for their size."""
    types = {name: i for i, name in enumerate({op.type: 0 for op in picture.operations})}
    return {
        "colors": COLORS,
        "tasks": [parse_device(name).host for name in facts.devices],
        "devices": [name or "no device yet" for name in facts.devices],
        "types": list(types),
        "tops": picture.tops,
        "opened": sorted(picture.opened),
        "boxes": [
            [box.name, box.phase, box.row, box.children if box.operation is None else box.operation]
            for box in picture.boxes
        ],
        "operations": [
            [types[op.type], facts.devices[op.device], op.phase, op.flops, op.nbytes,
             float(f"{1e6 * op.seconds:.4g}"), int(op.unsized)]
            for op in picture.operations
        ],
        "values": [
            [value.source, value.nbytes, *value.users] for value in picture.values
        ],
    }  # fmt: skip


def _legend(facts: PictureFacts) -> Html:
    rows = [([color], name) for color, name in facts.legend()]
    rows += [
        ([f"{color} p{phase}" for color in colors], f"predicted time, {PHASES[phase]}")
        for phase, colors in facts.phases().items()
    ]
    has_crossings = len({op.task for op in facts.picture.operations}) > 1
    rows += [
        ([kind], text) for kind, text in EDGES.items() if has_crossings or "crossing" not in kind
    ]
    return element(
        "ul",
        *(
            element("li", *(element("span", class_=f"swatch {kind}") for kind in kinds), text)
            for kinds, text in rows
        ),
        class_="legend",
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
