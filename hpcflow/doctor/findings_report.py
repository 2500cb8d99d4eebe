"""Report of the findings as text or JSON, and the exit code."""

from __future__ import annotations

import dataclasses
import json

from hpcflow.doctor.rank_facts import ERROR, OK, WARN, Finding, JobFacts, shortened_names
from hpcflow.platform.quantity_text import counted

MARKS = {OK: "ok   ", WARN: "warn ", ERROR: "ERROR"}


def fold(findings: list[Finding]) -> list[tuple[Finding, list[str]]]:
    """Merge findings that differ only in the node; each has the list of its nodes."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for row in findings:
        rows.setdefault((row.check, row.level, row.what, row.fix), []).append(row.node)
    return [(Finding(level, "", what, fix, check), nodes)
            for (check, level, what, fix), nodes in rows.items()]  # fmt: skip


def as_text(job: JobFacts, findings: list[Finding]) -> str:
    """One row per finding, with its fix on the next line; the verdict at the end."""
    ranks, nodes = len(job.ranks), len(job.nodes)
    lines = [f"hpcflow doctor: {counted(ranks, 'rank')} on {counted(nodes, 'node')}"]
    wide = max((len(row.check) for row in findings), default=0)
    for row, node_names in fold(findings):
        at = f"{shortened_names(node_names)}: " if any(node_names) else ""
        lines.append(f"  {MARKS[row.level]}  {row.check:<{wide}}  {at}{row.what}")
        if row.fix:
            lines.append(f"  {'':5}  {'':<{wide}}  fix: {row.fix}")
    return "\n".join([*lines, verdict(findings), ""])


def verdict(findings: list[Finding]) -> str:
    """A one-line summary that names the nodes with errors or warnings."""
    bad = {level: [f for f in findings if f.level == level] for level in (ERROR, WARN)}
    odd = dict.fromkeys(f.node for rows in bad.values() for f in rows if f.node)
    counts = [counted(len(rows), word) for word, rows in
            (("error", bad[ERROR]), ("warning", bad[WARN])) if rows]  # fmt: skip
    end = "a job would not run" if bad[ERROR] else "a job would run"
    return f"{', '.join(counts) or 'nothing is wrong'}{_findings_of(odd)}: {end}"


def _findings_of(nodes: dict[str, None]) -> str:
    return f" on {shortened_names(nodes)}" if nodes else ""


def as_json(job: JobFacts, findings: list[Finding]) -> str:
    """Findings and facts as JSON; `format` changes when the meaning of a field does."""
    data = {
        "format": 1,
        "ok": exit_code(findings) == 0,
        "findings": [dataclasses.asdict(row) for row in findings],
        **dataclasses.asdict(job),
    }
    return json.dumps(data, indent=1) + "\n"


def exit_code(findings: list[Finding]) -> int:
    """1 if a job could not run, else 0."""
    return int(any(row.level == ERROR for row in findings))
