"""What the rules that keep workers in step cost server 0, by the number of workers.

    python benchmarks/rules.py --json FILE

A round is each worker's request to begin a step and its word that its gradients are there (under
bounded staleness: that its step is applied), in another order each time, and the update. Gradients
are not among it. Figures are CPU time of the process, for one worker and round.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import common
from common import Contender, Repeat, Tournament, check, role

RULES = ("all", "backup:1", "stale:0")
FEW, MANY = 16, 10_000
WORKERS = (FEW, 100, 1_000, 4_096, MANY)
STEPS = 40_000  # of all workers together, in one repeat


def rounds_of(name: str, workers: int) -> Callable[[int], None]:
    """A function that makes so many rounds."""
    from hpcflow.ps.sync_coordinator import SyncCoordinator
    from hpcflow.ps.sync_rules import rule

    made = SyncCoordinator(rule(name), workers)
    joins, share = made.rule.joins, 1 / workers
    drawn, begun = random.Random(workers), [0]
    orders = itertools.cycle([drawn.sample(range(workers), workers) for _ in range(3)])

    def goes(version: int) -> None:
        begun[0] += 1

    def make(rounds: int) -> None:
        for _ in range(rounds):
            version = made.channel("train").version
            if joins:
                made.pick("train", lambda factors: None)
            for worker in next(orders):
                if joins:
                    made.ready(worker, "train", version, share)
                else:
                    made.tick(worker)
                made.begin(
                    worker, "train", lambda v: goes(v)
                )  # each wait has a function of its own
            if joins:
                made.end("train")
            if begun[0] != workers:
                raise RuntimeError(f"{begun[0]} of {workers} workers have begun their next step")
            begun[0] = 0

    return make


def per_step(make: Callable[[int], None], workers: int) -> Repeat:
    rounds = max(1, STEPS // workers)

    def repeat() -> float:
        start = time.process_time()
        make(rounds)
        return (time.process_time() - start) / (rounds * workers)

    return repeat


def cases(name: str) -> dict[str, Repeat]:
    return {f"{n:,} workers": per_step(rounds_of(name, n), n) for n in WORKERS}


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    if arguments.role:
        common.serve(cases(arguments.role), ["numpy"])
        return
    cup = Tournament(arguments.realtime)
    players = [Contender(name, [role(None, __file__, name)]) for name in RULES]
    cup.play(players, arguments.rounds, arguments.repeats)
    few, many = f"{FEW:,} workers", f"{MANY:,} workers"
    checks = []
    for name in RULES:
        one = cup.middle(many, name)
        checks.append(check(f"{name}, {MANY:,} workers", one and one * 1e6, "µs", at_most=4.0))
        ratio = cup.ratio(many, name, name, few)
        checks.append(check(f"... by {FEW} workers", ratio, at_most=1.5))
    common.finish(cup.record(checks, "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
