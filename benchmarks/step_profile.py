"""Where the time of a training step of eight networks goes, beside the machine's measured peaks.

    python benchmarks/step_profile.py --threads 1 2 --out FILE

The networks of benchmarks/training_step.py with the setting `profile`. The parts of a step are
products (of matrices, and convolutions), generated loops, other operations, the Python around them
and what is outside of the step: feeds and the script. "At the peaks" is what the step would take if
each operation had the peak of products or of memory, whichever it needs. Products are set beside
the peak, which large square matrices have, and beside the fastest products of their own sizes.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import common
from common import Contender, Tournament, role
from nets import products
from nets.spec import NETS

STEPS = 60  # enough for nets that make gradients without using them
FARTHEST = 3  # types of operation that lose most
SIZES, TIMES = "sizes.json", "times.json"
HEAD = ["network", "step ms", "products", "of peak", "of best alone", "loops", "of peak", "other",
        "Python", "outside", "at the peaks"]  # fmt: skip


def act(what: str) -> None:
    """Be the process that trains one network, or one that times products."""
    if pathlib.Path(what).is_dir():
        folder = pathlib.Path(what)
        asked = json.loads((folder / SIZES).read_text())
        (folder / TIMES).write_text(json.dumps([products.fastest(one) for one in asked]))
        return
    from nets import of_hpcflow

    from hpcflow.runtime.profile.profiler import SKIPPED
    from hpcflow.runtime.profile.profiler import STEPS as PROFILED

    step = of_hpcflow.step(what)
    for _ in range(STEPS if what == "alexnet" else SKIPPED + PROFILED + 2):
        step()


def started(what: str, threads: int, folder: pathlib.Path) -> None:
    """Run a process of this benchmark to its end.

    Errors: SystemExit with what it said.
    """
    environ = common.environ(Contender(what, threads=threads))
    environ |= {"HPCFLOW_PROFILE": "1", "HPCFLOW_RUN_DIR": str(folder)}
    done = subprocess.run(
        role(None, __file__, what), env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr}")


def profiled(net: str, threads: int, folder: pathlib.Path) -> dict[str, Any]:
    """The profile of the one rank that trains `net`; peaks are measured for the first one."""
    started(net, threads, folder)
    return json.loads((folder / "profile.json").read_text())["ranks"][0]


def alone(rows: Sequence[dict[str, Any]], threads: int, folder: pathlib.Path) -> float:
    """Seconds that these products would take one by one, with nothing between them."""
    sizes = [tuple(row["product"]) for row in rows]
    asked = list(dict.fromkeys(sizes))
    (folder / SIZES).write_text(json.dumps(asked))
    started(str(folder), threads, folder)
    took = dict(zip(asked, json.loads((folder / TIMES).read_text()), strict=True))
    return sum(row["calls"] * took[of] for row, of in zip(rows, sizes, strict=True))


def spent(rows: Iterable[dict[str, Any]]) -> float:
    return sum(row["seconds"] for row in rows)


def of_peak(rows: Sequence[dict[str, Any]]) -> float | None:
    """The part of the nearer peak that these operations have."""
    total = spent(rows)
    return (
        sum((row["peak_share"] or 0.0) * row["seconds"] for row in rows) / total if total else None
    )


def parts(net: str, threads: int, folder: pathlib.Path) -> dict[str, Any]:
    """Seconds of a step by part, which together are the step, and shares of the peaks."""
    one = profiled(net, threads, folder)
    steps, seconds = one["steps"], one["seconds"]
    rows = [row for row in one["ops"] if row["kind"] == "kernels"]
    made = [row for row in rows if row["product"]]
    loops = [row for row in rows if row["provider"] == "llvm"]
    python = sum(seconds.values()) - seconds["kernels"] - seconds["outside"]
    best = alone(made, threads, folder) if made else 0.0
    return {
        "net": net,
        "threads": threads,
        "step": one["wall_seconds"] / steps,
        "products": spent(made) / steps,
        "products_of_peak": of_peak(made),
        "products_of_best": best / spent(made) if made else None,
        "loops": spent(loops) / steps,
        "loops_of_peak": of_peak(loops),
        "other": (seconds["kernels"] - spent(made) - spent(loops)) / steps,
        "python": python / steps,
        "outside": seconds["outside"] / steps,
        "at_peaks": one["least_seconds"] / steps,
        "farthest": farthest(one["types"], steps),
        "peaks": next(iter(one["peaks"].values())),
    }


def farthest(types: Sequence[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The types of operation that lose most time beside the peaks."""

    def lost(row: dict[str, Any]) -> float:
        return row["seconds"] * (1 - min(1.0, row["peak_share"] or 0.0))

    most = sorted(types, key=lost, reverse=True)[:FARTHEST]
    return [
        {"type": row["type"], "lost": lost(row) / steps, "of_peak": row["peak_share"]}
        for row in most
    ]


# -- as text


def share(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"


def cells(one: dict[str, Any]) -> list[str]:
    """A network's line of the table."""
    step = one["step"]
    return [
        *(one["net"], f"{1e3 * step:.4g}"),
        *(share(one["products"] / step), share(one["products_of_peak"])),
        share(one["products_of_best"]),
        *(share(one["loops"] / step), share(one["loops_of_peak"])),
        *(share(one[part] / step) for part in ("other", "python", "outside", "at_peaks")),
    ]


def show(record: dict[str, Any], table: Any) -> str:
    """The result as text: a table for each number of threads, by `table(head, rows)`."""
    found = []
    for threads in sorted({one["threads"] for one in record["profiles"]}):
        of = [one for one in record["profiles"] if one["threads"] == threads]
        peaks = of[0]["peaks"]
        peak = f"{peaks['flops']['float32'] / 1e9:.4g} GFLOP/s, {peaks['nbytes'] / 1e9:.3g} GB/s"
        found.append(f"{threads} thread{'s' if threads > 1 else ''}; peaks {peak}:")
        found.append(table(HEAD, [cells(one) for one in of]))
    return "\n\n".join(found)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup = Tournament()
    cup.versions["hpcflow"] = common.versions(["numpy"])
    found = []
    for threads in arguments.threads:
        with tempfile.TemporaryDirectory() as name:
            for net in arguments.nets:
                found.append(parts(net, threads, pathlib.Path(name)))
                print("  ".join(cells(found[-1])), flush=True)
    common.finish(cup.record([], "s", 1.0) | {"profiles": found}, arguments.out)


if __name__ == "__main__":
    main()
