"""Fault-tolerant collectives: the other ranks complete them when a rank dies.

When a rank dies, an MPI collective fails on some of the other ranks and succeeds on the rest, so
the ranks cannot continue together. These collectives send messages up a tree to a root rank, the
chair, and back (`fault_tolerant_tree.py`). After a death the root exchanges messages directly with
each remaining rank, and all ranks receive the same answer. If the root dies, the job cannot
continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcflow.comm.communicator import REDUCTIONS, Communicator, Request
from hpcflow.comm.fault_tolerant_tree import (
    Join,
    MemberRound,
    Put,
    RootRound,
    Settle,
    TreeMailbox,
    TreePosition,
)
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError, DeathError

LENGTH = 16  # bytes of the header of a text: its rank, its length


class FaultTolerantCollectives:
    """Small collectives over the ranks `members` of `comm`; the first member is the root.

    It uses `tag` and the next two tags. Every live member calls the collectives in the same order;
    members that died before their call are left out. The methods are named as in `Communicator`.
    Collectives complete in the order in which they were started. Members forward messages for
    others, so each started collective must be tested until it has completed; it is appended to
    `beside`, a list of requests that the caller tests whenever it waits.
    """

    def __init__(
        self,
        comm: Communicator,
        members: Sequence[int],
        tag: int,
        beside: list[Request] | None = None,
    ) -> None:
        self.comm, self._mail, self._beside = comm, TreeMailbox(comm, tag), beside
        self._begun = 0  # collectives started
        self._last: _OrderedCollective | None = None  # the collective started last
        self.dead_ranks: set[int] = set()  # dead members on which all members agree
        self._memo: tuple[tuple[int, ...], frozenset[int], TreePosition] | None = None
        self.continue_with(members)

    def continue_with(self, members: Sequence[int]) -> None:
        """Continue with the live `members`; collectives already started keep their old members."""
        self.members = tuple(members)
        self.size, self.rank = len(members), self.members.index(self.comm.rank)

    def _tree(self, members: tuple[int, ...]) -> TreePosition:
        """The tree of the members that all members agree are live."""
        if self._memo is None or self._memo[0] is not members or self._memo[1] != self.dead_ranks:
            ranks = tuple(rank for rank in members if rank not in self.dead_ranks)
            tree = TreePosition(ranks, ranks.index(self.comm.rank))
            self._memo = members, frozenset(self.dead_ranks), tree
        return self._memo[2]

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Allreduce `array` in place over the members ("sum", "max", "min")."""
        combine = REDUCTIONS[op]

        def join(addends: Sequence[bytes]) -> bytes:
            total = np.frombuffer(addends[0], array.dtype).copy()
            for data in addends[1:]:
                combine(total, np.frombuffer(data, array.dtype), out=total)
            return total.tobytes()

        def put(data: bytes) -> None:
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

        return self._round(array.tobytes(), join, lambda total: total, put)

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """The members' strings on the root, None elsewhere; blocks."""
        if root:
            raise CommError("only the chair gathers", rank=self.comm.rank)
        texts: dict[int, str] = {}

        def settle(gathered: bytes) -> bytes:
            texts.update(_decode_texts(gathered))
            return b""

        what, message = f"a text of {self.size} ranks", text.encode()
        message = np.array([self.comm.rank, len(message)], np.int64).tobytes() + message
        wait_for_requests(self._round(message, b"".join, settle, lambda data: None), label=what)
        return None if self.rank else [texts[r] for r in self.members if r in texts]

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """The root's string on every member; blocks."""
        if root:
            raise CommError("only the chair broadcasts", rank=self.comm.rank)
        box: list[str] = []
        body = (text or "").encode()
        call = self._round(b"", b"".join, lambda call: body, lambda data: box.append(data.decode()))
        wait_for_requests(call, label="what one rank decides", peer=self.members[0])
        return box[0]

    def all_gather_text(self, text: str) -> list[str]:
        """The members' strings, without NUL characters, on every member; blocks."""
        rows = self.gather_text(text)
        return self.broadcast_text(None if rows is None else "\0".join(rows)).split("\0")

    def _round(self, local_input: bytes, join: Join, settle: Settle, put: Put) -> Request:
        number, members = self._begun, self.members
        self._begun += 1

        def begin() -> RootRound | MemberRound:
            tree = self._tree(members)
            if tree.position:
                return MemberRound(self._mail, number, tree, local_input, join, put)
            return RootRound(self._mail, number, tree, local_input, join, settle, put)

        self._last = _OrderedCollective(self, begin, self._last)
        self._last.begin()
        if self._beside is not None:
            self._beside.append(self._last)
        return self._last


def _decode_texts(gathered: bytes) -> dict[int, str]:
    """The texts in a gathered message, by rank."""
    texts, at = {}, 0
    while at < len(gathered):
        rank, length = np.frombuffer(gathered[at : at + LENGTH], np.int64).tolist()
        texts[rank] = gathered[at + LENGTH : at + LENGTH + length].decode()
        at += LENGTH + length
    return texts


class _OrderedCollective:
    """A collective that starts when the previous one has completed."""

    def __init__(
        self,
        group: FaultTolerantCollectives,
        make: Callable[[], RootRound | MemberRound],
        before: _OrderedCollective | None,
    ) -> None:
        self._group, self._make, self._before = group, make, before
        self._round: RootRound | MemberRound | None = None
        self._is_over = False

    def begin(self) -> None:
        """Send what can be sent now; a death of the root is raised by a later `test`."""
        try:
            self.test()
        except DeathError:
            pass

    def test(self) -> bool:
        """Whether it has completed on this rank and on the ranks for which this rank forwards."""
        if self._is_over:
            return True
        if self._before is not None:
            if not self._before.test():
                return False
            self._before = None
        if self._round is None:
            self._round = self._make()
        if self._round.test():
            self._is_over = True
            self._group.dead_ranks |= self._round.dead_ranks
            self._round = None
        return self._is_over
