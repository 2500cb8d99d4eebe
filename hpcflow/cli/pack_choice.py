"""Pack choice: whether the ranks of `hpcflow run` import hpcflow from one file (`hpcflow pack`)."""

from __future__ import annotations

import os
import sys

import hpcflow
from hpcflow.cli.terminal_output import err, error_text
from hpcflow.errors import HpcflowError
from hpcflow.launch.launcher_detection import LaunchedRank
from hpcflow.platform import pack_importer
from hpcflow.platform.file_systems import shared_type
from hpcflow.settings import Settings

MANY_RANKS = 64  # from more ranks on, pack=auto packs on any file system


def pack_reason(setting: str, ranks: int) -> str:
    """Why `ranks` ranks import from a pack, by the setting `pack`; "" if they do not."""
    if setting != "auto":
        return "pack=on" if setting == "on" else ""
    if ranks > MANY_RANKS:
        return f"{ranks} ranks"
    folders = {"hpcflow": os.path.dirname(hpcflow.__file__), "Python's environment": sys.prefix}
    found = {name: shared_type(folder) for name, folder in folders.items()}
    return next((f"{name} is on {kind}" for name, kind in found.items() if kind), "")


def pack_for_ranks(settings: Settings, ranks: int) -> tuple[dict[str, str], str]:
    """The variable of the pack that the ranks to be started use, and why; empty without a pack.

    If the pack is needed but cannot be made, a line tells the reason.
    """
    reason = pack_reason(settings.pack, ranks)
    importer = pack_importer.active_importer()
    if not reason or (importer is not None and importer.sources):  # PYTHONPATH names a pack
        return {}, ""
    from hpcflow.cli.pack import cached_pack

    try:
        return {pack_importer.VARIABLE: str(cached_pack())}, reason
    except (OSError, HpcflowError) as error:
        text = error.message if isinstance(error, HpcflowError) else error_text(error)
        err(
            f"hpcflow: each rank imports hpcflow file by file ({reason}), "
            f"as no pack can be made: {text}\n"
            "  next  set HPCFLOW_PACK_CACHE to a folder of yours, or pack=off"
        )
        return {}, ""


def advise(place: LaunchedRank, settings: Settings) -> None:
    """On rank 0 of another launcher's ranks, tell if they should have a pack, and how."""
    if pack_importer.active_importer() is None and os.environ.get(pack_importer.VARIABLE) is None:
        reason = pack_reason(settings.pack, place.size)
        if reason:
            err(
                f"hpcflow: each rank imports hpcflow file by file ({reason}); in the job script: "
                f"export {pack_importer.VARIABLE}=$(hpcflow pack)"
            )
