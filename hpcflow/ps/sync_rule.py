"""Synchronization rule: the interface of the rules for workers of parameter servers.

A rule is plain data and does not communicate. The coordinator (sync_coordinator.py) asks it who may
begin a step and whose gradients count. The implementations are in sync_rules.py (async, all),
backup_workers.py and bounded_staleness.py; a script may register its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set
from typing import Protocol

from hpcflow.errors import HpcflowError

Gradient = tuple[int, float]  # a worker, and its share of the global batch
_registered: dict[str, Callable[..., SyncRule]] = {}  # by name
_names: dict[Callable[..., SyncRule], str] = {}  # also of a class that is registered anew


class PendingUpdate(Protocol):
    """What a rule sees of an update that is not made yet. It is not the rule's to change.

    It is the same object for all updates of a training operation: a key of what a rule remembers.
    """

    @property
    def workers(self) -> int:
        """The number of workers in the job."""
        ...

    @property
    def arrived(self) -> list[Gradient]:
        """The gradients that have arrived, in this order; late ones are dropped unseen."""
        ...

    @property
    def contributors(self) -> set[int]:
        """The workers whose gradients have arrived."""
        ...

    @property
    def active(self) -> Set[int]:
        """The workers that make steps: those that have not ended, died or reached a barrier."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether no other worker contributes: the others have ended, died or wait at a barrier."""
        ...


@dataclasses.dataclass(frozen=True)
class SyncRule:
    """Base class of the synchronization rules.

    A rule with `joins` combines gradients of several workers into one update: `select` says whose.
    Any other lets each worker make its own updates, and may limit by `may_begin` how far workers
    run ahead. Each update makes a new version of the variables. A subclass is a frozen dataclass;
    its fields are the numbers in its text, `name:1,2`. Server 0 makes a rule from the text and asks
    it. What the rule remembers is no field, stays on server 0, and is not in checkpoints.
    """

    joins = False
    in_step = False  # whether every worker takes part in every update

    def __str__(self) -> str:
        name = _names.get(type(self))
        if name is None:
            raise HpcflowError(
                f"the synchronization rule {type(self).__name__} has no name",
                hint=f'call hf.register_sync_rule("name", {type(self).__name__}) first',
            )
        values = [str(getattr(self, field.name)) for field in dataclasses.fields(self)]
        return ":".join([name, ",".join(values)] if values else [name])

    @property
    def max_steps_ahead(self) -> int | None:
        """The steps a worker may be ahead of the slowest when it begins one; None: no limit."""
        return None

    @property
    def counts_steps(self) -> bool:
        """Whether server 0 counts the steps of the workers and asks `may_begin`."""
        return self.max_steps_ahead is not None or type(self).may_begin is not SyncRule.may_begin

    @property
    def needs_servers(self) -> bool:
        """Whether replicas without servers, which make every step together, cannot follow it."""
        return self.counts_steps or (self.joins and not self.in_step)

    @property
    def max_deaths(self) -> int | None:
        """How many workers may die without ending a job that survives deaths; None: any number."""
        return None

    def may_begin(self, steps: int, slowest: int) -> bool:
        """Whether a worker that has made `steps` steps may begin one; the slowest made `slowest`.

        A worker that may not is asked about again each time the slowest has made a step.
        """
        return self.max_steps_ahead is None or steps - slowest <= self.max_steps_ahead

    def needed(self, workers: int) -> int:
        """The number of gradients in an update; 0 if each worker makes its own updates."""
        return 0

    def select(self, update: PendingUpdate) -> Sequence[Gradient] | None:
        """The arrived gradients that the update uses, the others are dropped; None: wait for more.

        By default the first `needed`. Called when a gradient has arrived or a worker has left. An
        update that is complete uses all that have arrived if this returns None.
        """
        needed = self.needed(update.workers)
        if len(update.contributors) < needed and not update.is_complete:
            return None
        return update.arrived[:needed]

    def check(self, workers: int) -> None:
        """Raise HpcflowError if there are too few workers for the rule."""


def register_sync_rule(name: str, rule: Callable[..., SyncRule]) -> None:
    """Give a synchronization rule the name by which `sync="name"` or `sync="name:NUMBER"` finds it.

    `rule` is a subclass of `hf.SyncRule`. Server 0 runs the rule: it imports the script to get it,
    so the script starts its work under `if __name__ == "__main__":` only.
    Errors: HpcflowError if the name is not a word, or another rule of hpcflow has it.
    """
    before = _registered.get(name)
    if not name.isidentifier():
        raise HpcflowError(f"{name!r} is no name of a synchronization rule", hint="give a word")
    if before is not None and before.__module__.startswith("hpcflow.") and before is not rule:
        raise HpcflowError(
            f"hpcflow has a synchronization rule {name!r} of its own", hint="choose another name"
        )
    _registered[name], _names[rule] = rule, name


def registered(name: str) -> Callable[..., SyncRule] | None:
    """The rule of this name."""
    return _registered.get(name)


def names() -> list[str]:
    """The names of all rules."""
    return list(_registered)


def require_integer(label: str, number: object, least: int) -> None:
    """Raise HpcflowError unless the argument of a rule is an integer of at least `least`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise HpcflowError(f"{label}({number!r})", hint=f"give a whole number of at least {least}")
