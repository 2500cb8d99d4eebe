"""Training steps as text: ratios beside targets, times, and of what misses where the time goes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nets.contest import OURS, PEERS
from nets.spec import NETS

FILES = {1: "training_step", 2: "training_step_2"}  # threads -> results/NAME.json
PROFILES = "step_profile"
NEXT = {  # to try, where the target is missed
    "mlp_sgd": "generated products for layers of few columns, as of ten classes",
    "mlp_adam": "generated products for layers of few columns, as of ten classes",
    "word2vec": "rows of both tables taken and changed by several threads",
    "lstm_full": "logits made and used block by block, so that they stay in the cache",
    "lstm_sampled": "sigmoids and tanhs of the gates behind each tile of their product",
    "transformer": "attention block by block, so that its scores stay in the cache",
    "lenet": "filters' gradients of the first layer, whose one channel fills no vector",
    "alexnet": "dense layers' gradients used as they are made: they are 235 MB that memory takes",
}
Record = dict[str, Any]
Table = Callable[[list[str], list[list[str]]], str]


def read(results: pathlib.Path, name: str) -> Record | None:
    file = results / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def threads(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"


def by_net(record: Record) -> dict[str, Record]:
    """Network -> the check of its ratio; `by` is the best peer."""
    found = {}
    for row in record["checks"]:
        net, _, best = row["figure"].partition(": by ")
        if best:
            found[net] = row | {"by": best}
    return found


def medians(record: Record) -> dict[tuple[str, str], float]:
    """(network, contender) -> milliseconds."""
    return {(row["case"], row["contender"]): row["median"] for row in record["rows"]}


def ratios(results: pathlib.Path, table: Table) -> str:
    """Ratios by the best peer from all files that are there, and the cases that miss."""
    records = {number: read(results, name) for number, name in FILES.items()}
    there = {number: record for number, record in records.items() if record is not None}
    profiles = (read(results, PROFILES) or {}).get("profiles", [])
    by_case = {(one["net"], one["threads"]): one for one in profiles}
    lines = "\n".join(missed(there, by_case))
    return "\n\n".join([beside_targets(there, table), lines or "No target is missed."])


def beside_targets(there: dict[int, Record], table: Table) -> str:
    """Our step by that of the best peer; in parentheses of minima."""
    rows, found = [], {number: by_net(record) for number, record in there.items()}
    for net in NETS:
        of = [found[number].get(net) for number in there]
        targets = [f"≤ {one['at_most']:g}" for one in of if one]
        rows.append([net, *targets[:1], *(cell for one in of for cell in ratio_cells(one))])
    head = [cell for number in there for cell in (threads(number), "")]
    return table(["network", "target", *head], rows)


def ratio_cells(one: Record | None) -> tuple[str, str]:
    if one is None or one["value"] is None:
        return "not measured" if one is None else "no peer", ""
    met = "met" if one["met"] else "missed"
    return f"{one['value']:.3g} ({one['of_minima']:.3g}) by {one['by']}", met


def missed(there: dict[int, Record], profiles: dict[tuple[str, int], Record]) -> Iterator[str]:
    """A line for each missed target: where the time goes, and what to try."""
    for number, record in there.items():
        for net, one in by_net(record).items():
            if one["met"] is False:
                profile = profiles.get((net, number))
                best = medians(record)[net, one["by"]]
                where = reason(profile, best) if profile else "no profile was taken"
                case = f"{net}, {threads(number)}"
                yield f"- **{case}**, {one['value']:.3g}: {where}. Next to try: {NEXT[net]}."


def reason(one: Record, best: float) -> str:
    """Where a step's time goes; `best` is the time of the best peer, in ms."""
    step, said = one["step"], []
    if one["products"]:
        said.append(
            f"{one['products'] / step:.0%} are products, at {one['products_of_peak']:.0%} of the "
            f"peak and {one['products_of_best']:.0%} of the fastest ones of their sizes"
        )
    lost = ", ".join(f"{row['type']} {1e3 * row['lost']:.3g} ms" for row in one["farthest"])
    said.append(f"most is lost, beside the peaks, in {lost}")
    said.append(f"Python and engine take {one['python'] / step:.0%}")
    said.append(f"all at the peaks it would be {1e3 * one['at_peaks'] / best:.2f}")
    return "; ".join(said)


def times(record: Record, table: Table, among: Iterable[str] = NETS) -> str:
    """Medians, minima in parentheses: a line for each network, a column for each contender."""
    cell = {
        (row["case"], row["contender"]): f"{row['median']:.4g} ({row['min']:.4g})"
        for row in record["rows"]
    }
    names = [OURS, *PEERS]
    nets = [net for net in among if (net, OURS) in cell]
    lines = [[net, *(cell.get((net, name), "") for name in names)] for net in nets]
    return table(["network", *names], lines)


def agreement(record: Record) -> str:
    """How far losses are apart, over all networks and peers."""
    worst: dict[str, Record] = {}
    for row in record["checks"]:
        net, _, step = row["figure"].partition(": losses of ")
        if step and row["value"] >= worst.get(step, row)["value"]:
            worst[step] = row | {"net": net}
    said = [
        f"{row['value']:.2g} at {step.removesuffix(' differ by')} ({row['net']}; asked: "
        f"≤ {row['at_most']:g})"
        for step, row in worst.items()
    ]
    return f"Losses differ from those of any peer by at most {', '.join(said)}."
