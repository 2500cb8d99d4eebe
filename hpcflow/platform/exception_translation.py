"""Exception translation: public functions raise only hpcflow's errors for bad arguments.

Functions and classes are wrapped where they are made public. Classes whose objects users get
without naming the class are wrapped where they are defined. Three kinds of errors pass unchanged:
hpcflow's own, the TypeError of a call that does not fit the signature, and errors raised by the
caller's own functions.
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

ObjectT = TypeVar("ObjectT")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Libraries that hpcflow calls: their errors are translated.
_LIBRARIES = sys.stdlib_module_names | {"cupy", "google", "h5py", "llvmlite", "ml_dtypes"}
_LIBRARIES |= {"mpi4py", "numpy", "onnx"}
_CO_GENERATOR = 0x20  # inspect.CO_GENERATOR; importing `inspect` is slow
_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem", "init", "call"),
)


class _Short(reprlib.Repr):
    """Short texts of values; of an array its dtype and shape, not what is in it."""

    def repr_ndarray(self, array: Any, level: int) -> str:
        return f"<array {array.dtype} {list(array.shape)}>"


_SHORT = _Short()
_SHORT.maxother = _SHORT.maxstring = 80
_SPECIAL = {f"__{name}__" for o in _OPERATORS for name in (o, f"r{o}")}
_LEFT_OUT = {
    "Session.run",  # a step may take a microsecond: the functions it calls translate errors
    "Coordinator.request_stop",  # these raise an error that the user has passed in
    "Coordinator.raise_requested_exception",
    "Coordinator.join",
    "TestCase",  # these raise the errors of the user's assertions
    "Assertions",
}


def translate_exceptions(target: ObjectT) -> ObjectT:
    """`target` with exception translation: a wrapper for a function, cached; a class itself.

    Of a class and its hpcflow base classes, the public methods and operators are wrapped.
    """
    translated: Any = target
    if isinstance(target, (types.FunctionType, types.MethodType)):
        translated = _translated_function(target)
    elif isinstance(target, type) and not issubclass(target, (BaseException, enum.Enum)):
        for cls in target.__mro__:
            if cls.__module__.partition(".")[0] == "hpcflow":
                _translate_methods(cls)
    return translated


def translate_module(names: MutableMapping[str, Any], public: Iterable[str]) -> None:
    """Wrap the public names of a module; `names` are its globals."""
    for name in public:
        names[name] = translate_exceptions(names[name])


@functools.cache
def _translated_function(function: types.FunctionType | types.MethodType) -> Any:
    if hasattr(function, "_guards"):
        return function
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType) and wrapped.__code__.co_flags & _CO_GENERATOR:
        return _translated_manager(function)

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
            if inner:
                raise  # called inside hpcflow
            if not _argument_mismatch(error) and not _is_misnamed(function, error):
                raise  # the caller's own error
            raise _translated_error(function, args, kwargs, error) from error

    call._guards = True  # type: ignore[attr-defined]
    return call


def _translated_manager(function: Callable[..., Any]) -> Any:
    """Wraps a `contextlib.contextmanager` function; errors of the body are not translated."""

    @functools.wraps(function)
    @contextlib.contextmanager
    def manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            try:
                entered = stack.enter_context(function(*args, **kwargs))
            except HpcflowError:
                raise
            except MALFORMED as error:
                raise _translated_error(function, args, kwargs, error) from error
            yield entered

    manager._guards = True  # type: ignore[attr-defined]
    return manager


@functools.cache
def _translate_methods(cls: type) -> None:
    if cls.__name__ in _LEFT_OUT:
        return
    for name, value in list(vars(cls).items()):
        if (name.startswith("_") and name not in _SPECIAL) or f"{cls.__name__}.{name}" in _LEFT_OUT:
            continue
        if isinstance(value, types.FunctionType):
            setattr(cls, name, translate_exceptions(value))
        elif isinstance(value, (staticmethod, classmethod)):
            setattr(cls, name, type(value)(translate_exceptions(value.__func__)))


def _argument_mismatch(error: BaseException) -> bool:
    """Whether the call fits the signature, and hpcflow or a library that it called raised."""
    here = error.__traceback__
    return here is not None and here.tb_next is not None and is_own_error(error)


def _is_misnamed(function: Callable[..., Any], error: BaseException) -> bool:
    """Whether the call itself has an unknown keyword for which there is a remedy."""
    here = error.__traceback__
    is_call = here is not None and here.tb_next is None
    return is_call and bool(_remedy(function, _unknown_keyword(error)))


def is_own_error(error: BaseException) -> bool:
    """Whether an error was raised by hpcflow, or by a library that it called.

    False if it was raised by a user's function that hpcflow called.
    """
    at, is_own = error.__traceback__, True
    while at is not None:
        frame = at.tb_frame
        if frame.f_code.co_filename.startswith(_PACKAGE):
            is_own = True
        elif str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES:
            is_own = False
        at = at.tb_next
    return is_own


def _translated_error(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], error: Exception
) -> HpcflowError:
    """The hpcflow error to raise instead of `error`."""
    name = _public_name(function, args)
    owner = function.__qualname__.rpartition(".")[0]
    is_method = bool(args) and owner in {cls.__name__ for cls in type(args[0]).__mro__}
    texts = [value_text(a) for a in (args[1:] if is_method else args)]
    texts += [f"{key}={value_text(v)}" for key, v in kwargs.items()]
    message = f"{name}({', '.join(texts)}): {type(error).__name__}: {error}"
    unknown = _unknown_keyword(error)
    if unknown:
        hint = _remedy(function, unknown) or f"help({name}) tells what it takes"
        text = f"{name}() got an unexpected keyword argument {unknown!r}"
        return ArgumentError(text, line=user_line(), hint=hint)
    if isinstance(error, MemoryError):
        return OutOfMemoryError(message, line=user_line(), hint="ask for less at a time")
    hint = f"help({name}) tells what it takes"
    return ArgumentError(f"these arguments do not fit: {message}", line=user_line(), hint=hint)


def _unknown_keyword(error: BaseException) -> str:
    """The keyword that a function did not expect; "" for other errors."""
    import re

    given = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    return given[1] if given and isinstance(error, TypeError) else ""


def _remedy(function: Callable[..., Any], keyword: str) -> str:
    """The hint for an unknown keyword argument of a function; "" if nothing is near it."""
    import difflib
    import inspect

    from hpcflow.platform.other_frameworks import KEYWORDS, RENAMED

    if not keyword:
        return ""
    owner, _, name = function.__qualname__.rpartition(".")
    name = owner if name == "__init__" else name
    known = list(inspect.signature(function).parameters)
    usual = [near for near in RENAMED.get(keyword, "").split() if near in known]
    remedy = KEYWORDS.get(name, {}).get(keyword) or KEYWORDS[""].get(keyword)
    if remedy and not usual:
        return remedy
    near = usual or difflib.get_close_matches(keyword, known, n=1)
    return f"did you mean {near[0]}=?" if near else ""


def _public_name(function: Callable[..., Any], args: Any) -> str:
    """The public name of the function.

    The class of a method is that of the object, which may inherit the method.
    """
    owner, _, name = function.__qualname__.rpartition(".")
    classes = [cls.__name__ for cls in type(args[0]).__mro__] if args else []
    if owner in classes and not classes[0].startswith("_"):
        owner = classes[0]
    return f"{owner}.{name}".removeprefix(".").removesuffix(".__init__")


def value_text(value: Any) -> str:
    """Short text of an argument for a message; works for large, endless or unprintable values."""
    return _SHORT.repr(value)


def is_package_file(file: str) -> bool:
    """Whether code of this file is hpcflow's."""
    return file.startswith(_PACKAGE)


def user_line() -> str:
    """`file.py:line` of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
