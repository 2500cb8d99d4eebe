"""Monitoring of a rank: its wait ledger, the stall watchdog and the failure detector."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from hpcflow.comm import polling_backoff
from hpcflow.graph.device_names import parse_device
from hpcflow.monitoring.cross_node_wait_ledgers import CrossNodeLedgers
from hpcflow.monitoring.failure_detector import FailureDetector
from hpcflow.monitoring.stall_watchdog import StallTimes, StallWatchdog
from hpcflow.monitoring.wait_ledger import PREFIX, WaitLedger, ledger_folder, remove, remove_stale
from hpcflow.platform import rank_logging
from hpcflow.runtime.failure import abort_on_error
from hpcflow.runtime.job.rank_role import RankRole


class RankMonitoring:
    """The ledger of `rank`, its watchdog, and the failure detector of its node's ranks.

    Ranks: all construct it collectively.
    """

    def __init__(self, rank: RankRole) -> None:
        self._rank = rank
        self.ledger, run_dir = _open_ledger(rank), Path(rank.settings.run_dir)
        rank.executor.ledger = polling_backoff.ledger = self.ledger
        folder, host = self.ledger.directory, rank.hosts[rank.rank]
        nodes = CrossNodeLedgers(folder, run_dir, host) if len(set(rank.hosts)) > 1 else None
        rank_logging.share_warnings(str(folder), str(nodes.folder) if nodes is not None else None)
        self.watchdog = StallWatchdog(
            self.ledger,
            rank.size,
            run_dir,
            StallTimes(rank.settings.stall_s, rank.settings.stall_abort_s),
            functools.partial(abort_on_error.on_stall, rank),
            moves=None if rank.is_server else rank.executor.wait_for_step_end,
            nodes=nodes,
            leads=rank.hosts.index(host) == rank.rank,
            steps=lambda: rank.steps() or 0,
        )
        self.deaths: FailureDetector | None = None
        if hasattr(os, "pidfd_open"):
            self.deaths = FailureDetector(
                folder, host, rank.rank, functools.partial(abort_on_error.on_death, rank)
            )

    def end(self) -> None:
        """Stop the threads and close the ledger."""
        if self.deaths is not None:
            self.deaths.stop()
        self.watchdog.stop()
        self._rank.executor.ledger = polling_backoff.ledger = None
        rank_logging.share_warnings(None)
        self.ledger.close()
        remove(self.ledger.directory)


def _open_ledger(rank: RankRole) -> WaitLedger:
    """A new ledger in the folder of this job; collective over all ranks."""
    assert rank.world is not None
    token = rank.world.broadcast_text(os.urandom(16).hex())
    host = rank.hosts[rank.rank]
    remove_stale(ledger_folder(), host)
    place = -1 if rank.is_server else parse_device(rank.task).task or 0
    folder = os.path.join(ledger_folder(), PREFIX + token)
    return WaitLedger(folder, rank.rank, host, rank.task_name(rank.rank), place)
