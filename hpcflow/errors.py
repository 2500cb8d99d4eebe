"""Errors: the exception classes of hpcflow, with message, operation, user's line, rank and hint."""

from __future__ import annotations

ABORTED = 86  # exit code of ranks that end because another rank failed, and of their job


class HpcflowError(Exception):
    """Base class of all errors of hpcflow.

    `message` describes the problem. `op` is the name of the operation. `line` is the line of the
    user's code that created it. `rank` is the rank that raised the error. `hint` is the remedy.
    Fields that are set are printed.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        line: str | None = None,
        rank: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.op, self.line, self.rank, self.hint = message, op, line, rank, hint

    def __str__(self) -> str:
        facts = (("op", self.op), ("made at", self.line), ("rank", self.rank), ("next", self.hint))
        width = max((len(name) for name, fact in facts if fact is not None), default=0)
        rows = [f"\n  {name:<{width}}  {fact}" for name, fact in facts if fact is not None]
        return self.message + "".join(rows)


class GraphError(HpcflowError, ValueError):
    """Graph construction error, for example two graphs mixed.

    It and its subclasses are also the classes of Python that TensorFlow raises in such cases.
    """


class ShapeError(GraphError):
    """Shapes do not fit the operation."""


class DTypeError(GraphError, TypeError):
    """Data types do not fit the operation."""


class ArgumentError(GraphError, TypeError):
    """A public function does not take these arguments; the cause is Python's own error."""


class UnknownNameError(GraphError, KeyError):
    """No operation or tensor of the graph has this name."""


class FinalizedGraphError(GraphError, RuntimeError):
    """The graph is finalized: no operation can be added."""


class VariableNameError(GraphError):
    """`get_variable`: the variable exists, does not exist, or has another shape or dtype."""


class OnnxError(GraphError):
    """A model cannot be imported from ONNX, or a graph not exported; names the unsupported part."""


class GradientError(GraphError, LookupError):
    """A gradient was requested through an operation that has none."""


class PlacementError(HpcflowError):
    """No device satisfies an operation's constraints."""


class VerifyError(HpcflowError):
    """A plan would deadlock or compute wrong results; `rule` names the violated invariant."""

    def __init__(self, rule: str, message: str, **facts: object) -> None:
        super().__init__(f"{rule}: {message}", **facts)  # type: ignore[arg-type]
        self.rule = rule


# The classes that Python raises for invalid data.
MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError, AssertionError),
)


class FeedError(HpcflowError, TypeError, ValueError):
    """A feed is missing, unknown, or of the wrong shape or dtype."""


class FetchError(HpcflowError, TypeError, ValueError):
    """A session cannot compute this fetch."""


class UninitializedError(HpcflowError):
    """A variable was read before it had a value."""


class NumericError(HpcflowError, ArithmeticError):
    """A value is NaN or infinite where finite values are required."""


class AssertError(HpcflowError, AssertionError):
    """The condition of an `Assert` operation was false; the message shows its data."""


class RangeError(HpcflowError, IndexError):
    """An index is out of range at run time, for example a label or a row to gather."""


class StepError(HpcflowError):
    """A step ended without results in a regular way; the session and other steps continue."""


class OutOfRangeError(StepError):
    """A closed queue has fewer elements than requested: the end of its data."""


class CancelledError(StepError):
    """The step was cancelled: its queue, its session or the program was closed."""


class DeadlineExceededError(StepError, TimeoutError):
    """A step exceeded the `deadline` of its run; the message names what it waited for."""


class DeviceError(HpcflowError):
    """A device is absent, is shared where sharing is not allowed, or lacks a kernel."""


class OutOfMemoryError(HpcflowError, MemoryError):
    """A device has too little memory for a step; the message names the ten largest tensors."""

    __new__ = Exception.__new__  # type: ignore[assignment]  # MemoryError makes no other kind


class MissingPackageError(HpcflowError, ImportError):
    """An optional package is missing; the message names the extra that installs it."""


class LaunchError(HpcflowError):
    """The launcher and the ranks disagree, or no launcher was found."""


class RankError(HpcflowError):
    """A function that `hpcflow.notebook.run` started raised on `rank`; `traceback` is its text."""

    def __init__(
        self,
        message: str,
        *,
        traceback: str = "",
        op: str | None = None,
        line: str | None = None,
        rank: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, op=op, line=line, rank=rank, hint=hint)
        self.traceback = traceback

    __str__ = Exception.__str__  # the message names the rank


class KernelError(HpcflowError):
    """A kernel failed; its error is the cause. Names the operation and the user's line."""


class CommError(HpcflowError):
    """A message or a collective was called wrongly, or failed."""


class LonelyCollectiveError(CommError):
    """One rank ran a plan with collectives that other ranks of its group did not run."""


class DeathError(CommError):
    """A rank of the job died, or a message was addressed to a dead rank."""

    died: int | None = None  # the rank, if known


class GraphMismatchError(HpcflowError):
    """The ranks built different graphs; the message names the first operation that differs."""


class DataError(HpcflowError):
    """Data cannot be read: a file is missing, damaged, of another format, or lacks a field."""


class CheckpointError(HpcflowError):
    """A checkpoint cannot be written or read."""


class CheckpointStorageError(CheckpointError):
    """The file system failed to write or read a checkpoint: full, read-only, or an I/O error."""


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, truncated, damaged, or belongs to another checkpoint."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """The checkpoint is of another model; the message lists differing names, shapes and dtypes."""


class StallError(HpcflowError):
    """A wait lasted longer than `stall_abort_s`; the report says which rank waits for which.

    `step` is the step of the wait, `missing` are the awaited ranks, `report` is the path of the
    file with the full report.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int = 0,
        missing: tuple[int, ...] = (),
        report: str = "",
        op: str | None = None,
        line: str | None = None,
        rank: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, op=op, line=line, rank=rank, hint=hint)
        self.step, self.missing, self.report = step, missing, report

    def __str__(self) -> str:
        return self.message  # it contains step, ranks and path
