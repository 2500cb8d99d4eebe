"""Call every public function, class and method with hostile arguments.

    python tools/fuzz_api.py --seed 1 --count 500 --json found.json

A call succeeds, or raises an error of `hpcflow.errors`. Some others are Python's own and as they
should be: the TypeError of a call that does not fit the signature, what a function of the caller's
raises, an OSError, a NotImplementedError. What a call builds is also run, if it is small. Each
difference is printed as a program, with the line of hpcflow that raised.

Exit codes: 0 clean, 1 differences, 2 it could not run. Calls are made in a process of their own in
an empty folder, with limited memory; one that does not end is a difference, too.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import hpcflow as hf  # noqa: E402
from hpcflow.errors import ArgumentError, HpcflowError  # noqa: E402
from tools.about import about  # noqa: E402
from tools.fuzz_values import HOSTILE, OBJECTS, PRELUDE, plausible  # noqa: E402

PACKAGE = str(ROOT / "hpcflow") + os.sep
LEFT_OUT = {  # they do what the tool cannot have done to it
    "hf.app.run": "ends the process",
    "hf.train.Server": "opens ports and waits for other ranks",
    "hf.train.Supervisor": "waits for other ranks",
    "hf.train.WorkerSessionCreator": "waits for other ranks",
    "join": "waits for threads",
    "wait_for_stop": "waits for threads",
}
OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and"),
    *("or", "xor", "lt", "le", "gt", "ge", "getitem", "rpow", "rtruediv", "rmatmul", "rand"),
)
SPECIAL = {"__call__", *(f"__{name}__" for name in OPERATORS)}
PYTHONS_OWN = (OSError, StopIteration, NotImplementedError, Warning)
MEMORY = 64 << 20  # what is built is not run if it may need more
ADDRESSES = 1 << 30  # that a process of calls may use beyond what it has at its start
SECONDS = 20  # for one call


class Target(NamedTuple):
    """Something to call: its expression, and its parameters by name, True if one has a default."""

    text: str
    parameters: tuple[tuple[str, bool], ...]


class Call(NamedTuple):
    """A call: what is called, positional arguments, arguments by name; all as texts."""

    target: str
    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The call as an expression."""
        return f"{self.target}({', '.join([*self.args, *(f'{k}={v}' for k, v in self.kwargs)])})"

    @property
    def program(self) -> str:
        """The call as a program."""
        lines = ["import numpy as np", "import hpcflow as hf", "import hpcflow.onnx"]
        lines += [code for name, code in PRELUDE.items() if name in self.text]
        lines += ["with hf.Graph().as_default():", f"    made = {self.text}"]
        return "\n".join(lines) + "\n"


class Outcome(NamedTuple):
    """How a call ended: accepted, refused, wrong, or unable (the tool's own mistake).

    Also caught: it would be wrong, but the guard of public functions has made it an error of ours.
    """

    verdict: str
    error: str = ""
    line: str = ""


# -- what there is to call


def modules(name: str, home: Any) -> dict[str, Any]:
    """A module and those among its public names, without tests and what removes files."""
    found = {name: home}
    for public in home.__all__:
        value = getattr(home, public)
        if public in ("test", "gfile"):
            continue
        if hasattr(value, "__all__") and value not in found.values():
            found |= modules(f"{name}.{public}", value)
    return found


def targets() -> list[Target]:
    """All public functions, classes and methods."""
    found: dict[int, Target] = {}
    for name, home in modules("hf", hf).items():
        for public in home.__all__:
            value = getattr(home, public)
            if callable(value) and f"{name}.{public}" not in LEFT_OUT:
                found.setdefault(id(value), Target(f"{name}.{public}", parameters_of(value)))
    methods: dict[Any, Target] = {}
    with hf.Graph().as_default(), no_session_left():
        for text in OBJECTS:
            for name, method in methods_of(eval(text, {"hf": hf, "np": np})):
                methods.setdefault((text, name), Target(f"{text}.{name}", parameters_of(method)))
    return [t for t in (*found.values(), *methods.values()) if t.parameters]


def methods_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods of an object that hpcflow has defined, and its operators."""
    for name in dir(type(thing)):
        if (name.startswith("_") and name not in SPECIAL) or name in LEFT_OUT:
            continue
        method = getattr(type(thing), name)
        home = getattr(method, "__module__", None) or ""
        if callable(method) and home.startswith("hpcflow"):
            yield name, getattr(thing, name)


def parameters_of(function: Any) -> tuple[tuple[str, bool], ...]:
    """The names of the parameters of a function, and whether they have defaults."""
    try:
        listed = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (("x", False),)
    found = [(p.name, p.default is not p.empty) for p in listed if p.kind not in (2, 4)]
    return (*found, *[("inputs", False) for p in listed if p.kind == 2])


# -- drawing calls


def made_up() -> Any:
    """Texts of nested structures, of text, of arrays and scalars of every dtype."""
    from hypothesis import strategies as st

    number = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    leaf = st.none() | st.booleans() | number | st.text(max_size=8) | st.binary(max_size=4)
    nested = st.recursive(
        leaf,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=2), x, max_size=2),
        max_leaves=6,
    )
    dtypes = st.sampled_from(
        ("bool", "i1", "u8", "i8", "f2", "f4", "f8", "c8", "S2", "U2", "M8[s]")
    )
    shapes = st.lists(st.integers(0, 3), max_size=4)
    arrays = st.builds("np.zeros({}, {!r})".format, shapes, dtypes)
    tensors = st.builds("hf.zeros({}, {!r})".format, shapes, st.sampled_from(("f4", "i4", "bool")))
    return nested.map(repr) | arrays | tensors


def drawn(seed: int, count: int, known: list[Target]) -> list[Call]:
    """`count` calls, by hypothesis."""
    import hypothesis
    from hypothesis import strategies as st

    calls: list[Call] = []
    made = made_up()

    @st.composite
    def call(draw: Callable[..., Any]) -> Call:
        # Hypothesis itself would make the same few calls again and again, to find what is simplest.
        random = draw(st.randoms(use_true_random=True))
        target = random.choice(known)
        hostile = random.choice((0.1, 0.3, 0.6, 1.0))  # of the arguments
        given = []
        for name, optional in target.parameters:
            if optional and random.random() < 0.6:
                continue
            if random.random() > hostile:
                value = random.choice(plausible(name))
            else:
                value = random.choice(HOSTILE) if random.random() < 0.8 else draw(made)
            given.append((name, value, optional))
        args = [value for name, value, optional in given if not optional]
        kwargs = [(name, value) for name, value, optional in given if optional]
        return Call(target.text, tuple(args), tuple(kwargs))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(call())
    def draw_all(one: Call) -> None:
        calls.append(one)

    draw_all()
    return calls[:count]


# -- one call


def attempt(call: Call) -> Outcome:
    """Make a call, in a new graph, and run what it gives."""
    space: dict[str, Any] = {"np": np, "hf": hf}
    try:
        for name, code in PRELUDE.items():
            if name in call.text:
                exec(code, space)
    except Exception as error:
        return Outcome("unable", repr(error))
    with hf.Graph().as_default() as graph, no_session_left():
        try:
            target, *args = (value_of(text, space) for text in (call.target, *call.args))
            kwargs = {name: value_of(text, space) for name, text in call.kwargs}
        except HpcflowError as error:
            return Outcome("unable", f"{call.text}: {error}")
        try:
            made = target(*args, **kwargs)
            if isinstance(made, contextlib.AbstractContextManager):
                with made as inside:
                    made = (inside, hf.constant(1.0))
            run(graph, made)
        except ArgumentError as error:
            if error.__cause__ is None:
                return Outcome("refused")
            return judged(error.__cause__)._replace(verdict="caught")
        except HpcflowError:
            return Outcome("refused")
        except Exception as error:
            if isinstance(error, TypeError) and not binds(target, args, kwargs):
                return Outcome("refused")
            return judged(error)
    return Outcome("accepted")


@contextlib.contextmanager
def no_session_left() -> Iterator[None]:
    """Close the default sessions that the block leaves: an InteractiveSession is one till then."""
    before = hf.get_default_session()
    try:
        yield
    finally:
        while (session := hf.get_default_session()) not in (None, before):
            session.close()


def value_of(text: str, space: dict[str, Any]) -> Any:
    """The value of an expression; functions in it belong to `<call>`."""
    return eval(compile(text, "<call>", "eval"), space)


def binds(target: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """True if a call fits the signature."""
    try:
        inspect.signature(target).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def judged(error: BaseException) -> Outcome:
    """Whether an error that is not hpcflow's own is all right: the innermost frame tells whose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(PACKAGE)]
    mine = [f for f in frames if f.filename == "<call>"]
    if isinstance(error, PYTHONS_OWN) or not ours:
        return Outcome("refused")
    if mine and frames.index(mine[-1]) > frames.index(ours[-1]):
        return Outcome("refused")  # raised by a function that was an argument
    place = f"{os.path.relpath(ours[-1].filename, ROOT)}:{ours[-1].lineno}"
    return Outcome("wrong", f"{type(error).__name__}: {error}"[:300], f"{place}: {ours[-1].line}")


def run(graph: hf.Graph, made: Any) -> None:
    """Run the tensors and operations in `made`, if the graph is small."""
    found = [t for t in leaves(made, 0) if isinstance(t, (hf.Tensor, hf.Operation))]
    found = [t for t in found if t.graph is graph]
    if not found or not small(graph):
        return
    feeds = {
        t: fed(t)
        for op in graph.get_operations()
        for t in op.outputs
        if op.type == "Placeholder" and op.graph is graph
    }
    start = graph.get_collection(hf.GraphKeys.GLOBAL_VARIABLES)
    with contextlib.closing(hf.Session(graph=graph)) as session:
        if start:
            session.run(hf.variables_initializer([v for v in start if isinstance(v, hf.Variable)]))
        session.run(found, feeds, deadline=SECONDS / 4)


def leaves(made: Any, depth: int) -> Iterator[Any]:
    """The parts of a result."""
    if isinstance(made, (list, tuple)) and depth < 5:
        for part in made:
            yield from leaves(part, depth + 1)
    elif isinstance(made, dict) and depth < 5:
        yield from leaves(list(made.values()), depth + 1)
    else:
        yield made


def small(graph: hf.Graph) -> bool:
    """True if all values of the graph are small."""
    sizes = [t.spec.nbytes for op in graph.get_operations() for t in op.outputs]
    constants = [abs(int(v)) for op in graph.get_operations() for v in integers(op)]
    return sum(sizes) <= MEMORY and max(constants, default=0) <= 1 << 20


def integers(op: hf.Operation) -> Iterator[Any]:
    """The integers among the values that an operation's outputs are known to have: sizes, maybe."""
    for t in op.outputs:
        if t.constant is not None and t.constant.dtype.kind in "iu":
            yield from t.constant.reshape(-1)[:100]


def fed(t: hf.Tensor) -> Any:
    """A value for a placeholder."""
    shape = [2] if t.shape is None else [2 if d is None else d for d in t.shape]
    return np.full(shape, b"a" if t.dtype == hf.string else 1, t.dtype)


# -- the process that makes the calls


def work() -> None:
    """Read calls, a line of JSON each, and answer each with a line."""
    import resource
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what hpcflow prints is not looked at
    os.dup2(null, 2)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES, now + ADDRESSES))
    for line in sys.stdin:
        target, args, kwargs = json.loads(line)
        outcome = attempt(Call(target, tuple(args), tuple((k, v) for k, v in kwargs)))
        print(json.dumps(outcome), file=answers)


class Worker:
    """A process that makes calls, and another one when it has ended."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, call: Call) -> Outcome:
        """How a call ends, there."""
        if self.process is None:
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(SECONDS + 10)  # its import, too
        answer = process.stdout.readline() if ready else ""
        if answer:
            return Outcome(*json.loads(answer))
        self.close()
        ended = f"the process ended ({process.returncode})"
        return Outcome("wrong", ended if ready else f"not done in {SECONDS} s")

    def _start(self) -> None:
        command = [sys.executable, __file__, "--work"]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def shortest(call: Call, outcome: Outcome, worker: Callable[[Call], Outcome]) -> Call:
    """The call without the optional arguments that its outcome does not need."""
    for pair in call.kwargs:
        fewer = call._replace(kwargs=tuple(p for p in call.kwargs if p != pair))
        if worker(fewer)[::2] == outcome[::2]:
            call = fewer
    return call


def fuzz(seed: int, count: int, only: str = "", strict: bool = False) -> dict[str, Any]:
    """Make `count` calls of what has `only`, a regular expression, in it; what came of them."""
    reported = ("wrong", "unable", "caught") if strict else ("wrong", "unable")
    calls = drawn(seed, count, [t for t in targets() if re.search(only, t.text)])
    found: dict[tuple[str, str], dict[str, str]] = {}
    counts = dict.fromkeys(("accepted", "refused", "caught", "wrong", "unable"), 0)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Worker(folder)) as worker:
        for call in calls:
            outcome = worker(call)
            counts[outcome.verdict] += 1
            key = (outcome.error.partition(":")[0], outcome.line or call.target)
            if outcome.verdict in reported and key not in found:
                brief = shortest(call, outcome, worker) if outcome.line else call
                found[key] = {
                    "verdict": outcome.verdict,
                    "program": brief.program,
                    "error": outcome.error,
                    "line": outcome.line,
                }
    return {
        **about(),
        "seed": seed,
        "count": len(calls),
        **counts,
        "differences": list(found.values()),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--only", default="", help="a regular expression: what to call")
    parser.add_argument("--strict", action="store_true", help="what is only caught counts, too")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    try:
        found = fuzz(options.seed, options.count, options.only, options.strict)
    except ImportError as error:
        print(f"fuzz_api cannot run: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for each in found["differences"]:
        print(f"{each['program']}# {each['error']}\n# {each['line']}\n")
    print(", ".join(f"{name} {value}" for name, value in found.items() if name != "differences"))
    if found["unable"]:
        return 2
    return 1 if found["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
