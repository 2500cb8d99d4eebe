"""Deprecated arguments of TensorFlow 1: older spellings, and arguments that have no effect here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def accepts_aliases(**names: str) -> Callable[[F], F]:
    """Decorator: the function also takes arguments by other names: `other="its own"`.

    None is not passed on if the parameter has a default. Errors: TypeError for an argument that is
    given by both names.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        needed = {n for n, p in signature.parameters.items() if p.default is p.empty}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for alias in names.keys() & kwargs.keys():
                value = kwargs.pop(alias)
                if value is not None or names[alias] in needed:
                    _set_argument(function, kwargs, names[alias], value, alias)
            return function(*args, **kwargs)

        return _with_signature(call, signature, list(names))

    return decorate


def accepts_and_ignores(*names: str) -> Callable[[F], F]:
    """Decorator: the function accepts these arguments and ignores them."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in names:
                kwargs.pop(name, None)
            return function(*args, **kwargs)

        return _with_signature(call, signature, list(names))

    return decorate


def with_public_names(**names: str) -> Callable[[F], F]:
    """Decorator: the function's arguments have other names: `its own="public name"`."""

    def decorate(function: F) -> F:
        originals = {new: old for old, new in names.items()}
        signature = inspect.signature(function)
        new_parameters = [
            p.replace(name=names.get(p.name, p.name)) for p in signature.parameters.values()
        ]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{originals.get(name, name): v for name, v in kwargs.items()})

        return _with_signature(call, signature.replace(parameters=new_parameters), [])

    return decorate


def _set_argument(function: Any, kwargs: dict[str, Any], name: str, value: Any, other: str) -> None:
    if kwargs.get(name) is not None:
        raise TypeError(f"{function.__name__}() got {name!r} and {other!r}, which are the same")
    kwargs[name] = value


def _with_signature(call: Any, signature: inspect.Signature, keyword_names: list[str]) -> Any:
    """`call` with a signature that reports `signature` and the keyword arguments
    `keyword_names`.
    """
    old: Mapping[str, inspect.Parameter] = signature.parameters
    var_keyword = [p for p in old.values() if p.kind is p.VAR_KEYWORD]
    added = [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in keyword_names
    ]
    other_parameters = [p for p in old.values() if p not in var_keyword]
    call.__signature__ = signature.replace(parameters=[*other_parameters, *added, *var_keyword])
    return call
