"""No pass raises on a valid graph, nor changes what it computes: one that cannot rewrite leaves it.

Random programs have what passes may forget: sizes that only the step knows, no elements at all,
values that only an update takes, nodes that stand in an order, and one or two tasks. NumPy computes
each value beside hpcflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.kernels import onednn_matmul
from hpcflow.lowering.fusion.bias_relu_epilogue import fuse_epilogues
from hpcflow.lowering.fusion.elementwise_fusion import fuse_elementwise
from hpcflow.lowering.fusion.max_pool_relu_gradient import fuse_pool_gradients
from hpcflow.lowering.fusion.sparse_optimizer_fusion import fuse_sparse_optimizers
from hpcflow.lowering.fusion.sparse_update_operands import fuse_sparse_operands
from hpcflow.lowering.fusion.split_hoisting import hoist_splits
from hpcflow.lowering.fusion.strided_matmul_fusion import fuse_strided_products
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.lowering.weight_packing import pack_weights
from hpcflow.plan.ir.program import Cluster, Partition
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import kernel_infos, lower_for_devices
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

from .model import SINGLE, graph, plan_of

TWO_TASKS = Cluster(2, tasks_per_replica=2)
TASKS = [f"/job:worker/task:{k}" for k in (0, 1)]
MOST = 4000  # elements of a value


class RandomProgram:
    """Values with NumPy's beside them, updates, and what the variables hold after one step."""

    def __init__(self, seed: int, tasks: int = 1, count: int = 14) -> None:
        self.rng = np.random.default_rng(seed)
        self.tasks = TASKS[:tasks]
        self.feeds: dict[Any, np.ndarray] = {}
        self.values: list[tuple[Any, np.ndarray]] = []
        self.variables: list[tuple[Any, np.ndarray]] = []
        self.updates: list[Any] = []
        makers = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("make_")]
        for _ in range(3):
            self.feed()
        while len(self.values) + len(self.variables) < count + 3:
            after = self.updates[-1:] if self.rng.random() < 0.2 else []
            with hf.control_dependencies(after), self.somewhere():
                made = self.pick(makers)()
                if made is not None and made[1].size <= MOST:
                    self.values.append(made)
            if self.rng.random() < 0.15:
                self.hide()
        with self.somewhere():
            self.update()
        self.fetched = [self.values[i] for i in self.rng.integers(0, len(self.values), 4)]
        self.gradients = self.slopes()

    # -- what is at hand

    def pick(self, of: Any) -> Any:
        return of[self.rng.integers(0, len(of))]

    def any(self, rank: int | None = None) -> tuple[Any, np.ndarray]:
        """A value, of that rank if it is given."""
        fits = [v for v in self.values if rank is None or v[1].ndim == rank]
        return self.pick(fits) if fits else self.feed(rank)

    def somewhere(self) -> Any:
        return hf.device(self.pick(["", *self.tasks]) if len(self.tasks) > 1 else "")

    def feed(self, rank: int | None = None) -> tuple[Any, np.ndarray]:
        rank = int(self.rng.integers(0, 5)) if rank is None else rank
        shape = tuple(
            int(n) for n in self.rng.choice([0, 1, 2, 3, 3], rank, p=[0.05, *[0.2375] * 4])
        )
        value = self.rng.normal(size=shape).astype("f4")
        x = hf.placeholder(hf.float32, [n if self.rng.random() < 0.7 else None for n in shape])
        self.feeds[x] = value
        self.values.append((x, value))
        return x, value

    def hide(self) -> None:
        """A value of which the shape is known in part, or only when the step runs."""
        x, a = self.any()
        told = hf.placeholder(hf.int32, [None] if self.rng.random() < 0.3 else [a.ndim])
        self.feeds[told] = np.array(a.shape, "i4")
        y = hf.reshape(x, told)
        if self.rng.random() < 0.6:
            y.set_shape([n if self.rng.random() < 0.5 else None for n in a.shape])
        self.values.append((y, a))

    # -- operations

    def make_unary(self) -> tuple[Any, np.ndarray]:
        x, a = self.any()
        f, of = self.pick([(hf.tanh, np.tanh), (hf.negative, np.negative), (hf.nn.relu, relu),
                           (hf.identity, np.asarray), (hf.stop_gradient, np.asarray)])  # fmt: skip
        return f(x), of(a)

    def make_binary(self) -> tuple[Any, np.ndarray] | None:
        (x, a), (y, b) = self.any(), self.any()
        f, of = self.pick([(hf.add, np.add), (hf.multiply, np.multiply), (hf.maximum, np.maximum)])
        try:
            value = of(a, b)
        except ValueError:
            return None
        return hf.tanh(f(x, y)), np.tanh(value)

    make_binary_too = make_binary

    def make_matmul(self) -> tuple[Any, np.ndarray]:
        x, a = self.any(int(self.rng.integers(2, 5)))
        turn_a, turn_b = (bool(t) for t in self.rng.integers(0, 2, 2))
        left = a.swapaxes(-1, -2) if turn_a else a
        columns = int(self.rng.integers(1, 4))
        fits = [v for v in self.values if v[1].shape[:-2] == a.shape[:-2] and v[1].ndim == a.ndim
                and v[1].shape[-1 if turn_b else -2] == left.shape[-1]]  # fmt: skip
        if fits and self.rng.random() < 0.7:
            y, b = self.pick(fits)
        else:
            inner = (columns, left.shape[-1]) if turn_b else (left.shape[-1], columns)
            b = self.rng.normal(size=(*a.shape[:-2], *inner)).astype("f4")
            y = hf.placeholder(hf.float32, b.shape)
            self.feeds[y] = b
            self.values.append((y, b))
        return hf.matmul(x, y, turn_a, turn_b), left @ (b.swapaxes(-1, -2) if turn_b else b)

    make_matmul_too = make_matmul

    def make_einsum(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any(3)
        y, b = self.any(3)
        told, fits = self.pick([("bij,bjk->bik", a.shape[2] == b.shape[1]),
                                ("bij,bkj->bik", a.shape[2] == b.shape[2]),
                                ("bij,bij->bi", a.shape == b.shape)])  # fmt: skip
        return (
            (hf.einsum(told, x, y), np.einsum(told, a, b))
            if fits and a.shape[0] == b.shape[0]
            else None
        )

    def make_joined(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any()
        pack = self.rng.random() < 0.3
        axis = int(self.rng.integers(0, a.ndim + pack)) if a.ndim + pack else None
        if axis is None:
            return None
        fits = [
            v
            for v in self.values
            if v[1].ndim == a.ndim
            and all(
                n == m or (i == axis and not pack)
                for i, (n, m) in enumerate(zip(v[1].shape, a.shape, strict=True))
            )
        ]
        parts = [(x, a), *(self.pick(fits) for _ in range(self.rng.integers(0, 3)))]
        told = axis - a.ndim - pack if self.rng.random() < 0.3 else axis
        tensors, arrays = [t for t, _ in parts], [v for _, v in parts]
        return (hf.stack(tensors, told), np.stack(arrays, axis)) if pack else (
            hf.concat(tensors, told), np.concatenate(arrays, axis))  # fmt: skip

    make_joined_too = make_joined

    def make_split(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any()
        fits = [i for i, n in enumerate(a.shape) if n > 1 and n == (x.shape or a.shape)[i]]
        if not fits or x.shape is None:
            return None
        axis = self.pick(fits)
        if self.rng.random() < 0.5:
            tensors, arrays = hf.split(x, a.shape[axis], axis), np.split(a, a.shape[axis], axis)
        else:
            tensors, arrays = hf.unstack(x, axis=axis), list(np.moveaxis(a, axis, 0))
        parts = list(zip(tensors, arrays, strict=True))
        self.values += parts[1:]
        return parts[0]

    def make_transposed(self) -> tuple[Any, np.ndarray]:
        x, a = self.any()
        perm = [int(i) for i in self.rng.permutation(a.ndim)]
        return hf.transpose(x, perm), a.transpose(perm)

    def make_reshaped(self) -> tuple[Any, np.ndarray]:
        x, a = self.any()
        shape = self.pick([[a.size], [1, *a.shape], [*a.shape, 1], list(a.shape[::-1])])
        return hf.reshape(x, shape), a.reshape(shape)

    def make_sliced(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any()
        if not a.ndim:
            return None
        start, stop = sorted(int(i) for i in self.rng.integers(0, a.shape[0] + 1, 2))
        return x[start:stop], a[start:stop]

    def make_reduced(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any()
        f, of = self.pick([(hf.reduce_sum, np.sum), (hf.reduce_mean, np.mean)])
        axis = None if not a.ndim or self.rng.random() < 0.3 else int(self.rng.integers(0, a.ndim))
        if of is np.mean and not a.size:
            return None
        keep = bool(self.rng.integers(0, 2))
        return f(x, axis, keepdims=keep), np.asarray(of(a, axis=axis, keepdims=keep), "f4")

    def make_softmax(self) -> tuple[Any, np.ndarray] | None:
        x, a = self.any()
        if not a.ndim or not a.size:
            return None
        e = np.exp(a - a.max(-1, keepdims=True))
        return hf.nn.softmax(x), e / e.sum(-1, keepdims=True)

    def make_dense(self) -> tuple[Any, np.ndarray]:
        x, a = self.any(2)
        w, b = self.variable((a.shape[1], 4)), self.variable((4,))
        made = hf.nn.relu(hf.nn.bias_add(hf.matmul(x, w[0]), b[0]))
        return made, relu(a @ w[1] + b[1])

    def make_loop(self) -> tuple[Any, np.ndarray]:
        """Three steps with one weight, in a loop or unrolled."""
        x, a = self.any(2)
        n = a.shape[1]
        w, value = self.variable((2 * n, n))

        def step(h: Any) -> Any:
            return hf.tanh(hf.matmul(hf.concat([x, h], 1), w))

        y, b = x, a
        if self.rng.random() < 0.5:
            y = hf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, step(h)), [0, x])[1]
        else:
            for _ in range(3):
                y = step(y)
        for _ in range(3):
            b = np.tanh(np.concatenate([a, b], 1) @ value)
        return y, b

    # -- state

    def variable(self, shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
        """One that no step changes."""
        value = self.rng.normal(size=shape).astype("f4")
        return hf.Variable(value, name=f"w{len(self.feeds)}_{len(self.values)}"), value

    def update(self) -> None:
        """A variable that a value is added to or subtracted from, which nobody else may take."""
        x, a = self.any()
        if x.shape is None or None in x.shape:
            x = hf.reshape(x, a.shape)
        value = self.rng.normal(size=a.shape).astype("f4")
        v = hf.Variable(value, name=f"v{len(self.variables)}", trainable=False)
        add = bool(self.rng.integers(0, 2))
        made = v.assign_add(x) if add else v.assign_sub(x)
        self.variables.append((v, value + a if add else value - a))
        self.updates.append(made)

    make_update = update

    def slopes(self) -> list[Any]:
        """The gradients of what is fetched."""
        total = hf.add_n([hf.reduce_sum(y) for y, _ in self.fetched])
        xs = [x for x in self.feeds if x.dtype == np.float32]
        return [g for g in hf.gradients(total, xs) if g is not None]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def every_pass(part: Partition) -> None:
    """Each pass of a part by itself, as if all kernels it asks for were there."""
    devices = RankContext(Settings()).devices
    for change in (
        lambda p: fuse_sparse_optimizers(p, False),
        fuse_sparse_operands,
        lambda p: pack_weights(p, lambda node, specs: True),
        lambda p: fuse_epilogues(p, split_segments(p), lambda node, specs: True),
        lambda p: fuse_pool_gradients(p, split_segments(p), lambda node, specs: True),
        lambda p: fuse_strided_products(p, lambda node, specs: True),
        lambda p: hoist_splits(p, False),
        lambda p: fuse_elementwise(p, split_segments(p), kernel_infos(devices), False),
    ):
        made = change(part)
        assert made.nodes.keys() >= {ref.node for ref in made.fetches}
    lower_for_devices(part, devices)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("tasks", [1, 2])
def test_any_program_is_planned(seed: int, tasks: int) -> None:
    with graph() as g:
        made = RandomProgram(seed, tasks)
    feeds = {x: a.shape for x, a in made.feeds.items()}
    fetches = [*(y for y, _ in made.fetched), *made.updates, *made.gradients]
    cluster = SINGLE if tasks == 1 else TWO_TASKS
    for wanted in (fetches, made.updates):
        plan = plan_of(g, wanted, feeds, cluster)
        for part in plan.parts.values() if tasks == 1 else ():
            every_pass(part)


def check(seed: int, tasks: int) -> None:
    """Run the updates, with what is fetched in half of the cases, and compare with NumPy."""
    made = RandomProgram(seed, tasks)
    fetched = made.fetched if seed % 2 else []
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found = session.run([[y for y, _ in fetched], made.updates], made.feeds)[0]
        state = session.run([v for v, _ in made.variables])
    for mine, (_, value) in zip([*found, *state], [*fetched, *made.variables], strict=True):
        np.testing.assert_allclose(mine, value, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_any_program_computes_what_numpy_does(seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(onednn_matmul, "WORK", 1)  # products of any size are the library's
    monkeypatch.setattr(onednn_matmul, "COLUMNS", 1)
    with hf.Graph().as_default():
        check(seed, 1)


@pytest.mark.parametrize("seed", range(15))
def test_any_program_on_two_tasks_computes_what_numpy_does(seed: int) -> None:
    run_ranks(2, lambda context: check(seed, 2), tasks_per_replica=2)


# -- what random programs seldom have


def run(fetches: Any, feeds: dict[Any, np.ndarray]) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).normal(size=shape).astype("f4")


def of_unknown_rows(x: Any, columns: int) -> tuple[Any, Any]:
    """The value under a shape of which only the columns are known, and what says the shape."""
    told = hf.placeholder(hf.int32, [None])
    y = hf.reshape(x, told)
    y.set_shape([None, columns])
    return y, told


def test_products_of_joined_values_of_which_one_has_unknown_rows() -> None:
    with hf.Graph().as_default():
        a, c, w = (hf.placeholder(hf.float32, shape) for shape in [(2, 3), (2, 2), (5, 4)])
        hidden, told = of_unknown_rows(c, 2)
        ys = [hf.matmul(hf.concat([a * float(k), hidden], 1), w) for k in range(3)]
        fed = {a: normal(2, 3), c: normal(2, 2), w: normal(5, 4)}
        found = run(ys, {**fed, told: np.array([2, 2], "i4")})
    for k, y in enumerate(found):
        left = np.concatenate([fed[a] * k, fed[c]], 1)
        np.testing.assert_allclose(y, left @ fed[w], rtol=1e-5, atol=1e-6)


def test_gradients_of_slices_of_two_shapes_are_added() -> None:
    with hf.Graph().as_default():
        xs = [hf.placeholder(hf.float32, (4, n)) for n in (1, 3)]
        gs = [hf.placeholder(hf.float32, (2, n)) for n in (1, 3)]
        parts = [xs[0][:2], xs[1][2:]]
        made = [hf.gradients(y, x, g)[0] for y, x, g in zip(parts, xs, gs, strict=True)]
        fed = {gs[0]: normal(2, 1), gs[1]: normal(2, 3)}
        found = run(made[0] + made[1], fed)
    expected = np.concatenate([np.tile(fed[gs[0]], 3), fed[gs[1]]])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sums", [0, (0, 1, 2)])
def test_a_sum_behind_the_gradient_of_pooling_over_any_axes(sums: Any) -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [2, 4, 4, 3])
        y = hf.nn.max_pool(hf.nn.relu(x), [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
        found = run(hf.reduce_sum(hf.gradients(y, x)[0], sums), {x: 1 + np.abs(normal(2, 4, 4, 3))})
    assert found.shape == np.zeros((2, 4, 4, 3)).sum(sums).shape
    assert found.sum() == 2 * 2 * 2 * 3  # one element of each window


@pytest.mark.slow
def test_thousands_of_operations_in_a_chain() -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [4, 6])
        y, turned = x, x
        for _ in range(1500):
            y, turned = hf.tanh(-y), hf.transpose(hf.transpose(turned))
        a, b = hf.split(y, 2, 1)
        heads = hf.reshape(turned, [2, 2, 6])
        product = hf.matmul(heads, heads, transpose_b=True)
        value = normal(4, 6)
        found, squares = run([a * b, product], {x: value})
    rows = value.reshape(2, 2, 6)
    np.testing.assert_allclose(squares, rows @ rows.swapaxes(1, 2), rtol=1e-4, atol=1e-5)
    for _ in range(1500):
        value = np.tanh(-value)
    np.testing.assert_allclose(found, value[:, :3] * value[:, 3:], rtol=1e-3)


def joined_for_products(x: Any, after: Any) -> Any:
    """Products of a value that is joined after an update."""
    w, h = hf.constant(normal(192, 96)), hf.tanh(x)
    for _ in range(3):
        with after():
            left = hf.concat([x, h], 1)
        h = hf.tanh(hf.matmul(left, w))
    return h


def joined_for_a_sum_of_products(x: Any, after: Any) -> Any:
    """A sum of products whose left operands are joined after an update."""
    products = []
    for k in range(3):
        parts = [x[:4] * float(k + 1), hf.tanh(x[:4] * float(k + 2))]
        with after():
            left = hf.concat(parts, 1)
        products.append(hf.matmul(left, x[k : k + 4], transpose_a=True))
    return hf.add_n(products)


def reshaped_for_a_sum(x: Any, after: Any) -> Any:
    """A sum over columns of what is reshaped after an update."""
    with after():
        folded = hf.reshape(x, [8, 8, 96])
    return hf.reduce_sum(folded, [0, 1])


@pytest.mark.parametrize(
    "build", [joined_for_products, joined_for_a_sum_of_products, reshaped_for_a_sum]
)
def test_what_is_rewritten_keeps_the_order_that_its_operands_stand_in(build: Any) -> None:
    """The update is needed by nothing but the order of a node that could be passed by."""
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [64, 96])
        v = hf.Variable(0.0)
        update = v.assign_add(1.0)
        y = build(x, lambda: hf.control_dependencies([update]))
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for _ in range(2):
                session.run(y, {x: normal(64, 96)})
            assert session.run(v) == 2.0
