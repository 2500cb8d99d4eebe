"""Put the tables of benchmarks/results/paper/*.json into docs/experiments.md.

    python benchmarks/paper/page.py

Each stands between `<!-- figures NAME -->` and `<!-- end -->`; the rest is written by hand.
"""

from __future__ import annotations

import backup
import bed
import convergence
import language_model
import null_step
import predict
import report

SHOWS = {
    "null_step": null_step.show,
    "backup": backup.show,
    "language_model": language_model.show,
    "convergence": convergence.show,
    "predict": predict.show,
}


def block(name: str, record: bed.Row) -> str:
    """An experiment's table and picture, and where and how it was measured."""
    picture = f"![{name}](experiments_{name}.svg)"
    parts = [SHOWS[name.removesuffix("_shared")](record), picture]
    if "host" in record:
        host = record["host"]
        versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
        parts.append(
            f"`{record['command']}`, {record['bed']}, {host['date']}: {record['seconds']:.0f} s on "
            f"{host['cpu']}, {host['cores']} cores, load before {host['load_before']:.1f}; cores "
            f"in use: {bed.busiest(record)}; {versions}."
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    report.fill(bed.DOCS / "experiments.md", bed.RESULTS, block)
