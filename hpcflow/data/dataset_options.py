"""`hf.data.Options`: TensorFlow's option names, without effect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hpcflow.errors import ArgumentError
from hpcflow.platform.exception_translation import user_line

_GROUPS = ("distribute", "optimization", "threading")
_PLAIN = ("autotune", "deterministic", "external_state_policy", "slack", "stats")


class Options:
    """The attributes of TensorFlow 1's `tf.data.Options`; none of them changes a result."""

    def __init__(self) -> None:
        for name in _GROUPS:
            self.__dict__[f"experimental_{name}"] = SimpleNamespace()
        self.__dict__.update({f"experimental_{name}": None for name in _PLAIN})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise ArgumentError(
                f"hf.data.Options has no {name!r}",
                line=user_line(),
                hint=f"it has {', '.join(sorted(self.__dict__))}",
            )
        self.__dict__[name] = value
