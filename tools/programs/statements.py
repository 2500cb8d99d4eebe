"""The lines of random programs: expressions, state, order and gradients."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from . import expressions
from .lines import Line
from .scope import Scopes, Value, after

HOLE = re.compile(r"\{(~?)([a-z])\}")
UPDATES = ["assign", "assign_add", "assign_sub"]
READS = [
    "{0}.read_value()",
    "tf.identity({0})",
    "{0} + 0.",
    "{0} * 1.",
    "{0}.value()",
    "tf.square({0})",
]
SCATTERS = {
    "s": [],
    "v": ["tf.scatter_{op}({var}, [2, 0], {v}[:2])", "tf.scatter_{op}({var}, {i} % 3, {s})"],
    "w": [
        "tf.scatter_{op}({var}, [1], tf.expand_dims({v}, 0))",
        "tf.scatter_{op}({var}, [2, 0], {w}[1:])",
    ],
}  # fmt: skip
FLOATS = expressions.FLOATS


class Statements(Scopes):
    """Makes statements without bodies in the innermost frame."""

    def __init__(self, rng: random.Random, special: bool) -> None:
        super().__init__(rng)
        self.special = special
        self.depth = 0
        self.static = True

    def statements(self, count: int) -> None:
        """Some random statements."""
        raise NotImplementedError

    def pick(self, kind: str, only: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value of a kind, rather a late one."""
        found = [v for v in self.frame.visible() if v.kind == kind and not v.stale and only(v)]
        weights = [1 + 4 * i / len(found) for i in range(len(found))]
        return self.rng.choices(found, weights)[0] if found else None

    def filled(self, template: str, kind: str = "") -> tuple[str, list[tuple[Value, bool]]]:
        """An expression with its holes filled, the values, and whether gradients flow there."""
        used: list[tuple[Value, bool]] = []

        def fill(match: re.Match[str]) -> str:
            wanted = kind if match[2] in "xy" else match[2]
            value = self.pick(wanted)
            assert value is not None, wanted
            used.append((value, not match[1]))
            return value.name

        return HOLE.sub(fill, template), used

    def line(
        self, text: str, used: Sequence[tuple[Value, bool]], kind: str, **facts: object
    ) -> Value:
        """Add `name = text`, which uses values."""
        name = self.name(kind if facts.get("role") != "update" else f"u_{kind}_")
        value = Value(name, kind)
        if kind in FLOATS:
            flows = [v for v, flow in used if flow]
            value.sources = frozenset({name}).union(*(v.sources for v in flows))
            value.twice = any(v.twice for v in flows)
        reads = {v.state for v, _ in used if v.base in ("var", "u")}
        uses = dict.fromkeys(v.name for v, _ in used)
        made = Line(f"{name} = {text}", (name,), tuple(uses), tuple(reads), **facts)  # type: ignore[arg-type]
        self.emit(made, [value])
        return value

    def expression(self, kind: str = "") -> Value:
        """A value computed of others."""
        kind = kind or self.rng.choice("sssvvvmmwwip")
        table = [*expressions.OF_KIND[kind], *(expressions.SAME if kind in FLOATS else [])]
        if self.special:
            table += 2 * expressions.SPECIAL.get(kind, [])
        text, used = self.filled(self.rng.choice(table), kind)
        return self.line(text, used, kind)

    # -- state

    def read(self) -> None:
        """An explicit or implicit read of a variable."""
        value = self.pick(self.rng.choice("svmwi"), lambda v: v.base == "var")
        if value is not None:
            how = "{0}.read_value()" if value.kind == "i" else self.rng.choice(READS)
            self.line(how.format(value.name), [(value, True)], value.kind)

    def update(self) -> None:
        """assign, assign_add, assign_sub."""
        variable = self.pick(self.rng.choice("svmw"), lambda v: v.base == "var")
        if variable is None:
            return
        form = self.rng.choice(["{x}", "{x}", "tf.tanh({x})", "({x} - {y}) * .5"])
        text, used = self.filled(form, variable.kind)
        how = self.rng.choice(UPDATES)
        whole = self.rng.choice(
            [f"{variable.name}.{how}({text})", f"tf.{how}({variable.name}, {text})"]
        )
        self._updated(variable, whole, used)

    def _updated(self, variable: Value, text: str, used: Sequence[tuple[Value, bool]]) -> None:
        made = self.line(text, used, variable.kind, role="update", writes=(variable.name,))
        made.base, made.state, made.twice = "u", variable.name, False
        made.sources = frozenset()

    def scatter(self) -> None:
        """An update of rows."""
        variable = self.pick(self.rng.choice("vw"), lambda v: v.base == "var")
        if variable is not None:
            template = self.rng.choice(SCATTERS[variable.kind]).replace("{var}", variable.name)
            template = template.replace("{op}", self.rng.choice(["add", "sub", "update"]))
            self._updated(variable, *self.filled(template))

    def counter(self) -> None:
        """count_up_to, or an update of a counter."""
        variable = self.pick("i", lambda v: v.base == "var")
        if variable is None:
            return
        if self.chance(0.4):
            self._updated(variable, f"tf.assign_add({variable.name}, 1)", [])
        else:
            forms = [f"tf.count_up_to({variable.name}, 1000)", f"{variable.name}.count_up_to(1000)"]
            self.line(self.rng.choice(forms), [], "i", writes=(variable.name,))

    def queue(self) -> None:
        """enqueue, then perhaps dequeue; or size."""
        queue = self.pick("q")
        if queue is None:
            return
        text, used = self.filled(f"{queue.name}.enqueue({{s}})")
        added = self.line(text, used, "o", writes=(queue.name,))
        added.base = "o"
        if self.chance(0.6):
            self.line(f"{queue.name}.dequeue()", [], "s", writes=(queue.name,))
        elif self.chance(0.3):
            self.line(f"{queue.name}.size()", [], "i", writes=(queue.name,))

    # -- order

    def under(self) -> None:
        """Statements under control dependencies."""
        waited = self.frame.waited()
        names = self.whole(v.name for v in self.rng.choices(waited, k=self.rng.randint(1, 2)))
        frame = self.frame
        lines, base = frame.lines, frame.base
        frame.lines, frame.base = [], base | self.order.known(names)
        self.statements(self.rng.randint(1, 3))
        made, frame.lines, frame.base = frame.lines, lines, base
        if made:
            frame.lines.append(after(names, made))

    def joined(self) -> None:
        """A group, or a tuple of tensors."""
        waited = [v for v in self.frame.waited() if v.base != "t" or v in self.frame.values]
        if not waited:
            return
        chosen = {v.name: v for v in self.rng.choices(waited, k=self.rng.randint(1, 3))}
        tensors = [
            v for v in chosen.values() if v.base == "t" and v.kind in FLOATS and len(v.beside) == 1
        ]
        if len(tensors) == len(chosen) > 1:
            names = [self.name(v.kind) for v in tensors]
            values = [
                Value(n, v.kind, sources=v.sources | {n}, twice=v.twice)
                for n, v in zip(names, tensors, strict=True)
            ]
            text = f"{', '.join(names)} = tf.tuple([{', '.join(chosen)}])"
        else:
            names = [self.name("op")]
            values = [Value(names[0], "o", "o")]
            text = f"{names[0]} = tf.group({', '.join(self.whole(chosen))})"
        self.emit(Line(text, tuple(names), tuple(self.whole(chosen))), values)

    def array(self) -> None:
        """A TensorArray outside of loops."""
        forms = [
            ("v", "tf.TensorArray(tf.float32, 3).unstack({v}).stack()"),
            (
                "v",
                "tf.TensorArray(tf.float32, 3).write(0, {s}).write(2, {s}).write(1, {s}).stack()",
            ),
            ("v", "tf.TensorArray(tf.float32, 3).unstack({w}).read({i} % 3)"),
            ("w", "tf.TensorArray(tf.float32, 3).unstack({w}).gather([2, 0, 1])"),
        ]
        kind, template = self.rng.choice(forms)
        self.line(*self.filled(template), kind)

    def tensor(self, kind: str) -> Value:
        """A tensor of a kind, no variable."""
        found = self.pick(kind, lambda v: v.base == "t")
        return found if found is not None else self.expression(kind)

    # -- gradients

    def gradient(self) -> None:
        """The gradient of a value by what it is computed of."""
        near = self.frame.values if self.chance(0.9) else self.frame.visible()
        ys = [v for v in near if v.kind in FLOATS and v.base == "t" and not v.twice]
        ys = [v for v in ys if v.sources - {v.name}]
        if not ys:
            return
        y = self.rng.choice(ys[-4:])
        xs = [v for v in self.frame.visible() if v.name in y.sources - {y.name}]
        if not xs:
            return
        x = self.rng.choice(xs)
        name = self.name(x.kind)
        text = f"{name} = tf.convert_to_tensor(tf.gradients({y.name}, {x.name})[0])"
        line = Line(text, (name,), (y.name, x.name), role="gradient")
        self.emit(line, [Value(name, x.kind, twice=True)])

    def minimize(self) -> None:
        """A step of an optimizer."""
        if self.frame.loops:
            return
        variables = {v.name for v in self.frame.visible() if v.base == "var"}
        losses = [v for v in self.frame.values if v.kind == "s" and v.base == "t" and not v.twice]
        losses = [v for v in losses if v.sources & variables]
        if not losses:
            return
        loss = self.rng.choice(losses[-3:])
        chosen = sorted(loss.sources & variables)
        if len(chosen) > 1 and self.chance(0.5):
            chosen = chosen[:1]
        optimizer, name = self.rng.choice(expressions.OPTIMIZERS), self.name("op")
        text = (
            f"{name} = tf.train.{optimizer}.minimize({loss.name}, var_list=[{', '.join(chosen)}])"
        )
        line = Line(text, (name,), (loss.name,), writes=tuple(chosen), role="gradient")
        self.emit(line, [Value(name, "o", "o")])
