"""Random programs of state, order, branches and loops, beside an interpreter and TensorFlow.

    python tools/fuzz_programs.py --seed 0 --count 300
    python tools/fuzz_programs.py --count 10000 --tensorflow --json found.json

Each program is run by hpcflow with generated and with plain kernels, and by an interpreter that
runs its graph operation by operation, in two orders; with `--tensorflow` also by TensorFlow, where
that is installed, with resource variables. What hpcflow refuses with an error of its own is no
difference, unless TensorFlow accepts it. One in five programs has NaN, infinities and empty batches
instead, and must give the same with generated and plain kernels. One in five counts on what hpcflow
promises and TensorFlow does not: a read comes before each update that it does not follow. One in
five counts its effects, and runs in a job of several tasks, replicas or servers, beside NumPy (see
tools/programs/effect_programs.py). A
difference is printed as a short program. A program of which TensorFlow gives something else when
more is fetched is no difference: its seed is listed as a contradiction. Exit code: 0 without a
difference, 1 with some, 2 if it cannot run.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.about import about  # noqa: E402
from tools.programs import effects_on_ranks, sides  # noqa: E402
from tools.programs.compare import ITSELF, difference  # noqa: E402
from tools.programs.lines import Program  # noqa: E402
from tools.programs.make import Maker  # noqa: E402
from tools.programs.shorten import shortest  # noqa: E402

EFFECTS = 2  # which of five is one of effects
SPECIAL = 5  # every so many programs is one of special values, one of reads first, one of effects


def made(seed: int) -> tuple[Program, bool]:
    """The program of a seed, and whether it is one of special values."""
    special = seed % SPECIAL == SPECIAL - 1
    return Maker(seed, special, reads_first=seed % SPECIAL == 1).program(), special


def shown(found: dict[str, Any]) -> str:
    """A difference, with its program."""
    told = found["told"] or found["kind"]
    return f"# seed {found['seed']}: {' and '.join(found['sides'])}: {told}\n{found['program']}\n"


def of_effects(seed: int, whole: bool) -> dict[str, Any] | None:
    """What a job makes of a program of counted effects, if that is wrong."""
    program, job = effects_on_ranks.job_of(seed)
    told = effects_on_ranks.difference(program, job, seed)
    if told is None:
        return None
    if not whole:
        program = effects_on_ranks.shortest(program, job, seed)
        told = effects_on_ranks.difference(program, job, seed) or told
    kind = "error" if told.startswith("error") else "values"
    return {"seed": seed, "sides": [job, "in order"], "kind": kind, "told": told,
            "program": program.render()}  # fmt: skip


def of_sides(
    seed: int, beside: list[str], whole: bool, contradictions: list[int]
) -> dict[str, Any] | None:
    """The first difference between the sides of a program."""
    program, special = made(seed)
    told = difference(program, special, beside)
    if told is None:
        return None
    if told.other == ITSELF:
        contradictions.append(seed)
        return None
    key = told.key

    def still(shorter: Program) -> bool:
        if sides.stuck(shorter):
            return False
        again = difference(shorter, special, [key[1]])
        return again is not None and again.key == key

    if not whole:
        program = shortest(program, still)
        told = difference(program, special, beside) or told
    return {"seed": seed, "sides": [told.one, told.other], "kind": told.kind, "told": told.text,
            "program": program.render()}  # fmt: skip


def main() -> int:
    """Run the programs that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=300, help="of programs")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    parser.add_argument("--tensorflow", action="store_true", help="compare with TensorFlow, too")
    parser.add_argument("--whole", action="store_true", help="do not shorten programs")
    given = parser.parse_args()
    if given.tensorflow:
        try:
            sides.tensorflow()
        except ImportError as error:
            print(f"TensorFlow is not installed: {error}", file=sys.stderr)
            return 2
    beside = [*sides.ALL[1:], *(["TensorFlow"] if given.tensorflow else [])]
    record: dict[str, Any] = {**about(), "seed": given.seed, "count": given.count}
    record["tensorflow"] = given.tensorflow
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    contradictions: list[int] = []
    record["contradictions"] = contradictions
    for seed in range(given.seed, given.seed + given.count):
        if seed % SPECIAL == EFFECTS:
            one = of_effects(seed, given.whole)
        else:
            one = of_sides(seed, beside, given.whole, contradictions)
        if one is None:
            continue
        found.append(one)
        print(shown(one), flush=True)
        if given.json:
            given.json.write_text(json.dumps({**record, "differences": found}, indent=1) + "\n")
    seconds = time.monotonic() - began
    print(f"{given.count} programs, {len(found)} differences, {seconds:.0f} s")
    if contradictions:
        print(f"TensorFlow contradicts itself on seeds {contradictions}")
    for kind, count in collections.Counter(
        f"{d['sides'][1]}: {d['kind']}" for d in found
    ).most_common():
        print(f"{count:6} {kind}")
    if given.json:
        given.json.write_text(json.dumps({**record, "differences": found}, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
