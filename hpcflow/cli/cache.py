"""Show or remove the cached plans, compiled kernels and packs of hpcflow.

A cached file is reused while graph, shapes, settings, versions and processor are the same. A
removed file is created again when it is needed. The folders are those of HPCFLOW_PLAN_CACHE,
HPCFLOW_KERNEL_CACHE and HPCFLOW_PACK_CACHE.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from hpcflow.cli.terminal_output import err, out
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform import artifact_cache
from hpcflow.platform.artifact_cache import CachedFile, CacheFolder
from hpcflow.platform.quantity_text import format_bytes

DAY_S = 86_400.0
KINDS = [
    (kind.artifacts, kind)
    for kind in (artifact_cache.PLANS, artifact_cache.KERNELS, artifact_cache.PACKS)
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow cache`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--clear", action="store_true", help="remove all files")
    which.add_argument(
        "--prune", type=float, metavar="DAYS", help="remove files older than DAYS days"
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print the files that exist, or that were removed.

    Exit code: 1 if a file could not be removed, 2 for wrong arguments.
    """
    if args.prune is not None and not 0 <= args.prune < float("inf"):
        err("hpcflow cache: --prune takes a number of days of at least 0")
        return 2
    places = [(name, artifact_cache.cache_place(kind)) for name, kind in KINDS]
    index = [(name, place, place.files() if place else []) for name, place in places]
    removes = args.clear or args.prune is not None
    code = 0
    if removes:
        last = time.time() - (args.prune or 0.0) * DAY_S
        index = [
            (n, p, [f for f in files if args.clear or f.modified < last]) for n, p, files in index
        ]
        gone = [(name, place, [f for f in files if _removed(f)]) for name, place, files in index]
        code, index = int(gone != index), gone
    if args.json:
        report = {name: _data(place, files) for name, place, files in index}
        out(json.dumps({"removed" if removes else "kept": report}, indent=1))
    else:
        rows = [_row(name, place, files) for name, place, files in index]
        head = ("removed" if removes else "kept", "files", "bytes", "oldest", "newest", "folder")
        out(format_table(head, rows))
    return code


def _removed(file: CachedFile) -> bool:
    """Remove a file; on failure print the reason and return False."""
    try:
        file.path.unlink(missing_ok=True)
    except OSError as error:
        err(f"hpcflow cache: {error.filename}: {error.strerror}")
        return False
    return True


def _data(cache_folder: CacheFolder | None, files: Sequence[CachedFile]) -> dict[str, Any]:
    now = time.time()
    return {
        "folder": str(cache_folder.directory) if cache_folder else None,
        "files": len(files),
        "bytes": sum(file.nbytes for file in files),
        "oldest_s": round(now - files[0].modified) if files else None,
        "newest_s": round(now - files[-1].modified) if files else None,
    }


def _row(
    name: str, cache_folder: CacheFolder | None, files: Sequence[CachedFile]
) -> tuple[str, ...]:
    ages = (age(files[0].modified), age(files[-1].modified)) if files else ("-", "-")
    folder = str(cache_folder.directory) if cache_folder else "none (disabled by the environment)"
    return name, str(len(files)), format_bytes(sum(file.nbytes for file in files)), *ages, folder


def age(created: float) -> str:
    """The age of a file as text, for example `3 hours`."""
    seconds = max(0.0, time.time() - created)
    for unit, unit_s in (("days", DAY_S), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
