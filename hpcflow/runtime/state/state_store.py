"""The state store: versioned variables and other state that persists between steps."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcflow.errors import HpcflowError, ShapeError, UninitializedError
from hpcflow.graph.static_shape import shape_text
from hpcflow.lowering import update_tiling
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.ir.program import Node
from hpcflow.platform.exception_translation import value_text
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.dynamic_types import DeviceArray, Json, State
from hpcflow.runtime.job import service_registry
from hpcflow.runtime.session.session_seed import SessionSeed
from hpcflow.runtime.state.variable_declarations import describe_state, raise_mismatch

if TYPE_CHECKING:
    from hpcflow.ops.random.random_kernels import DrawCount


class VariableState:
    """One variable, or one shard of a variable that is sharded over servers.

    A reader that outlives its segment pins the version it has read. An update writes in place if no
    version is pinned, else into a second buffer that becomes current. So no reader sees a partial
    update, and nothing is copied while reads and updates alternate.
    """

    __slots__ = (
        "array",
        "copied",
        "device",
        "driver",
        "dtype",
        "full_shape",
        "let_go",
        "line",
        "name",
        "old",
        "pins",
        "rows",
        "shape",
        "spare",
        "updates",
        "variable",
    )

    def __init__(self, node: Node, device: Device) -> None:
        self.name, self.line, self.device = node.name, node.line, device
        self.dtype, self.shape = np.dtype(node.attrs["dtype"]), tuple(node.attrs["shape"])
        self.copied: tuple[int, int] | None = node.attrs.get("copy")  # index, number of copies
        self.full_shape: tuple[int, ...] = tuple(node.attrs.get("whole", self.shape))
        self.rows: tuple[int, int] = node.attrs.get("piece") or (0, (*self.full_shape, 1)[0])
        is_part = "copy" in node.attrs or "whole" in node.attrs
        self.variable = node.name.rpartition("/part_")[0] if is_part else node.name
        self.array: DeviceArray = None  # the current version; None until initialized
        self.driver = -1  # the rank whose graph had it first, if known
        self.pins = 0  # pins of the current version
        self.old: dict[int, list[DeviceArray]] = {}  # id of an older version -> [array, its pins]
        self.spare: DeviceArray = None  # an unused buffer
        # versions whose pins ended outside steps, at any moment, and have not been unpinned yet
        self.let_go: collections.deque[DeviceArray] = collections.deque()
        self.updates = 0  # updates applied, initialization not counted

    def read(self) -> DeviceArray:
        """The current version, valid until the segment ends.

        Errors: UninitializedError.
        """
        if self.array is None:
            raise UninitializedError(
                f"variable {self.name!r} has no value yet",
                op=self.name,
                line=self.line,
                hint="run hf.global_variables_initializer() first",
            )
        return self.array

    def pin(self) -> DeviceArray:
        """The current version, unchanged until `unpin`.

        Errors: UninitializedError.
        """
        array = self.read()
        self.pins += 1
        return array

    def reserve(self) -> DeviceArray:
        """Allocate and return the second buffer; None if any version is pinned."""
        if self._pinned() or self.old:
            return None
        self.spare = self._spare_buffer()
        return self.spare

    def unpin(self, array: DeviceArray) -> None:
        """End one pin of version `array`; an old version without pins becomes the spare buffer."""
        if array is self.array:
            self.pins -= 1
            return
        entry = self.old[id(array)]
        entry[1] -= 1
        if not entry[1]:
            version = self.old.pop(id(array))[0]
            self.spare = None if self.array is None else version  # None: the variable is closed

    def write(self) -> DeviceArray:
        """The array that an update changes in place: the current one, or a copy if it is pinned."""
        current = self.read()
        self.updates += 1
        if not self.pins or not self._pinned():
            return current
        fresh = self._second()
        fresh[...] = current
        return fresh

    def count(self, updates: int) -> None:
        """Count updates that a replay of captured code has made."""
        self.updates += updates

    def stays(self, array: DeviceArray) -> bool:
        """Whether `array` is the current version and an update would change it in place."""
        return self.array is array and array is not None and not (self.pins and self._pinned())

    def assign(self, value: DeviceArray, initial: bool = False) -> None:
        """Make `value` the current version."""
        if not initial:
            self.updates += 1
        target = self._second() if self.array is None or self._pinned() else self.array
        target[...] = value

    def adopt(self, value: DeviceArray) -> None:
        """Set the initial value to `value`, an array with no other users; it is not copied."""
        if self.array is None:
            nbytes = math.prod(self.shape) * self.dtype.itemsize
            self.device.held_memory.keep("variables", value, nbytes)
            self.array = value
        else:
            self.assign(value, initial=True)

    def begin(self, overwrites_all: bool) -> tuple[DeviceArray, DeviceArray]:
        """Begin a tiled update; returns the array to fill, and the array to copy into it first.

        The latter is None if all elements are overwritten (`overwrites_all`) or no reader
        pins the current version. Until `end`, no other code may use the variable, and a second
        buffer is not visible.
        """
        current = self.array if overwrites_all else self.read()
        if current is not None and not self._pinned():
            return current, None
        return self._spare_buffer(), None if overwrites_all else current

    def end(self, filled: DeviceArray, updates: int) -> None:
        """A tiled update is over: the filled array becomes the current version."""
        self.updates += updates
        if filled is not self.array:
            self._install(filled)

    def renew(self) -> Iterator[None]:
        """Make the current version an unpinned one, by a tiled copy."""
        target, source = self.begin(overwrites_all=False)
        if source is None:
            return
        flat_target, flat_source = target.reshape(-1), source.reshape(-1)
        for start in range(0, flat_target.size, update_tiling.TILE):
            tile = slice(start, start + update_tiling.TILE)
            flat_target[tile] = flat_source[tile]
            yield
        self.end(target, 0)

    def refill(self) -> DeviceArray:
        """The array, to be overwritten entirely with an initial value while no step runs."""
        return self._second() if self.array is None or self._pinned() else self.array

    def fit(self, value: DeviceArray) -> None:
        """Errors: ShapeError if an update does not have exactly one operand for each element."""
        if value.shape != self.shape:
            raise ShapeError(
                f"variable {self.name!r} is {list(self.shape)}; the update is {list(value.shape)}"
            )

    def close(self) -> None:
        """Release its memory; pinned versions live until their readers end."""
        self._pinned()
        if self.pins:
            self.old[id(self.array)] = [self.array, self.pins]
        self.array, self.spare, self.pins = None, None, 0

    def _pinned(self) -> int:
        """The number of pins of the current version, after pins that ended outside steps."""
        while self.let_go:
            self.unpin(self.let_go.popleft())
        return self.pins

    def _second(self) -> DeviceArray:
        """A buffer that becomes the current version; pinned versions stay valid."""
        fresh = self._spare_buffer()
        self._install(fresh)
        return fresh

    def _spare_buffer(self) -> DeviceArray:
        fresh, self.spare = self.spare, None
        if fresh is None:
            purpose = "variables" if self.array is None else "versions of variables"
            fresh = self.device.hold(purpose, self.shape, self.dtype)
        return fresh

    def _install(self, fresh: DeviceArray) -> None:
        if self.pins:
            self.old[id(self.array)] = [self.array, self.pins]
            self.pins = 0
        else:  # its last reader ended during the update
            self.spare = self.array
        self.array = fresh


Make = Callable[[Node], State]
_KINDS: dict[str, Make] = {}
_NAMED_AS: dict[str, str] = {}  # op type -> its namespace, by default its own


def state_type(type: str, named_as: str = "") -> Callable[[Make], Make]:
    """Decorator: `make(node)` builds the state of a handle op `type` that is no variable.

    Types with the same `named_as` share one namespace.
    """

    def add(make: Make) -> Make:
        _KINDS[type], _NAMED_AS[type] = make, named_as or type
        return make

    return add


def _difference(first: Node, node: Node) -> str:
    """The difference between two nodes that share a name; "" if there is none."""
    if first.type != node.type:
        return f"it is a {first.type}"
    names = sorted({*first.attrs, *node.attrs})
    attr_values = [(name, first.attrs.get(name), node.attrs.get(name)) for name in names]
    return ", ".join(
        f"{name} {value_text(a)}, not {value_text(b)}"
        for name, a, b in attr_values
        if canonical(a) != canonical(b)
    )


class StateStore:
    """The state of this rank between steps: variables by name, other state by type and name.

    Each session has a store on its driver, with the session's `number`, and one on each other rank
    of its replica. Servers have one store for all sessions. Other state belongs to a node, or to
    all nodes with the same attribute `shared_name`.
    """

    def __init__(self, seed: SessionSeed | None = None, number: int = 0) -> None:
        self.number = number
        self.seed = seed or SessionSeed()  # seed of random ops without a seed
        self.states: dict[str, VariableState] = {}
        # (state, node that created it)
        self.other_states: dict[tuple[str, str], tuple[State, Node]] = {}
        self.driver = -1  # the rank whose plan is being compiled
        self.draws: dict[tuple[str, str], DrawCount] = {}  # (fetches, random op) -> draws made

    def compile_for(self, driver: int, seed: SessionSeed | None) -> None:
        """Create state for a plan of `driver` from now on, by its session's seed if given."""
        self.driver = driver
        self.seed = self.seed if seed is None else seed

    def find(self, node: Node, device: Device) -> State:
        """The state of the handle node `node`, created on first use.

        Errors: HpcflowError if state of that name exists with another type or other attributes.
        """
        if node.type not in _KINDS:
            service_registry.load_state_type(node.type)
        if node.type not in _KINDS:
            return self.get(node, device)
        name = node.attrs.get("shared_name") or node.name
        key = _NAMED_AS[node.type], name
        if key not in self.other_states:
            drawn = {"key": self.seed.key(node.attrs)} if node.attrs.get("unseeded") else {}
            created = _KINDS[node.type](node.but(attrs={**node.attrs, **drawn}))
            self.other_states[key] = created, node
        state, first = self.other_states[key]
        if differing := _difference(first, node):
            raise HpcflowError(
                f"{node.type} {name!r} was made with other attributes at {first.line}: {differing}",
                op=node.name,
                line=node.line,
                hint="objects that share a name must have equal attributes; rename one",
            )
        return state

    def known(self, type: str, name: str) -> DeviceArray:
        """Existing state of a type; None if there is none of this name."""
        return self.other_states.get((_NAMED_AS.get(type, type), name), (None, None))[0]

    def get(self, node: Node, device: Device) -> VariableState:
        """The state of a Variable node, created on first use.

        Errors: ShapeError if a variable of that name has another shape or dtype in another graph,
        GraphMismatchError if that graph is another rank's.
        """
        state = self.states.get(node.name)
        if state is None:
            state = self.states[node.name] = VariableState(node, device)
            state.driver = self.driver
        if state.shape != tuple(node.attrs["shape"]) or state.dtype != np.dtype(
            node.attrs["dtype"]
        ):
            if self.driver != state.driver:
                here = f"variable {state.dtype}{shape_text(state.full_shape)}"
                raise_mismatch(
                    node.name,
                    (state.driver, here, state.line),
                    (self.driver, describe_state(node), node.line),
                )
            raise ShapeError(
                f"variable {node.name!r} is {state.dtype}{list(state.shape)} here already",
                op=node.name,
                line=node.line,
                hint="give the variables of different graphs different names",
            )
        return state

    def close(self) -> None:
        """Release all memory; the update counts stay."""
        for variable in self.states.values():
            variable.close()
        self.other_states.clear()
        self.draws.clear()

    def reports(self) -> Json:
        """The reports of other state, by name."""
        named_states = ((key[1], state) for key, (state, _) in self.other_states.items())
        return {name: state.report() for name, state in named_states if hasattr(state, "report")}

    def updates(self) -> dict[str, int]:
        """The number of updates applied to each variable."""
        return {name: state.updates for name, state in self.states.items()}
