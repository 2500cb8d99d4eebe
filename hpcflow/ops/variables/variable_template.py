"""Variable templates: functions that create variables at the first call and then share them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hpcflow.errors import VariableNameError
from hpcflow.graph.graph import get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.variables.variable_scope import VariableScope, variable_scope


class Template:
    """The result of `make_template`, called like the function."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool = False,
        unique_name: str | None = None,
        custom_getter: Callable[..., Any] | None = None,
    ) -> None:
        self.func = func
        self._name, self._unique_name, self._custom_getter = name, unique_name, custom_getter
        self._scope: VariableScope | None = None
        self._is_built = False  # its variables exist
        if create_scope_now:
            with variable_scope(unique_name, name, custom_getter=custom_getter) as self._scope:
                pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in the template's variable scope.

        Errors: VariableNameError if a later call creates a trainable variable.
        """
        if self._scope is not None:
            with variable_scope(self._scope, reuse=self._is_built):
                return self._call(args, kwargs)
        with variable_scope(
            self._unique_name, self._name, custom_getter=self._custom_getter
        ) as self._scope:
            return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        trained = get_default_graph().get_collection_ref(GraphKeys.TRAINABLE_VARIABLES)
        before = len(trained)
        result = self.func(*args, **kwargs)
        if self._is_built and len(trained) > before:
            raise VariableNameError(
                f"template {self._name!r} made the trainable variable {trained[before].name!r} "
                "in a later call",
                op=trained[before].name,
                line=trained[before].op.line,
                hint="make it with hf.get_variable, which shares it",
            )
        self._is_built = True
        return result

    @property
    def name(self) -> str:
        """The given name."""
        return self._name

    @property
    def variable_scope(self) -> VariableScope | None:
        """The scope of its variables; None before the first call."""
        return self._scope

    @property
    def variables(self) -> list[Any]:
        """Its variables, including local ones."""
        return self.global_variables + self.local_variables

    @property
    def global_variables(self) -> list[Any]:
        """Its variables shared by replicas."""
        return self._scope.global_variables() if self._scope else []

    @property
    def local_variables(self) -> list[Any]:
        """Its variables local to each replica."""
        return self._scope.local_variables() if self._scope else []

    @property
    def trainable_variables(self) -> list[Any]:
        """Its variables that optimizers update."""
        return self._scope.trainable_variables() if self._scope else []


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Template:
    """`func_` (with `kwargs`) as a function whose calls share the variables of `get_variable`.

    Its scope is `name_`, with a number if in use, or exactly `unique_name_`; it is created at the
    first call, or now.
    """
    func = functools.partial(func_, **kwargs) if kwargs else func_
    return Template(name_, func, create_scope_now_, unique_name_, custom_getter_)
