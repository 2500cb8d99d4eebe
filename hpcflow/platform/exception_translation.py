"""What public names raise: hpcflow's own errors, whatever their arguments are.

Functions and classes are made to keep that promise where they are made public, and classes of
which the user has objects without naming them, where they are defined.
Three kinds of errors pass as they are: hpcflow's own, the TypeError of a call that does not fit the
signature, and what the caller's own functions raise.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

from hpcflow.errors import MALFORMED, ArgumentError, GraphError, HpcflowError, OutOfMemoryError

Thing = TypeVar("Thing")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What hpcflow calls: an error out of these is its own.
_LIBRARIES = sys.stdlib_module_names | {"cupy", "google", "h5py", "llvmlite", "ml_dtypes"}
_LIBRARIES |= {"mpi4py", "numpy", "onnx"}
_CO_GENERATOR = 0x20  # `inspect` has it, which takes long to import
_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem", "init", "call"),
)
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80
_SPECIAL = {f"__{name}__" for o in _OPERATORS for name in (o, f"r{o}")}
_LEFT_OUT = {
    "Session.run",  # a step may take a microsecond: what it calls makes the errors
    "Coordinator.request_stop",  # these raise an error that the user has handed in
    "Coordinator.raise_requested_exception",
    "Coordinator.join",
    "TestCase",  # the errors of these tell of the user's assertions
    "Assertions",
}


def guarded(thing: Thing) -> Thing:
    """A function that does as `thing`, always the same one; of a class the class itself.

    Of a class, and of those of ours that it extends, the public methods and operators are guarded.
    """
    made: Any = thing
    if isinstance(thing, (types.FunctionType, types.MethodType)):
        made = _guarded_function(thing)
    elif isinstance(thing, type) and not issubclass(thing, (BaseException, enum.Enum)):
        for cls in thing.__mro__:
            if cls.__module__.partition(".")[0] == "hpcflow":
                _guard_methods(cls)
    return made


def guard_module(names: MutableMapping[str, Any], public: Iterable[str]) -> None:
    """Guard what a module makes public; `names` are its globals."""
    for name in public:
        names[name] = guarded(names[name])


@functools.cache
def _guarded_function(function: types.FunctionType | types.MethodType) -> Any:
    if hasattr(function, "_guards"):
        return function
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType) and wrapped.__code__.co_flags & _CO_GENERATOR:
        return _guarded_manager(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GraphError as error:
            error.line = error.line or user_line()
            raise
        except HpcflowError:
            raise
        except MALFORMED as error:
            inner = sys._getframe(1).f_code.co_filename.startswith(_PACKAGE)
            if inner or not _misfits(error):
                raise  # to who was called from outside
            raise _refusal(function, args, kwargs, error) from error

    call._guards = True  # type: ignore[attr-defined]
    return call


def _guarded_manager(function: Callable[..., Any]) -> Any:
    """A function that `contextlib.contextmanager` made: entering is guarded, what is inside not."""

    @functools.wraps(function)
    @contextlib.contextmanager
    def manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            try:
                entered = stack.enter_context(function(*args, **kwargs))
            except HpcflowError:
                raise
            except MALFORMED as error:
                raise _refusal(function, args, kwargs, error) from error
            yield entered

    manager._guards = True  # type: ignore[attr-defined]
    return manager


@functools.cache
def _guard_methods(cls: type) -> None:
    if cls.__name__ in _LEFT_OUT:
        return
    for name, value in list(vars(cls).items()):
        if (name.startswith("_") and name not in _SPECIAL) or f"{cls.__name__}.{name}" in _LEFT_OUT:
            continue
        if isinstance(value, types.FunctionType):
            setattr(cls, name, guarded(value))
        elif isinstance(value, (staticmethod, classmethod)):
            setattr(cls, name, type(value)(guarded(value.__func__)))


def _misfits(error: BaseException) -> bool:
    """True if a call fits the signature, and hpcflow or a library that it called raised."""
    here = error.__traceback__
    return here is not None and here.tb_next is not None and ours(error)


def ours(error: BaseException) -> bool:
    """True if an error was raised by hpcflow, or by a library that it called.

    It is not if it was raised by a function of the user's that hpcflow called.
    """
    at, mine = error.__traceback__, True
    while at is not None:
        frame = at.tb_frame
        if frame.f_code.co_filename.startswith(_PACKAGE):
            mine = True
        elif str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES:
            mine = False
        at = at.tb_next
    return mine


def _refusal(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], error: Exception
) -> HpcflowError:
    """The error to raise in place of a raw one."""
    given = [shown(a) for a in args] + [f"{key}={shown(v)}" for key, v in kwargs.items()]
    name = _public_name(function, args)
    told = f"{name}({', '.join(given)}): {type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return OutOfMemoryError(told, line=user_line(), hint="ask for less at a time")
    hint = f"help({name}) tells what it takes"
    return ArgumentError(f"these arguments do not fit: {told}", line=user_line(), hint=hint)


def _public_name(function: Callable[..., Any], args: Any) -> str:
    """What the caller calls it; a method by the class of the object, which may inherit it."""
    owner, _, name = function.__qualname__.rpartition(".")
    classes = [cls.__name__ for cls in type(args[0]).__mro__] if args else []
    if owner in classes and not classes[0].startswith("_"):
        owner = classes[0]
    return f"{owner}.{name}".removeprefix(".").removesuffix(".__init__")


def shown(value: Any) -> str:
    """What a message says of an argument, which may be large, or endless, or not to be printed."""
    return _SHORT.repr(value)


def user_line() -> str:
    """`file.py:line` of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
