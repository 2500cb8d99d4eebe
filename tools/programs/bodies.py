"""The lines of random programs: expressions, state, order, branches, loops and gradients."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from . import expressions
from .lines import Line
from .scope import Frame, Scopes, Value, after

HOLE = re.compile(r"\{(~?)([a-z])\}")
UPDATES = ["assign", "assign_add", "assign_sub"]
READS = ["{0}.read_value()", "tf.identity({0})", "{0} + 0.", "{0} * 1.", "{0}.value()", "tf.square({0})"]
SCATTERS = {
    "s": [],
    "v": ["tf.scatter_{op}({var}, [2, 0], {v}[:2])", "tf.scatter_{op}({var}, {i} % 3, {s})"],
    "w": ["tf.scatter_{op}({var}, [1], tf.expand_dims({v}, 0))", "tf.scatter_{op}({var}, [2, 0], {w}[1:])"],
}  # fmt: skip
FLOATS = expressions.FLOATS


class Bodies(Scopes):
    """Makes statements of all kinds in the innermost frame."""

    def __init__(self, rng: random.Random, special: bool) -> None:
        super().__init__(rng)
        self.special = special
        self.depth = 0
        self.static = True

    # -- statements

    def statements(self, count: int) -> None:
        """Some random statements."""
        choices: list[tuple[float, Callable[[], None]]] = [
            (6, self.expression),
            (2, self.read),
            (3, self.update),
            (1, self.scatter),
            (1, self.counter),
            (1, self.queue),
            (2.5, self.under),
            (1, self.joined),
            (0.5, self.array),
            (1.5, self.gradient),
            (0.8, self.minimize),
        ]
        if self.depth < 2:
            choices += [(2, self.branch), (1.2, self.loop), (1.2, self.fold)]
        weights = [w for w, _ in choices]
        for _ in range(count):
            self.rng.choices([f for _, f in choices], weights)[0]()

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

    def line(self, text: str, used: Sequence[tuple[Value, bool]], kind: str, **facts: object) -> Value:
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
        whole = self.rng.choice([f"{variable.name}.{how}({text})", f"tf.{how}({variable.name}, {text})"])
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
        tensors = [v for v in chosen.values() if v.base == "t" and v.kind in FLOATS and len(v.beside) == 1]
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

    # -- bodies

    def function(
        self,
        kinds: Sequence[str],
        params: Sequence[Value],
        loop: bool,
        count: int,
        begin: Callable[[], list[Value]] = list,
    ) -> tuple[str, list[Value]]:
        """A function of `params` that returns values of `kinds`; none for an operation.

        `begin` makes the first of the returned values.
        """
        name = self.name("f")
        outer, mark = self.frame, len(self.order.accesses)
        loops = (*outer.loops, name) if loop else outer.loops
        frame = self.frame = Frame([], outer, loops, list(params), frozenset(), mark)
        for param in params:
            param.loops = loops
            self.order.done[param.name] = frozenset()
        self.depth += 1
        self.statements(count)
        results = begin() + [self._result(k) for k in kinds]
        results = self._tied(results)
        self.depth -= 1
        names = [v.name for v in results]
        given = f"[{', '.join(names)}]" if len(names) > 1 else names[0]
        frame.lines.append(Line(f"return {given}", (), tuple(names), role="return"))
        head = f"def {name}({', '.join(p.name for p in params)}):"
        self.frame = outer
        del self.order.accesses[mark:]
        self.emit(Line(head, (name, *(p.name for p in params)), role="def", body=frame.lines))
        return name, results

    def _result(self, kind: str) -> Value:
        local = [v for v in self.frame.values if v.kind == kind and v.base == "t"]
        if local and self.chance(0.7):
            return self.rng.choice(local[-3:])
        return self.expression(kind)

    def _tied(self, results: list[Value]) -> list[Value]:
        """The results behind all accesses of the frame; an operation in place of no results."""
        events = list(dict.fromkeys(a.event for a in self.order.accesses[self.frame.first :]))
        loose = [e for e in events if any(e not in self.order.done[r.name] for r in results)]
        if not results:
            names = self.cover(events)
            done = Value(self.name("op"), "o", "o")
            self.emit(Line(f"{done.name} = tf.group({', '.join(names)})", (done.name,), tuple(names)), [done])
            return [done]
        if not loose:
            return results
        frame, lines = self.frame, self.frame.lines
        names = self.cover(loose)
        frame.lines, frame.base = [], self.order.known(names)
        made = [self.line(f"tf.identity({r.name})", [(r, True)], r.kind) for r in results]
        frame.lines, frame.base, block = lines, frozenset(), frame.lines
        frame.lines.append(after(names, block))
        return made

    def _outside(self, values: Sequence[Value], given: dict[str, Value]) -> list[Value]:
        """The values of a function, told by what is outside: `given` are its parameters."""
        known = {v.name for v in self.frame.visible()}
        flows = {p: v.sources for p, v in given.items()}
        for _ in values:  # a loop brings each parameter's sources to others
            for p, end in zip(list(given), values, strict=False):
                flows[p] |= frozenset().union(*(flows.get(s, {s}) for s in end.sources))
        twice = any(v.twice for v in (*values, *given.values()))
        made = []
        for v in values:
            sources = frozenset().union(*(flows.get(s, {s}) for s in v.sources)) & known
            made.append(Value(self.name(v.kind), v.kind, v.base, sources=sources, twice=twice))
        return made

    def _owner(self, text: str, made: list[Value], uses: Sequence[Value], calls: Sequence[str], role: str) -> None:
        for v in made:
            v.sources |= {v.name} if v.kind in FLOATS else set()
        names = tuple(v.name for v in made)
        used = tuple(dict.fromkeys(v.name for v in uses))
        reads = tuple({v.state for v in uses if v.base in ("var", "u")})
        if reads:  # of operands: a line of its own, so that its order is plain
            raise AssertionError(text)
        self.emit(Line(f"{', '.join(names)} = {text}", names, used, (), (), tuple(calls), role), made)

    def tensor(self, kind: str) -> Value:
        """A tensor of a kind, no variable."""
        found = self.pick(kind, lambda v: v.base == "t")
        return found if found is not None else self.expression(kind)

    def kinds(self) -> list[str]:
        """The kinds of a few values."""
        return self.rng.choices("ssvvw" + "m" * self.static, k=self.rng.randint(1, 2))

    def branch(self) -> None:
        """A cond, or a case."""
        kinds = self.kinds()
        if self.chance(0.15) and any(v.base == "var" for v in self.frame.visible()):
            kinds = []
        sides = 2 if self.chance(0.8) else 3
        made = [self.function(kinds, [], False, self.rng.randint(0, 4)) for _ in range(sides)]
        calls = [name for name, _ in made]
        preds = [self.tensor("p") for _ in range(sides - 1)]
        if sides == 2:
            text = f"tf.cond({preds[0].name}, {calls[0]}, {calls[1]})"
        else:
            pairs = ", ".join(f"({p.name}, {f})" for p, f in zip(preds, calls, strict=False))
            text = f"tf.case([{pairs}], default={calls[2]})"
        results = self._outside(made[0][1], {})
        for _, others in made[1:]:
            for result, other in zip(results, self._outside(others, {}), strict=True):
                result.sources |= other.sources
                result.twice |= other.twice
        self._owner(text, results, preds, calls, "branch")

    def loop(self) -> None:
        """A while_loop of at most three iterations, perhaps with an array of tensors."""
        inits = [self.tensor(k) for k in self.kinds()]
        array = self.chance(0.3)
        params = [Value(self.name("i"), "i")]
        params += [self._parameter(v) for v in inits]
        extra: list[Value] = [Value(self.name("ta"), "ta", "o")] if array else []
        tested = [Value(self.name("n"), "i"), *(self._parameter(v) for v in inits)]
        tested += [Value(self.name("ta"), "ta", "o") for _ in extra]
        test, _ = self.function([], tested, True, 0, lambda: [self._test(tested[0], array)])
        count = self.rng.randint(0, 4)

        def begin() -> list[Value]:
            step = self.line(f"{params[0].name} + 1", [(params[0], False)], "i")
            return [step]

        body, results = self._body([v.kind for v in inits], [*params, *extra], count, begin, extra)
        given = dict(zip((p.name for p in params), [Value("", "i"), *inits], strict=True))
        made = self._outside(results[: len(params)], given)
        starts = ", ".join(["tf.constant(0)", *(v.name for v in inits)])
        if array:
            starts += ", tf.TensorArray(tf.float32, 3)"
            made.append(Value(self.name("ta"), "ta", "o"))
        self._owner(f"tf.while_loop({test}, {body}, [{starts}])", made, inits, [test, body], "loop")
        if array:
            element = results[-1]
            kind = {"s": "v", "v": "w"}[element.state]
            stacked = Value(self.name(kind), kind, twice=True)
            line = Line(f"{stacked.name} = {made[-1].name}.stack()", (stacked.name,), (made[-1].name,))
            self.emit(line, [stacked])

    def _parameter(self, like: Value) -> Value:
        name = self.name(like.kind)
        return Value(name, like.kind, sources=frozenset({name}), twice=like.twice)

    def _test(self, counter: Value, exactly: bool) -> Value:
        if exactly:
            text, used = f"{counter.name} < 3", []
        elif self.chance(0.2):
            text, used = self.filled(f"tf.logical_and({counter.name} < 3, {{s}} < 1.5)")
        else:
            limit = self.pick("i", lambda v: v is not counter)
            assert limit is not None
            text, used = f"{counter.name} < tf.minimum({limit.name}, 3)", [(limit, False)]
        return self.line(text, [*used, (counter, False)], "p")

    def _body(self, kinds: Sequence[str], params: list[Value], count: int,
              begin: Callable[[], list[Value]], arrays: list[Value]) -> tuple[str, list[Value]]:  # fmt: skip
        if not arrays:
            return self.function(kinds, params, True, count, begin)
        array, counter = arrays[0], params[0]

        def first() -> list[Value]:
            made = begin()
            element = self.tensor(self.rng.choice("sv"))
            name = self.name("ta")
            text = f"{name} = {array.name}.write({counter.name}, {element.name})"
            written = Value(name, "ta", "o", element.kind)
            self.emit(Line(text, (name,), (array.name, counter.name, element.name)), [written])
            self._written = written
            return made

        name, results = self.function(kinds, params, True, count, first)
        block = next(x for x in reversed(self.frame.lines) if x.role == "def" and x.names[0] == name)
        end = block.body[-1]
        end.text = end.text.rstrip("]") + f", {self._written.name}]"
        return name, [*results, self._written]

    def fold(self) -> None:
        """map_fn, scan, foldl or foldr."""
        what = self.rng.choice(["map_fn", "scan", "foldl", "foldr"])
        elems, of = self.rng.choice([("v", "s"), ("w", "v")] + [("m", "v")] * (what != "scan"))
        given, element = self.tensor(elems), Value(self.name(of), of)
        element.sources = frozenset({element.name})
        count = self.rng.randint(0, 3)
        if what == "map_fn":
            inits: list[Value] = []
            name, results = self.function([of], [element], True, count)
            text = f"tf.map_fn({name}, {given.name}, parallel_iterations=1)"
        else:
            inits = [self.tensor(of)]
            total = self._parameter(inits[0])
            name, results = self.function([of], [total, element], True, count)
            text = f"tf.{what}({name}, {given.name}, {inits[0].name}, parallel_iterations=1)"
        params = [total.name] if inits else []
        known = dict(zip([*params, element.name], [*inits, given], strict=True))
        made = self._outside(results, known)
        made[0].kind = of if what.startswith("fold") else elems
        made[0].name = self.name(made[0].kind)
        self._owner(text, made, [given, *inits], [name], "loop")

    def array(self) -> None:
        """A TensorArray outside of loops."""
        forms = [
            ("v", "tf.TensorArray(tf.float32, 3).unstack({v}).stack()"),
            ("v", "tf.TensorArray(tf.float32, 3).write(0, {s}).write(2, {s}).write(1, {s}).stack()"),
            ("v", "tf.TensorArray(tf.float32, 3).unstack({w}).read({i} % 3)"),
            ("w", "tf.TensorArray(tf.float32, 3).unstack({w}).gather([2, 0, 1])"),
        ]
        kind, template = self.rng.choice(forms)
        self.line(*self.filled(template), kind)

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
        text = f"{name} = tf.train.{optimizer}.minimize({loss.name}, var_list=[{', '.join(chosen)}])"
        line = Line(text, (name,), (loss.name,), writes=tuple(chosen), role="gradient")
        self.emit(line, [Value(name, "o", "o")])
