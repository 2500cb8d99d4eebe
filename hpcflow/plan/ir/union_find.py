"""Sets of what belongs together, grown by joining two at a time (union-find)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Sets(Generic[T]):
    """Each member is in one set, at first in a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def __contains__(self, member: T) -> bool:
        return member in self._parent

    def add(self, member: T) -> None:
        """Make sure that it is a member."""
        self._parent.setdefault(member, member)

    def members(self) -> list[T]:
        """All members, in the order in which they came."""
        return list(self._parent)

    def find(self, member: T) -> T:
        """The member that stands for its set."""
        while self._parent[member] != member:
            self._parent[member] = self._parent[self._parent[member]]
            member = self._parent[member]
        return member

    def join(self, a: T, b: T) -> None:
        """Make one set of those of two members."""
        self._parent[self.find(a)] = self.find(b)
