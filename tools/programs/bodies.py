"""The branches and loops of random programs, with functions in which all statements may stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .lines import Line
from .scope import Frame, Value, after
from .statements import FLOATS, Statements


class Bodies(Statements):
    """Makes statements of all kinds in the innermost frame."""

    def statements(self, count: int) -> None:
        """Some random statements."""
        choices: list[tuple[float, Callable[[], object]]] = [
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
            self.emit(
                Line(f"{done.name} = tf.group({', '.join(names)})", (done.name,), tuple(names)),
                [done],
            )
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

    def _owner(
        self, text: str, made: list[Value], uses: Sequence[Value], calls: Sequence[str], role: str
    ) -> None:
        for v in made:
            v.sources |= {v.name} if v.kind in FLOATS else set()
        names = tuple(v.name for v in made)
        used = tuple(dict.fromkeys(v.name for v in uses))
        reads = tuple({v.state for v in uses if v.base in ("var", "u")})
        if reads:  # of operands: a line of its own, so that its order is plain
            raise AssertionError(text)
        self.emit(
            Line(f"{', '.join(names)} = {text}", names, used, (), (), tuple(calls), role), made
        )

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
            line = Line(
                f"{stacked.name} = {made[-1].name}.stack()", (stacked.name,), (made[-1].name,)
            )
            self.emit(line, [stacked])

    def _parameter(self, like: Value) -> Value:
        name = self.name(like.kind)
        return Value(name, like.kind, sources=frozenset({name}), twice=like.twice)

    def _test(self, counter: Value, exactly: bool) -> Value:
        """Whether a loop goes on: three times `exactly`, or at most."""
        used: list[tuple[Value, bool]] = []
        if exactly:
            text = f"{counter.name} < 3"
        elif self.chance(0.2):
            text, used = self.filled(f"tf.logical_and({counter.name} < 3, {{s}} < 1.5)")
        else:
            limit = self.pick("i", lambda v: v is not counter)
            assert limit is not None
            text, used = f"{counter.name} < tf.minimum({limit.name}, 3)", [(limit, False)]
        return self.line(text, [*used, (counter, False)], "p")

    def _body(
        self,
        kinds: Sequence[str],
        params: list[Value],
        count: int,
        begin: Callable[[], list[Value]],
        arrays: list[Value],
    ) -> tuple[str, list[Value]]:
        """The body of a loop, which writes to an array if there is one."""
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
        block = next(
            x for x in reversed(self.frame.lines) if x.role == "def" and x.names[0] == name
        )
        end = block.body[-1]
        end.text = end.text.rstrip("]") + f", {self._written.name}]"
        end.uses = (*end.uses, self._written.name)
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
