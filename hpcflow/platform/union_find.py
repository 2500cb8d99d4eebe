"""Union-find: disjoint sets that grow by joining two at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets; each member starts in a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def __contains__(self, member: T) -> bool:
        return member in self._parent

    def add(self, member: T) -> None:
        """Add a member if it is not one yet."""
        self._parent.setdefault(member, member)

    def members(self) -> list[T]:
        """Return all members in insertion order."""
        return list(self._parent)

    def find(self, member: T) -> T:
        """Return the representative of the member's set."""
        while self._parent[member] != member:
            self._parent[member] = self._parent[self._parent[member]]
            member = self._parent[member]
        return member

    def join(self, a: T, b: T) -> None:
        """Join the sets of two members."""
        self._parent[self.find(a)] = self.find(b)
