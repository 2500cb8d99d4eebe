"""Error serialization: a rank sends the error of a failed step to its driver as JSON."""

from __future__ import annotations

import json

from hpcflow import errors
from hpcflow.errors import HpcflowError, KernelError, VerifyError
from hpcflow.runtime.dynamic_types import Json

FACTS = ("op", "line", "rank", "hint")


def encode_error(error: BaseException) -> bytes:
    """Serialize the class name, message and facts of an error."""
    facts: Json = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, HpcflowError):
        facts |= {"message": error.message} | {name: getattr(error, name) for name in FACTS}
    return json.dumps(facts).encode()


def decode_error(data: bytes) -> HpcflowError:
    """Deserialize an error; an error of a class outside hpcflow becomes a KernelError."""
    facts = json.loads(data)
    kind = getattr(errors, str(facts["kind"]), None)
    if not (isinstance(kind, type) and issubclass(kind, HpcflowError)):
        kind = KernelError
    error: HpcflowError = kind.__new__(kind)  # some constructors take more than a message
    HpcflowError.__init__(error, str(facts["message"]), **{name: facts.get(name) for name in FACTS})
    if isinstance(error, VerifyError):
        error.rule = error.message.partition(":")[0]
    return error
