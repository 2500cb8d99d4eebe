"""Random arguments: arrays that are fed, axes in every accepted form, and calls written as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
REALS = ("float32", "float32", "float32", "float64", "float16")
WIDE = ("float32", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTS = ("int32", "int32", "int64", "int8", "int16", "uint8")
INDICES = ("int32", "int64")
SIGNED = (*("float32",) * 4, "float64", "float64", "float16", "int32", "int32", "int64", "int8")
NUMBERS = (*SIGNED, "int16", "uint8", "uint16", "complex64", "complex64", "complex128")
ANY = (*NUMBERS, "bool", "bool", "uint32", "uint64")


@dataclass
class Input:
    """An array that a call takes.

    It is fed, as an array or as a list, a constant tensor, a variable, or given to the call as an
    array or as a literal of Python.
    """

    name: str
    value: np.ndarray[Any, Any]
    way: str = "fed"  # listed, constant, variable, given, literal
    static: list[int | None] | None = None  # what a placeholder knows; None: not even its rank

    @property
    def fed(self) -> bool:
        """Whether a session is given the value."""
        return self.way in ("fed", "listed")

    @property
    def floats(self) -> bool:
        """Whether gradients by it are asked for."""
        return self.value.dtype.kind in "fc" and self.way not in ("given", "literal")

    @property
    def plain(self) -> Any:
        """The value as it is fed."""
        return self.value.tolist() if self.way == "listed" else self.value


class Text(str):
    """A part of a call that stands as it is."""


@dataclass
class Case:
    """An expression over inputs, which both libraries compute as `tf`."""

    function: str
    text: str
    inputs: list[Input] = field(default_factory=list)
    random: bool = False  # values are not compared
    in_turn: bool = False  # the outputs are run one by one, the last one first
    number: int = 0

    def program(self) -> str:
        """A script that shows what it does in hpcflow; in TensorFlow by another import."""
        lines = ["import numpy as np", "import hpcflow as tf  # or tensorflow.compat.v1"]
        for one in self.inputs:
            lines.append(f"{one.name.upper()} = {array_text(one.value)}")
            lines.append(f"{one.name} = {input_text(one)}")
        if "after(" in self.text or "with_constant_weights(" in self.text:
            lines.append(PRELUDE)
        values = [(i, ".tolist()" if i.way == "listed" else "") for i in self.inputs if i.fed]
        fed = ", ".join(f"{i.name}: {i.name.upper()}{form}" for i, form in values)
        lines += [f"y = {self.text}", "session = tf.Session()"]
        if any(i.way == "variable" for i in self.inputs):
            lines.append("session.run(tf.global_variables_initializer())")
        if self.in_turn:
            lines.append("session.run(tf.local_variables_initializer())")
            return "\n".join([*lines, f"print([session.run(o, {{{fed}}}) for o in y[::-1]])"])
        return "\n".join([*lines, f"print(y, session.run(y, {{{fed}}}))"])


PRELUDE = """def after(operation, make):
    with tf.control_dependencies([] if operation is None else [operation]):
        return make()


def with_constant_weights(make):
    tf.get_variable_scope().set_initializer(tf.constant_initializer(0.3))
    return make()


"""


def array_text(value: np.ndarray[Any, Any]) -> str:
    """An array as Python writes it."""
    body = repr(value.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    return f"np.array({body}, '{value.dtype.name}').reshape({value.shape})"


def input_text(one: Input) -> str:
    """How an input is made, in a library called tf; its array has the name in capitals."""
    dtype = "tf.string" if one.value.dtype == object else f"tf.{one.value.dtype.name}"
    placeholder = f"tf.placeholder({dtype}, {one.static})"
    made = {
        "fed": placeholder,
        "listed": placeholder,
        "constant": f"tf.constant({one.name.upper()}, {dtype})",
        "variable": f"tf.Variable({one.name.upper()})",
        "given": one.name.upper(),
        "literal": f"{one.name.upper()}.tolist()",
    }
    return made[one.way]


class Draw:
    """Draws arguments and writes the call; `wrong` says how often they make no sense."""

    def __init__(self, *seed: int, wrong: float = 0.06) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: list[Input] = []
        self.wrong = wrong
        self.finite = False  # no NaN and no infinities

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return bool(self.rng.random() < p)

    def one(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return choices[int(self.rng.integers(len(choices)))]

    def whole(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def size(self, low: int = 1, high: int = 4) -> int:
        """The size of a dimension: at times 0."""
        return 0 if self.chance(0.06) else self.whole(low, high)

    def shape(self, low: int = 0, high: int = 4) -> Shape:
        """A shape of a rank from low to high."""
        return tuple(self.size() for _ in range(self.whole(low, high)))

    def beside(self, shape: Shape) -> Shape:
        """A shape that is broadcast with another one; at times one that cannot be."""
        kept = shape[self.whole(0, len(shape)) :] if self.chance(0.4) else shape
        sizes = [1 if self.chance(0.2) else n for n in kept]
        if sizes and self.chance(self.wrong):
            sizes[self.whole(0, len(sizes) - 1)] += 1
        return tuple(sizes)

    def numbers(self, shape: Shape, dtype: str, low: float = -3, high: float = 3) -> Any:
        """Numbers of a dtype; at times zeros, NaN and infinities, where they are in the range."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype == "string":
            words = [b"", b"a", b"ab", b"1.5", b"abc abd", b"-7", b"x,y"]
            return np.array([self.one(words) for _ in range(_count(shape))], object).reshape(shape)
        if np.dtype(dtype).kind in "iu":
            least = max(low, 0) if np.dtype(dtype).kind == "u" else low
            return self.rng.integers(int(least), int(high) + 1, shape).astype(dtype)
        value = self.rng.uniform(low, high, shape)
        if np.dtype(dtype).kind == "c":
            return (value + 1j * self.rng.uniform(low, high, shape)).astype(dtype)
        value = np.where(self.rng.random(shape) < 0.1, np.round(value), value)
        if low < 0 and not self.finite and self.chance(0.12):
            odd = self.rng.choice([0.0, np.nan, np.inf, -np.inf, 1e4, 1e-6], shape)
            value = np.where(self.rng.random(shape) < 0.3, odd, value)
        return value.astype(dtype)

    def array(
        self,
        shape: Shape,
        dtype: str | Sequence[str],
        low: float = -3,
        high: float = 3,
        way: str = "",
    ) -> Text:
        """An input of random numbers."""
        chosen = dtype if isinstance(dtype, str) else self.one(dtype)
        return self.given(self.numbers(tuple(shape), chosen, low, high), way)

    def given(self, value: Any, way: str = "") -> Text:
        """An input of these numbers, in one of the ways of `Input`; its name."""
        value = np.asarray(value)
        name = "abcdefghijklmn"[len(self.inputs)]
        way = way or self.one([*["fed"] * 8, *["constant"] * 3, "listed", "given", "literal"])
        if not value.size and value.ndim > 1:  # a list would not tell all sizes
            way = {"listed": "fed", "literal": "given"}.get(way, way)
        self.inputs.append(Input(name, value, way, self.static(value.shape)))
        return Text(name)

    def static(self, shape: Shape) -> list[int | None] | None:
        """What is known of a shape when the graph is built."""
        known = self.rng.random()
        if known < 0.15:
            return None
        return [None if known < 0.4 and self.chance(0.5) else n for n in shape]

    def axis(self, rank: int) -> int:
        """An axis, from the front or the back; at times one that is not there."""
        if self.chance(self.wrong):
            return self.one([rank, -rank - 1])
        return self.whole(-rank, rank - 1) if rank else 0

    def number(self, number: int, tensor: bool = True) -> Any:
        """A whole number as an argument: Python's, NumPy's, or a constant tensor."""
        if self.chance(0.7):
            return number
        forms = ["np.int64({})", "np.int32({})", "np.array({})"]
        tensors = ["tf.constant({})", "tf.constant({}, tf.int64)"] if tensor else []
        return Text(self.one(forms + tensors).format(number))

    def axes(self, rank: int) -> Any:
        """One, several or all axes, in every form."""
        form = self.rng.random()
        if form < 0.2 or not rank:
            return self.one([None, [], ()]) if self.chance(0.4) else None
        if form < 0.6:
            return self.number(self.axis(rank))
        chosen = self.rng.permutation(rank)[: self.whole(1, rank)]
        listed = [int(a) - (rank if self.chance(0.4) else 0) for a in chosen]
        if self.chance(self.wrong):
            listed.append(listed[0])
        way = self.one(["list", "tuple", "constant", "numpy"])
        if way == "numpy":
            return Text(f"np.array({listed}, 'int64')")
        if way == "constant":
            return Text(f"tf.constant({listed}, tf.{self.one(INDICES)})")
        return listed if way == "list" else tuple(listed)

    def dtype(self, choices: Sequence[str]) -> Text:
        """A dtype as an argument."""
        return Text(f"tf.{self.one(choices)}")

    def sizes(self, shape: Sequence[int]) -> Any:
        """A shape as an argument: a list, a tuple, a constant, or fed."""
        way = self.one(["list", "list", "tuple", "constant", "fed"])
        if way == "fed":
            return self.given(np.array(shape, self.one(INDICES)), "fed")
        if way == "constant":
            return Text(f"tf.constant({list(shape)}, tf.{self.one(INDICES)})")
        return list(shape) if way == "list" else tuple(shape)

    def some(self, **options: Any) -> dict[str, Any]:
        """Some of these keywords; a choice is a list."""
        return {k: self.one(v) for k, v in options.items() if self.chance(0.5)}

    def call(self, function: str, *args: Any, **keywords: Any) -> Case:
        """The call as a case; one of its inputs is a tensor."""
        if self.inputs and all(i.way in ("given", "literal") for i in self.inputs):
            self.inputs[0].way = "constant"
        return Case(function, written(function, *args, **keywords), self.inputs)


def written(function: str, *args: Any, **keywords: Any) -> Text:
    """A call as text."""
    parts = [argument(a) for a in args] + [f"{k}={argument(v)}" for k, v in keywords.items()]
    return Text(f"tf.{function}({', '.join(parts)})")


def argument(value: Any) -> str:
    """An argument as text."""
    if isinstance(value, Text):
        return value
    if isinstance(value, list):
        return "[" + ", ".join(map(argument, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(argument(v) + ", " for v in value) + ")"
    return repr(value)


def _count(shape: Shape) -> int:
    return int(np.prod(shape, dtype=int))
