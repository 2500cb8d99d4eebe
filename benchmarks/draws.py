"""Random numbers a second: hpcflow's draws of a place, beside numpy.random's of a stream.

    python benchmarks/draws.py --out FILE

A million numbers of each kind, by one `Session.run` and by the method of
`numpy.random.Generator(Philox)`, which keeps no element apart from its neighbors. One thread each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
from common import Contender, Repeat, Tournament, check, role

OURS, NUMPY = "hpcflow Session.run", "numpy.random.Generator"
COUNT = 1_000_000


def per_number(call: Callable[[], Any]) -> Repeat:
    return lambda: common.per_call(call, 5) / COUNT


def hpcflow_draws() -> dict[str, Repeat]:
    import hpcflow as hf

    session, shape = hf.Session(), [COUNT]
    made = {
        "uniform float32": hf.random_uniform(shape),
        "uniform float64": hf.random_uniform(shape, dtype=hf.float64),
        "below 1000 int32": hf.random_uniform(shape, 0, 1000, hf.int32),
        "normal float32": hf.random_normal(shape),
        "normal float64": hf.random_normal(shape, dtype=hf.float64),
        "gamma 2.5 float64": hf.random_gamma(shape, 2.5, dtype=hf.float64),
        "poisson 3 int64": hf.random_poisson(3.0, shape, hf.int64),
        "poisson 50 int64": hf.random_poisson(50.0, shape, hf.int64),
    }
    return {name: per_number(lambda t=t: session.run(t)) for name, t in made.items()}


def numpy_draws() -> dict[str, Repeat]:
    import numpy as np

    g = np.random.Generator(np.random.Philox(1))
    made = {
        "uniform float32": lambda: g.random(COUNT, np.float32),
        "uniform float64": lambda: g.random(COUNT),
        "below 1000 int32": lambda: g.integers(0, 1000, COUNT, np.int32),
        "normal float32": lambda: g.standard_normal(COUNT, np.float32),
        "normal float64": lambda: g.standard_normal(COUNT),
        "gamma 2.5 float64": lambda: g.standard_gamma(2.5, COUNT),
        "poisson 3 int64": lambda: g.poisson(3.0, COUNT),
        "poisson 50 int64": lambda: g.poisson(50.0, COUNT),
    }
    return {name: per_number(call) for name, call in made.items()}


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    if arguments.role:
        made = hpcflow_draws if arguments.role == "hpcflow" else numpy_draws
        common.serve(made(), ["numpy"])
        return
    cup = Tournament(arguments.realtime)
    names = {OURS: "hpcflow", NUMPY: "numpy"}
    players = [Contender(name, [role(None, __file__, kind)]) for name, kind in names.items()]
    cup.play(players, arguments.rounds, arguments.repeats)
    checks = []
    for case in cup.figures:
        ours = cup.middle(case, OURS)
        checks.append(check(f"{case}, numbers a second", ours and 1e-6 / ours, "M/s"))
        checks.append(check("... time by numpy.random.Generator", cup.ratio(case, OURS, NUMPY)))
    common.finish(cup.record(checks, "ns a number", 1e9), arguments.out)


if __name__ == "__main__":
    main()
