"""Session seed: the seed of random ops that have none of their own nor of their graph."""

from __future__ import annotations

import hashlib

from hpcflow.runtime.dynamic_types import Attributes


class SessionSeed:
    """The seed of the job and the number of the session.

    It is the same on all ranks of a session. result.json has the job's seed, checkpoints have both.
    """

    __slots__ = ("job", "mask", "session")

    def __init__(self, job: int = 0, session: int = 0) -> None:
        self.set(job, session)

    def set(self, job: int, session: int) -> None:
        """Set the seed in place."""
        self.job, self.session = job, session
        digest = hashlib.blake2b(f"{job}:{session}".encode(), digest_size=16).digest()
        self.mask = int.from_bytes(digest, "little")  # 128 bits, as keys

    def key(self, attrs: Attributes) -> int:
        """The random key of an op in this session."""
        key: int = attrs["key"]
        return key ^ self.mask if attrs.get("unseeded") else key
