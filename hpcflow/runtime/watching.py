"""Watching over waits and deaths: a ledger of each rank, and threads that read all of them."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from hpcflow import logs
from hpcflow.comm import waiting
from hpcflow.comm.deaths import Deaths
from hpcflow.comm.ledger import PREFIX, Ledger, base, remove, sweep
from hpcflow.comm.nodes import Nodes
from hpcflow.comm.watchdog import Times, Watchdog
from hpcflow.graph.device import parse
from hpcflow.runtime import failing
from hpcflow.runtime.rank import Rank


class Watching:
    """The ledger of `rank`, the watchdog, and who waits for the deaths of its node's ranks.

    Ranks: all make it together.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.ledger, run_dir = _ledger(rank), Path(rank.settings.run_dir)
        rank.engine.ledger = waiting.ledger = self.ledger
        folder, host = self.ledger.directory, rank.hosts[rank.rank]
        nodes = Nodes(folder, run_dir, host) if len(set(rank.hosts)) > 1 else None
        logs.share(str(folder), str(nodes.folder) if nodes is not None else None)
        self.watchdog = Watchdog(
            self.ledger,
            rank.size,
            run_dir,
            Times(rank.settings.stall_s, rank.settings.stall_abort_s),
            functools.partial(failing.on_stall, rank),
            moves=None if rank.is_server else rank.engine.sees_an_end,
            nodes=nodes,
            leads=rank.hosts.index(host) == rank.rank,
            steps=lambda: rank.steps() or 0,
        )
        self.deaths: Deaths | None = None
        if hasattr(os, "pidfd_open"):
            self.deaths = Deaths(folder, host, rank.rank, functools.partial(failing.on_death, rank))

    def end(self) -> None:
        """Close the ledger, and watch no more."""
        if self.deaths is not None:
            self.deaths.stop()
        self.watchdog.stop()
        self._rank.engine.ledger = waiting.ledger = None
        logs.share(None)
        self.ledger.close()
        remove(self.ledger.directory)


def _ledger(rank: Rank) -> Ledger:
    """A new ledger, in the folder of this job; collective."""
    assert rank.world is not None
    token = rank.world.broadcast_text(os.urandom(16).hex())
    host = rank.hosts[rank.rank]
    sweep(base(), host)
    place = -1 if rank.is_server else parse(rank.task).task or 0
    folder = os.path.join(base(), PREFIX + token)
    return Ledger(folder, rank.rank, host, rank.task_name(rank.rank), place)
