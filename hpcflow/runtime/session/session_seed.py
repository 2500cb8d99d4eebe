"""Seed: what the draws of a session follow from where neither their op nor its graph has one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


class Seed:
    """A number of the job, and which of its sessions it is.

    All ranks of a session have the same. Results tell the number, checkpoints keep both.
    """

    __slots__ = ("job", "mask", "session")

    def __init__(self, job: int = 0, session: int = 0) -> None:
        self.set(job, session)

    def set(self, job: int, session: int) -> None:
        """Be another one."""
        self.job, self.session = job, session
        digest = hashlib.blake2b(f"{job}:{session}".encode(), digest_size=16).digest()
        self.mask = int.from_bytes(digest, "little")  # of keys, which have as many bits

    def key(self, attrs: Mapping[str, Any]) -> int:
        """The key of an op's draws in this session."""
        key: int = attrs["key"]
        return key ^ self.mask if attrs.get("unseeded") else key
