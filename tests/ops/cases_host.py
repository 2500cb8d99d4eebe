"""Cases of ops that show, check or hand on what they are given."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import CASES, SHAPES, Case, f, v

CASES += [
    *(
        Case(
            "Print",
            [f(*s), f(2)],
            lambda x, *_: x,
            {"layout": ("x", None), "message": "m: ", "first_n": 1, "summarize": 3},
            still={1: "what is printed is not handed on"},
        )
        for s in SHAPES
    ),
    *(
        Case(
            "Assert",
            [v(condition, bool), f(3)],
            lambda *_: (),
            {"layout": ("x", None), "summarize": -1},
        )
        for condition in (True, [True, True], np.zeros((0, 2)))
    ),
    Case("IdentityN", [f(3), f(2, 2)], lambda x, y: (x, y)),
    Case(
        "CustomGradient",
        [f(3), f(2, 2)],
        lambda x, y: x,
        {"outputs": 1, "rule": lambda op, g: [None]},
        still={0: "its gradient goes to the other input, by the rule"},
    ),
]
