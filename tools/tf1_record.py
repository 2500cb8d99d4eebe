"""What a package has under TensorFlow 1's names, as a dict that tools/tf1_api.json keeps.

An entry is the text of a function's parameters; for a class `["parameters", "its methods"]`; for
another name of the same object "= name"; for any other object null.
"""

from __future__ import annotations

import dis
import inspect
import os
import types
from collections.abc import Callable, Iterable
from typing import Any

Entry = str | list[str] | None
Api = dict[str, dict[str, Entry]]  # module -> name -> entry
OURS = ("tensorflow", "tf_keras", "hpcflow", "absl")


def tensorflow() -> Any:
    """The module tensorflow.compat.v1 as TensorFlow 1 behaved, with resource variables."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # tf.layers are those of Keras 2
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # whose kernels fail without elements
    import tensorflow.compat.v1 as tf1

    tf1.logging.set_verbosity(tf1.logging.FATAL)
    tf1.disable_v2_behavior()
    tf1.enable_resource_variables()
    return tf1


def recorded(root: Any, modules: list[str]) -> Api:
    """The public names of these modules; an object has its entry where it is found first."""
    api: Api = {}
    first: dict[int, str] = {}
    for where in modules:
        module = attribute(root, where)
        api[where] = {}
        for name in sorted(n for n in dir(module) if not n.startswith("_")):
            thing = getattr(module, name)
            if isinstance(thing, types.ModuleType) or type(thing).__module__ == "__future__":
                continue
            path = f"{where}.{name}".strip(".")
            known = first.setdefault(id(thing), path) if callable(thing) else path
            api[where][name] = entry(thing) if known == path else f"= {known}"
    return api


def attribute(root: Any, path: str) -> Any:
    """What stands at a path of names below an object, or None."""
    for part in path.split(".") if path else []:
        root = getattr(root, part, None)
    return root


def entry(thing: Any) -> Entry:
    """How a thing is called: see the top of this file."""
    if not inspect.isclass(thing):
        return parameters(thing) if inspect.isroutine(thing) else None
    if hasattr(thing, "DESCRIPTOR") or not thing.__module__.startswith(OURS):
        return None  # a message of protocol buffers, or a class of C++
    return [parameters(thing), " ".join(sorted(members(thing)))]


def members(of: type) -> set[str]:
    """Its public methods and attributes, without those of a layer of Keras."""
    found: set[str] = set()
    for base in (b for b in of.__mro__ if b.__module__.startswith(OURS)):
        if "keras.src.engine" in base.__module__ or base.__module__ == "tensorflow.python.module":
            continue
        made = inspect.unwrap(base.__dict__.get("__init__", members))
        code = dis.get_instructions(made) if inspect.isfunction(made) else ()
        stored = {i.argval for i in code if i.opname == "STORE_ATTR"}
        slots: Iterable[str] = base.__dict__.get("__slots__", ())
        found |= {*base.__dict__, *stored, *slots, *inspect.get_annotations(base)}
    return {n for n in found if not n.startswith("_") and not n[0].isupper()}


def parameters(thing: Callable[..., Any]) -> str:
    """The parameters of a callable, without annotations; a default that is an object is `...`."""
    try:
        found = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):
        return "..."
    told = [p for p in found if p.name not in ("self", "cls")]
    parts = [_parameter(p) for p in told]
    kinds = [p.kind for p in told]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return ", ".join(parts)


def _parameter(one: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(one.kind.name, "")
    if one.default is one.empty:
        return stars + one.name
    simple = one.default is None or isinstance(one.default, bool | int | float | str)
    return f"{one.name}={one.default!r}" if simple else f"{one.name}=..."
