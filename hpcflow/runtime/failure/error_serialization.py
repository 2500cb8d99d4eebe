"""Errors as plain data: what a rank tells the driver of a step that failed on it."""

from __future__ import annotations

import json
from typing import Any

from hpcflow import errors
from hpcflow.errors import HpcflowError, KernelError, VerifyError

FACTS = ("op", "line", "rank", "hint")


def encode(error: BaseException) -> bytes:
    """Its kind, message and facts."""
    facts: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, HpcflowError):
        facts |= {"message": error.message} | {name: getattr(error, name) for name in FACTS}
    return json.dumps(facts).encode()


def decode(data: bytes) -> HpcflowError:
    """The error again; one of a kind that is not hpcflow's is a KernelError."""
    facts = json.loads(data)
    kind = getattr(errors, str(facts["kind"]), None)
    if not (isinstance(kind, type) and issubclass(kind, HpcflowError)):
        kind = KernelError
    found: HpcflowError = kind.__new__(kind)  # some are made of more than a message
    HpcflowError.__init__(found, str(facts["message"]), **{name: facts.get(name) for name in FACTS})
    if isinstance(found, VerifyError):
        found.rule = found.message.partition(":")[0]
    return found
