"""Lazy imports: names of a module that are imported at first use, so a rank opens fewer files."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.platform.exception_translation import translate_exceptions

TOPIC = "`hpcflow help tf1`"
ELSEWHERE = {  # names of TensorFlow 2, Keras and PyTorch, and what is here instead
    "Module": "write a function of tensors, or a subclass of hf.Model",
    "GradientTape": "hf.gradients(loss, variables) adds the gradients to the graph",
    "config": "settings are options: `hpcflow run --set NAME=VALUE` (`hpcflow help settings`)",
    "device_count": "hf.Session().list_devices() lists the devices",
    "distribute": "the launcher chooses: `hpcflow run -n 4 [--ps 1] SCRIPT`",
    "estimator": "hf.Model has fit, evaluate and predict",
    "from_numpy": "hf.constant(array) makes a tensor; feeds take arrays as they are",
    "function": "the graph is compiled as a whole: session.make_callable(fetches, feeds)",
    "keras": "hf.Model, hf.Sequential, hf.Input, hf.layers, hf.callbacks, hf.losses, hf.metrics, "
    "hf.initializers; optimizers are in hf.train (hf.keras.layers.Dense is hf.layers.Dense)",
    "no_grad": "only hf.gradients makes gradients; hf.stop_gradient(x) stops them",
    "optim": "optimizers are in hf.train, such as hf.train.AdamOptimizer(0.001)",
    "optimizers": "optimizers are in hf.train, such as hf.train.AdamOptimizer(0.001)",
    "reduce_std": "hf.sqrt of the second result of hf.nn.moments(x, axes)",
    "reduce_variance": "the second result of hf.nn.moments(x, axes)",
    "tensor": "hf.constant(values) makes a tensor",
    "utils": "datasets are hf.data.Dataset; model.save_weights or hf.train.Saver save models",
    "DataLoader": "hf.data.Dataset({placeholder: rows}, batch=64) shuffles and shards",
    "data.DataLoader": "hf.data.Dataset({placeholder: rows}, batch=64) shuffles and shards",
    "nn.CrossEntropyLoss": "hf.losses.sparse_softmax_cross_entropy(labels, logits)",
    "nn.Conv2d": "hf.layers.conv2d, or hf.layers.Conv2D as an object",
    "nn.Linear": "hf.layers.dense, or hf.layers.Dense as an object",
    "nn.MSELoss": "hf.losses.mean_squared_error(labels, predictions)",
    "nn.Module": "write a function of tensors, or a subclass of hf.Model",
    "nn.Sequential": "hf.Sequential([layer, ...])",
    "train.SGD": "hf.train.GradientDescentOptimizer(0.1), or hf.train.MomentumOptimizer",
}
HOMES: dict[str, dict[str, tuple[str, str]]] = {}  # module -> name -> (home module, name there)


class LazyStaticMethod:
    """A static method that is a function of another module, imported at first use."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


class LazyMethod:
    """A method that is a function of another module, which takes the object, imported at first use.

    So a class can have a method of a package that its own does not import, as `_repr_html_`.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        function = getattr(importlib.import_module(self.module), self.name)
        return function if instance is None else types.MethodType(function, instance)


def lazy_names(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__, __dir__, __all__` of `module`, which re-exports names of other modules lazily.

    `homes` maps a home module to its names: "a b", or "a=b" for what is called `b` there. Under ""
    are modules of hpcflow, "b" or "b=a.b". `tools/stubs.py` writes the stubs for type checkers.
    """
    mine = HOMES[module] = {}
    for home, names in homes.items():
        for name in names.split():
            name, _, its = name.partition("=")
            mine[name] = (home, its or name) if home else (f"hpcflow.{its or name}", "")

    def get(name: str) -> Any:
        if name not in mine:
            raise AttributeError(_missing(module, name, mine))
        home, its = mine[name]
        loaded = importlib.import_module(home)
        value = translate_exceptions(_with_name(getattr(loaded, its), its)) if its else loaded
        setattr(sys.modules[module], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[module]), *mine})

    return get, listed, sorted(mine)


def _missing(module: str, name: str, names: Mapping[str, Any]) -> str:
    """The message for an unknown name: its place here, or the nearest name."""
    import difflib  # only here: the standard library's modules are files that each rank opens

    text = f"module {module!r} has no attribute {name!r}"
    place = ELSEWHERE.get(f"{module}.{name}".removeprefix("hpcflow."))
    if place is not None:
        return f"{text}: {place}"
    optimizer = f"{name}Optimizer"
    near = [optimizer] if optimizer in names else difflib.get_close_matches(name, names, 1, 0.75)
    return f"{text}; did you mean {near[0]!r}? ({TOPIC})" if near else f"{text} ({TOPIC})"


def _with_name(value: Any, name: str) -> Any:
    """`value`; if it is a function that another function made, messages call it `name`."""
    function = value
    while isinstance(function, types.FunctionType):
        if "<locals>" in function.__qualname__:
            function.__name__ = function.__qualname__ = name
        function = getattr(function, "__wrapped__", None)
    return value


def namespace(module: str, homes: Mapping[str, str]) -> None:
    """Create the module `module`, which has no file and re-exports lazily, as `later` does.

    `import module` finds it; it is an attribute of its package.
    """
    package, _, name = module.rpartition(".")
    made = types.ModuleType(module, f"Names of TensorFlow 1's tf.{name} that hpcflow has.")
    made.__spec__ = importlib.machinery.ModuleSpec(module, None)
    made.__package__ = package
    get, listed, public = lazy_names(module, homes)
    vars(made).update(__getattr__=get, __dir__=listed, __all__=public)
    sys.modules[module] = made
    setattr(sys.modules[package], name, made)
