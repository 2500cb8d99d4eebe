"""Monitoring of a rank: its wait ledger, the stall watchdog and the failure detector."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from hpcflow.comm import polling_backoff
from hpcflow.graph.device_names import parse
from hpcflow.monitoring.cross_node_wait_ledgers import Nodes
from hpcflow.monitoring.failure_detector import Deaths
from hpcflow.monitoring.stall_watchdog import Times, Watchdog
from hpcflow.monitoring.wait_ledger import PREFIX, Ledger, base, remove, sweep
from hpcflow.platform import rank_logging
from hpcflow.runtime.failure import abort_on_error
from hpcflow.runtime.job.rank_role import Rank


class Watching:
    """The ledger of `rank`, its watchdog, and the failure detector of its node's ranks.

    Ranks: all construct it collectively.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.ledger, run_dir = _ledger(rank), Path(rank.settings.run_dir)
        rank.engine.ledger = polling_backoff.ledger = self.ledger
        folder, host = self.ledger.directory, rank.hosts[rank.rank]
        nodes = Nodes(folder, run_dir, host) if len(set(rank.hosts)) > 1 else None
        rank_logging.share(str(folder), str(nodes.folder) if nodes is not None else None)
        self.watchdog = Watchdog(
            self.ledger,
            rank.size,
            run_dir,
            Times(rank.settings.stall_s, rank.settings.stall_abort_s),
            functools.partial(abort_on_error.on_stall, rank),
            moves=None if rank.is_server else rank.engine.sees_an_end,
            nodes=nodes,
            leads=rank.hosts.index(host) == rank.rank,
            steps=lambda: rank.steps() or 0,
        )
        self.deaths: Deaths | None = None
        if hasattr(os, "pidfd_open"):
            self.deaths = Deaths(
                folder, host, rank.rank, functools.partial(abort_on_error.on_death, rank)
            )

    def end(self) -> None:
        """Stop the threads and close the ledger."""
        if self.deaths is not None:
            self.deaths.stop()
        self.watchdog.stop()
        self._rank.engine.ledger = polling_backoff.ledger = None
        rank_logging.share(None)
        self.ledger.close()
        remove(self.ledger.directory)


def _ledger(rank: Rank) -> Ledger:
    """A new ledger in the folder of this job; collective over all ranks."""
    assert rank.world is not None
    token = rank.world.broadcast_text(os.urandom(16).hex())
    host = rank.hosts[rank.rank]
    sweep(base(), host)
    place = -1 if rank.is_server else parse(rank.task).task or 0
    folder = os.path.join(base(), PREFIX + token)
    return Ledger(folder, rank.rank, host, rank.task_name(rank.rank), place)
