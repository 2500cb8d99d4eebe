"""Synchronization rules `async` and `all`, and the parser of the option `sync=`."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError
from hpcflow.ps import script_rules
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rule import SyncRule, names, register_sync_rule, registered


@dataclasses.dataclass(frozen=True)
class Async(SyncRule):
    """Asynchronous updates: each worker applies its own gradients as soon as it has them."""


@dataclasses.dataclass(frozen=True)
class All(SyncRule):
    """Synchronous updates: each uses the gradients of all workers, that is of the global batch.

    All workers compute them from the same values of the variables.
    """

    joins = True
    in_step = True

    def needed(self, workers: int) -> int:
        """The number of gradients in an update."""
        return workers


for _name, _rule in {"async": Async, "all": All, "backup": Backup, "stale": Stale}.items():
    register_sync_rule(_name, _rule)
BUILT_IN = frozenset(names())


def rule(rule_or_text: str | SyncRule, is_known: bool = False) -> SyncRule:
    """Parse a rule: "async", "all", "backup:K", "stale:S" or a registered one; a rule is returned.

    With `is_known` another rank knows the rule: it is in the script.
    Errors: HpcflowError listing the rules.
    """
    if isinstance(rule_or_text, SyncRule):
        return _checked(rule_or_text)
    name, _, text = str(rule_or_text).partition(":")
    if registered(name) is None:
        script_rules.load(name, is_known)
    make, why = registered(name), ""
    try:
        if make is not None:
            return _checked(make(*map(_number, text.split(",") if text else ())))
    except (TypeError, HpcflowError) as error:
        why = f": {error}" if name not in BUILT_IN else ""
    custom = "".join(f", {name}" for name in names() if name not in BUILT_IN)
    raise HpcflowError(
        f"sync={rule_or_text!r} is no rule{why}",
        hint=f"choose async, all, backup:K (hf.Backup(K)) or stale:S (hf.Stale(S)){custom}",
    )


def _checked(rule: SyncRule) -> SyncRule:
    if rule.joins and rule.counts_steps:
        raise HpcflowError(
            f"{type(rule).__name__}: a rule either joins gradients or says who may begin",
            hint="leave out `joins`, or `may_begin` and `max_steps_ahead`",
        )
    return rule


def _number(text: str) -> int | float | str:
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
