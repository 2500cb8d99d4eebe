"""Call each function that hpcflow and TensorFlow 1 both have in both, and compare what comes out.

    pip install -e '.[tensorflow,fast]'      # or: make differential
    python tools/differential.py --count 5000 --seed 1
    python tools/differential.py --function reduce_sum --count 100

Random arguments (tools/oracle/families.py) go through both. Values, gradients, static shapes and
whether an error is raised must agree, or tools/oracle/known.json says why they do not. Exits 0 when
they agree, 1 with differences, each printed as a short program, 2 when TensorFlow is missing.
`--coverage` lists the common functions without a generator, `--idle` the rows of known.json that
explained nothing in this run. The same seed makes the same calls.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import tf1_record
from tools.oracle import known
from tools.oracle.draw import Case, Draw
from tools.oracle.table import GENERATORS, SCOPES
from tools.tf1_record import attribute

SECONDS = 60.0  # that one call may take in both libraries
SEARCHED = ("", "nn", "math", "losses")  # modules whose coverage is told


@dataclass
class Difference:
    """One case in which the libraries disagree."""

    function: str
    number: int  # of the case
    kind: str
    told: str
    program: str
    reason: str = ""  # why, if it is known


def main() -> int:
    """Compare, print what differs and how many calls there were."""
    options = arguments()
    try:
        tf1 = tf1_record.tensorflow()
    except ImportError as error:
        print(
            f"TensorFlow is missing: {error}\nrun: make differential",
            file=sys.stderr,
        )
        return 2
    if options.coverage:
        print(coverage(tf1))
        return 0
    chosen = options.function or common(tf1)
    found = []
    for one in differences(chosen, options.seed, options.start, options.count):
        found.append(one)
        if not one.reason:
            head = f"# {one.function}, case {one.number}: {one.kind}: {one.told}"
            print(f"{head}\n{one.program}\n", flush=True)
    new = [d for d in found if not d.reason]
    told = f"{len(new)} differences, and {len(found) - len(new)} that are known"
    print(f"{options.count} calls of {len(chosen)} functions: {told}")
    print(*(f"  {n} x {f}" for f, n in Counter(d.function for d in new).most_common()), sep="\n")
    if options.idle:
        for row in known.idle(chosen, [(d.function, d.kind, d.told) for d in found]):
            print(f"nothing for: {row['functions']} | {row['kind']} | {row['told']}")
    if options.json:
        options.json.write_text(json.dumps([asdict(d) for d in found], indent=1) + "\n")
    return 1 if new else 0


def common(tf1: Any) -> list[str]:
    """The functions that both have and a generator serves."""
    import hpcflow as hf

    both = [f for f in GENERATORS if attribute(tf1, f) is not None and attribute(hf, f) is not None]
    return sorted(both)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=500, help="how many calls")
    parser.add_argument("--start", type=int, default=0, help="the number of the first call")
    parser.add_argument("--function", action="append", help="this one alone, as nn.conv2d")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all differences there")
    parser.add_argument("--idle", action="store_true", help="list known reasons not met")
    parser.add_argument(
        "--coverage", action="store_true", help="list functions without a generator"
    )
    return parser.parse_args()


def case_of(chosen: list[str], seed: int, number: int) -> Case:
    """The case of this number: the functions take turns."""
    function = chosen[number % len(chosen)]
    draw = Draw(seed, number)
    made = draw.one(GENERATORS[function])(draw, function)
    made.number = number
    return made


def differences(chosen: list[str], seed: int, start: int, count: int) -> Iterator[Difference]:
    """Run the cases in another process, which an abort or an endless loop ends."""
    number, stop = start, start + count
    while number < stop:
        here, there = multiprocessing.get_context("spawn").Pipe()
        work = multiprocessing.get_context("spawn").Process(
            target=worker, args=(there, chosen, seed, number, stop), daemon=True
        )
        work.start()
        there.close()
        side = "hpcflow"
        try:
            while number < stop:
                if not here.poll(SECONDS):
                    raise TimeoutError
                told = here.recv()
                if isinstance(told, str):
                    side = told
                    continue
                yield from told
                number += 1
        except (EOFError, TimeoutError) as ended:
            made = case_of(chosen, seed, number)
            kind = "endless" if isinstance(ended, TimeoutError) else "abort"
            if side == "hpcflow":
                yield explained(Difference(made.function, number, kind, side, made.program()))
            number += 1
        work.kill()
        work.join()


def worker(pipe: Connection, chosen: list[str], seed: int, start: int, stop: int) -> None:
    """Send the name of each library before its turn, then what differed."""
    import hpcflow as hf
    from tools.oracle import sides

    tf1 = tf1_record.tensorflow()
    for number in range(start, stop):
        made = case_of(chosen, seed, number)
        pipe.send("hpcflow")
        ours = sides.outcome(hf, made)
        pipe.send("TensorFlow")
        theirs = sides.outcome(tf1, made)
        pipe.send(
            [
                explained(Difference(made.function, number, kind, told, made.program()))
                for kind, told in sides.judged(tf1, ours, theirs, made)
            ]
        )


def explained(difference: Difference) -> Difference:
    """With the reason, if the committed table has one."""
    difference.reason = known.reason(difference.function, difference.kind, difference.told)
    return difference


def coverage(tf1: Any) -> str:
    """The common functions that no generator serves."""
    import hpcflow as hf

    lines = []
    for where in SEARCHED:
        theirs, ours = attribute(tf1, where), attribute(hf, where)
        common = [
            f"{where}.{name}".strip(".")
            for name in dir(theirs)
            if isinstance(getattr(theirs, name), types.FunctionType) and name in ours.__all__
        ]
        if where:  # the same function, under a name of hf that is served
            common = [
                n for n in common if getattr(tf1, n.split(".")[1], None) is not attribute(tf1, n)
            ]
        open_ = [n for n in common if n not in GENERATORS and n not in SCOPES]
        share = 100 * (1 - len(open_) / len(common)) if common else 100
        lines.append(f"{where or 'tf'}: {share:.0f} % of {len(common)}; without: {' '.join(open_)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
