"""Cost tables: the profile of a machine, and its predictions beside a profiled run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.profile_costs import ProfiledOperation, log_ratio, percent
from hpcflow.plan.cost.step_correction import HeldOutRow, cross_validation, seconds_from_rows
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_costs import OperationCost, SampleSummary
from hpcflow.platform.quantity_text import format_excess, format_seconds, rounded_bytes
from hpcflow.platform.terminal_escaping import escape_line

MOST_WORST = 10  # operations of a run that are named
MOST_TITLE = 60  # characters of a type in a table


class PredictedOperation(NamedTuple):
    """An operation of a run on a rank: measured seconds of a call, and the prediction."""

    rank: int
    name: str
    type: str
    calls: int
    measured_s: float  # median of the calls
    predicted_s: float
    source: str
    measured_total_s: float
    predicted_total_s: float

    @property
    def error(self) -> float:
        """|log(predicted / measured)| of the medians."""
        return log_ratio(self.predicted_s, self.measured_s)


def profile_data(profile: MachineProfile) -> list[dict[str, Any]]:
    """An object for each type of operation: rows, calls, seconds, and the error of the model.

    The error is that of each row predicted by the rows of other features, in percent: its median
    and 90th percentile; null for a type with one row, as it says nothing of the type's model.
    """
    costs, types = OperationCosts(profile.operations), dict[tuple[str, str], list[OperationCost]]()
    for row in profile.operations:
        types.setdefault((row.key.type, row.key.device), []).append(row)
    data = []
    for (type_, device), rows in types.items():
        errors = []
        if len({(r.key.dtypes, r.key.flops, r.key.nbytes) for r in rows}) > 1:
            errors = [log_ratio(costs.held_out(r).median, r.seconds.median) for r in rows]
        data.append(
            {
                "type": type_,
                "device": device,
                "rows": len(rows),
                "calls": sum(row.seconds.count for row in rows),
                "seconds": sum(row.seconds.count * row.seconds.mean for row in rows),
                **_errors(errors),
            }
        )
    return sorted(data, key=lambda row: -row["seconds"])


def threads_data(profile: MachineProfile) -> list[dict[str, Any]]:
    """An object for each number of threads and kind of device: rows, their types and calls."""
    groups: dict[tuple[int, str], list[OperationCost]] = {}
    for row in profile.operations:
        groups.setdefault((row.key.threads, row.key.device), []).append(row)
    return [
        {
            "threads": threads,
            "device": device,
            "rows": len(rows),
            "types": len({row.key.type for row in rows}),
            "calls": sum(row.seconds.count for row in rows),
        }
        for (threads, device), rows in sorted(groups.items())
    ]


def profile_text(profile: MachineProfile) -> str:
    """The tables of a profile: operations, links, collectives, waits and steps."""
    parts = []
    rows = [
        (_title(row["type"]), row["device"], f"{row['rows']:,}", f"{row['calls']:,}",
         format_seconds(row["seconds"]), _percent(row["error_median"]), _percent(row["error_90"]))
        for row in profile_data(profile)
    ]  # fmt: skip
    header = ("operation", "device", "rows", "calls", "time", "error, median", "90 %")
    parts.append(format_table(header, rows) if rows else "no operation was measured")
    threads: list[tuple[str, ...]] = [
        (f"{row['threads']:,}", escape_line(row["device"]),
         *(f"{row[name]:,}" for name in ("rows", "types", "calls")))
        for row in threads_data(profile)
    ]  # fmt: skip
    if threads:
        names = ("threads of a rank", "device", "rows", "types", "calls")
        parts.append(format_table(names, threads))
    links: list[tuple[str, ...]] = [
        (link.key, f"{link.latency_s.count:,}", _micro(link.latency_s), _rate(link.bytes_per_s))
        for link in profile.links
    ]
    if links:
        parts.append(format_table(("link", "measured", "latency", "each way"), links))
    collectives: list[tuple[str, ...]] = [
        (escape_line(row.key.type), f"{row.key.ranks:,}", f"{row.key.nodes:,}",
         rounded_bytes(row.key.nbytes), f"{row.seconds.count:,}", _micro(row.seconds))
        for row in sorted(profile.collectives, key=lambda row: row.key)
    ]  # fmt: skip
    if collectives:
        columns = ("collective", "ranks", "nodes", "bytes", "measured", "time")
        parts.append(format_table(columns, collectives))
    waits: list[tuple[str, ...]] = [
        (row.key.policy, format_seconds(row.key.waited_us / 1e6), f"{row.seconds.count:,}",
         _micro(row.seconds), format_seconds(row.seconds.quantile(0.9)))
        for row in sorted(profile.waits, key=lambda row: row.key)
    ]  # fmt: skip
    if waits:
        named = ("waiting on", "after", "measured", "goes on, median", "90 %")
        parts.append(format_table(named, waits))
    if profile.steps:
        parts.append(
            _steps_text(cross_validation(profile.steps, seconds_from_rows(profile.operations)))
        )
    return "\n\n".join(parts)


def steps_data(profile: MachineProfile) -> list[dict[str, Any]]:
    """An object for each row of steps: its own work, measured and predicted without its program.

    `corrected_s` is that of the learned correction, `uncorrected_s` the sum of operations.
    """
    found = cross_validation(profile.steps, seconds_from_rows(profile.operations))
    return [
        {
            **one.row.key._asdict(),
            "script": one.row.script,
            "measured_s": one.measured,
            "uncorrected_s": one.uncorrected,
            "corrected_s": one.corrected,
        }
        for one in found
    ]


def _steps_text(found: Sequence[HeldOutRow]) -> str:
    """The table of measured steps, and the mean errors without and with the correction."""
    rows: list[tuple[str, ...]] = [
        (_title(one.row.script), f"{one.row.key.ranks:,}", f"{one.row.key.threads:,}",
         f"{one.row.work.count:,}", *map(format_seconds, one[1:]))
        for one in found
    ]  # fmt: skip
    before = statistics.fmean(log_ratio(one.uncorrected, one.measured) for one in found)
    after = statistics.fmean(log_ratio(one.corrected, one.measured) for one in found)
    head = ("script", "ranks", "threads", "measured", "own work", "uncorrected", "corrected")
    return (
        f"{format_table(head, rows)}\n"
        f"mean error {_percent(percent(before))}; corrected by the other programs "
        f"{_percent(percent(after))}"
    )


def predicted_operations(
    costs: OperationCosts, ranks: Mapping[int, Sequence[ProfiledOperation]]
) -> list[PredictedOperation]:
    """The operations of a run with their predictions, by the difference of their total times."""
    predicted = []
    for rank, operations in ranks.items():
        for operation in operations:
            seconds, estimate = operation.cost.seconds, operation.estimate(costs)
            predicted.append(
                PredictedOperation(
                    *(rank, operation.name, operation.cost.key.type, seconds.count),
                    *(seconds.median, estimate.median, estimate.source),
                    *(seconds.count * seconds.mean, seconds.count * estimate.median),
                )
            )
    return sorted(predicted, key=lambda p: -abs(p.predicted_total_s - p.measured_total_s))


def run_data(predicted: Sequence[PredictedOperation]) -> list[dict[str, Any]]:
    """An object for each type of operation of a run: measured and predicted seconds, errors."""
    types: dict[str, list[PredictedOperation]] = {}
    for operation in predicted:
        types.setdefault(operation.type, []).append(operation)
    data = [
        {
            "type": type_,
            "operations": len(operations),
            "calls": sum(o.calls for o in operations),
            "measured_s": sum(o.measured_total_s for o in operations),
            "predicted_s": sum(o.predicted_total_s for o in operations),
            "sources": sorted({o.source for o in operations}),
            **_errors([o.error for o in operations]),
        }
        for type_, operations in types.items()
    ]
    return sorted(data, key=lambda row: -float(str(row["measured_s"])))


def run_text(predicted: Sequence[PredictedOperation]) -> str:
    """The tables of a run: by type of operation, and the worst predictions."""
    rows: list[tuple[str, ...]] = [
        (_title(row["type"]), f"{row['operations']:,}", f"{row['calls']:,}",
         format_seconds(row["measured_s"]), format_seconds(row["predicted_s"]),
         _percent(row["error_median"]), _percent(row["error_90"]), ", ".join(row["sources"]))
        for row in run_data(predicted)
    ]  # fmt: skip
    total = (
        sum(o.measured_total_s for o in predicted),
        sum(o.predicted_total_s for o in predicted),
    )
    rows.append(("all", f"{len(predicted):,}", f"{sum(o.calls for o in predicted):,}",
                 *map(format_seconds, total), "", "", ""))  # fmt: skip
    header = ("operation", "ops", "calls", "measured", "predicted", "error, median", "90 %",
              "from")  # fmt: skip
    worst = [
        (escape_line(o.name), _title(o.type), f"{o.rank}", f"{o.calls:,}",
         format_seconds(o.measured_s), format_seconds(o.predicted_s), _percent(percent(o.error)),
         o.source)
        for o in predicted[:MOST_WORST]
    ]  # fmt: skip
    head = ("most time mispredicted", "type", "rank", "calls", "measured", "predicted",
            "error", "from")  # fmt: skip
    return f"{format_table(header, rows)}\n\n{format_table(head, worst)}"


def _errors(errors: Iterable[float]) -> dict[str, float | None]:
    ordered = sorted(errors)
    if not ordered:
        return {"error_median": None, "error_90": None}
    last = SampleSummary.of([max(error, 1e-12) for error in ordered]).quantile(0.9)
    return {"error_median": percent(statistics.median(ordered)), "error_90": percent(last)}


def _title(text: str) -> str:
    line = escape_line(text)
    return line if len(line) <= MOST_TITLE else f"{line[: MOST_TITLE - 3]}..."


def _percent(value: float | None) -> str:
    return "-" if value is None else format_excess(value / 100)


def _micro(seconds: SampleSummary) -> str:
    return format_seconds(seconds.median)


def _rate(rate: SampleSummary) -> str:
    return f"{rounded_bytes(rate.median)}/s"
