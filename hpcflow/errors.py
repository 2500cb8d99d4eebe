"""Every error hpcflow raises: typed, and saying what, where, who, and what to do next."""

from __future__ import annotations

ABORTED = 86  # exit code of ranks that another rank's failure ends, and of their job


class HpcflowError(Exception):
    """Base of all errors of hpcflow.

    `message` says what is wrong. `op` names the operation and `line` the user's own line that made
    it, `rank` who met it, `hint` what to do next; those that are known are printed.
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


class GraphError(HpcflowError):
    """The graph was built wrongly: an unknown name, a finalized graph changed, two graphs mixed."""


class ShapeError(GraphError, ValueError):
    """Shapes that do not fit the operation."""


class DTypeError(GraphError, TypeError):
    """Data types that do not fit the operation."""


class ArgumentError(GraphError, TypeError, ValueError):
    """Arguments that a public function does not take; Python's own error is the cause."""


class VariableNameError(GraphError, ValueError):
    """`get_variable` asked for a variable that exists, does not, or is another than was meant."""


class OnnxError(GraphError):
    """A model has what hpcflow cannot import, or a graph what ONNX cannot say; it is named."""


class GradientError(GraphError):
    """A gradient was asked for through an operation that has none."""


class PlacementError(HpcflowError):
    """No device satisfies an operation's constraints."""


class VerifyError(HpcflowError):
    """A plan that would hang or compute the wrong thing; `rule` names the broken law."""

    def __init__(self, rule: str, message: str, **facts: object) -> None:
        super().__init__(f"{rule}: {message}", **facts)  # type: ignore[arg-type]
        self.rule = rule


# What Python raises where data is not as it should be.
MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError, AssertionError),
)


class FeedError(HpcflowError, ValueError):
    """A feed is missing, unknown, or of the wrong shape or dtype."""


class FetchError(HpcflowError, ValueError):
    """A fetch is not something a session can compute."""


class UninitializedError(HpcflowError):
    """A variable was read before it had a value."""


class NumericError(HpcflowError, ArithmeticError):
    """A NaN or an infinity where the program asked for finite numbers."""


class AssertError(HpcflowError, AssertionError):
    """An `Assert` of the graph did not hold; the message shows its data."""


class RangeError(HpcflowError, IndexError):
    """An index, known only when it runs, outside what it indexes: a label, a row to gather."""


class StepError(HpcflowError):
    """A step that ended without its values, as it may: the session and other steps go on."""


class OutOfRangeError(StepError):
    """A closed queue has not the elements that were asked for: the end of its data."""


class CancelledError(StepError):
    """The step cannot end any more: its queue, its session or the program was closed."""


class DeadlineExceededError(StepError, TimeoutError):
    """A step was not done within the `deadline` of its run; it says what was waited for."""


class DeviceError(HpcflowError):
    """A device is absent, shared where it may not be, or lacks a kernel."""


class OutOfMemoryError(HpcflowError, MemoryError):
    """A device has no room for what a step needs; the message names its ten largest tensors."""

    __new__ = Exception.__new__  # type: ignore[assignment]  # MemoryError makes no other kind


class MissingPackageError(HpcflowError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""


class LaunchError(HpcflowError):
    """The launcher and the ranks disagree, or no launcher was found."""


class KernelError(HpcflowError):
    """A kernel failed; its own error is the cause, the operation and the user's line are named."""


class CommError(HpcflowError):
    """A message or a collective was called wrongly or failed."""


class LonelyCollectiveError(CommError):
    """One rank ran a plan with collectives that the others of its group did not run."""


class DeathError(CommError):
    """A rank of the job has died, or a message met one that has."""

    died: int | None = None  # the rank, where it is known


class GraphMismatchError(HpcflowError):
    """The ranks built different graphs; the message names the first operation that differs."""


class DataError(HpcflowError):
    """Data could not be read: a file is missing, foreign or damaged, or lacks a field."""


class CheckpointError(HpcflowError):
    """A checkpoint could not be written or read."""


class CheckpointStorageError(CheckpointError):
    """The file system refused to write or read a checkpoint: it is full, read-only, or failed."""


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, truncated, damaged, or not of this checkpoint."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint of another model; the message is a diff of names, shapes and dtypes."""


class StallError(HpcflowError):
    """A wait lasted longer than `stall_abort_s`; the report names who waits for whom.

    `step` is that of the wait, `missing` are the ranks that it is for, `report` the file that tells
    more.
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
        return self.message  # which names all that
