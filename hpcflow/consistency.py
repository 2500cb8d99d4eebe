"""How workers of parameter servers keep step with each other: the rules that `sync=` names."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError


@dataclasses.dataclass(frozen=True)
class Rule:
    """Base of the rules. `joins`: gradients of several workers are joined to one update."""

    joins = False

    def check(self, workers: int) -> None:
        """HpcflowError if so few workers cannot follow the rule."""


@dataclasses.dataclass(frozen=True)
class Async(Rule):
    """Each worker updates the variables with its own gradients when it has them."""

    def __str__(self) -> str:
        return "async"


@dataclasses.dataclass(frozen=True)
class All(Rule):
    """Each update is by the gradients of all workers, from the same values: the joined batch's."""

    joins = True

    def __str__(self) -> str:
        return "all"

    def needed(self, workers: int) -> int:
        """How many gradients make an update."""
        return workers


@dataclasses.dataclass(frozen=True)
class Backup(Rule):
    """Each update is by the first gradients that come, all but `extra` of the workers' (4.4).

    The gradients that come later are dropped, so that up to `extra` slow workers delay nobody.
    Source: Abadi et al., TensorFlow (OSDI'16), section 4.4; Chen et al., Revisiting Distributed
    Synchronous SGD (2016).
    """

    extra: int
    joins = True

    def __post_init__(self) -> None:
        _whole("Backup", self.extra, 1)

    def __str__(self) -> str:
        return f"backup:{self.extra}"

    def needed(self, workers: int) -> int:
        """How many gradients make an update."""
        return workers - self.extra

    def check(self, workers: int) -> None:
        """HpcflowError if nobody would be left."""
        if self.extra >= workers:
            raise HpcflowError(
                f"sync={self}: {self.extra} backup workers of {workers} leave no gradient to use",
                hint=f"start at least {self.extra + 1} workers, or have fewer in reserve",
            )


@dataclasses.dataclass(frozen=True)
class Stale(Rule):
    """As Async, but no worker runs more than `bound` steps ahead of the slowest.

    Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server (2013).
    """

    bound: int

    def __post_init__(self) -> None:
        _whole("Stale", self.bound, 0)

    def __str__(self) -> str:
        return f"stale:{self.bound}"


def rule(given: str | Rule) -> Rule:
    """The rule that a user names: "async", "all", "backup:K", "stale:S", or itself.

    Errors: HpcflowError listing the rules.
    """
    if isinstance(given, Rule):
        return given
    name, _, number = str(given).partition(":")
    if name in ("async", "all") and not number:
        return Async() if name == "async" else All()
    if name in ("backup", "stale") and number.isdecimal() and len(number) < 10:
        return Backup(int(number)) if name == "backup" else Stale(int(number))
    raise HpcflowError(
        f"sync={given!r} is no rule",
        hint="choose async, all, backup:K (hf.Backup(K)) or stale:S (hf.Stale(S))",
    )


def _whole(what: str, number: object, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise HpcflowError(f"{what}({number!r})", hint=f"give a whole number of at least {least}")
