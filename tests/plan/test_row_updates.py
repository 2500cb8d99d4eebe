"""Updates of rows take scales and pieces themselves: the same tables, to the last bit."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import RangeError
from hpcflow.lowering.fusion.sparse_update_operands import fuse_sparse_operands
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

ROWS, WIDTH = 20, 6
KERNELS = pytest.mark.parametrize("kernels", ["auto", "plain"])


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


def indices(*shape):
    return np.random.default_rng(1).integers(0, ROWS, shape).astype("i4")


def rewritten(session, fetch, feeds):
    """The types of what the driver runs, in order."""
    plan = session.plan(fetch, feeds)
    part = fuse_sparse_operands(plan.parts[plan.driver])
    return [node.type for node in part.nodes.values()]


@KERNELS
def test_the_gradients_of_two_reads_are_applied_in_their_order(kernels):
    with use_context(RankContext(Settings(kernels=kernels))), hf.Graph().as_default():
        start, ids, more = draw(ROWS, WIDTH), indices(30), indices(8, 5)
        table = hf.Variable(start)
        a, b = hf.placeholder(hf.int32, [30]), hf.placeholder(hf.int32, [8, 5])
        x, y = (hf.placeholder(hf.float32, s) for s in ([30, WIDTH], [8, 5, WIDTH]))
        loss = hf.reduce_sum(hf.gather(table, a) * x) + hf.reduce_sum(hf.gather(table, b) * y)
        (rows,) = hf.gradients(loss, [table])
        train = hf.train.GradientDescentOptimizer(0.3).minimize(loss)
        session = hf.Session()
        feeds = {a: ids, b: more, x: draw(30, WIDTH), y: draw(8, 5, WIDTH)}
        session.run(hf.global_variables_initializer())
        types = rewritten(session, train, feeds)
        assert types.count("ScatterSub") == 2 and "Concat" not in types
        joined = session.run([rows.values, rows.indices], feeds)
        session.run(train, feeds)
        expected = start.copy()
        for value, i in zip(*joined, strict=True):
            expected[i] -= np.float32(0.3) * value
        assert session.run(table).tobytes() == expected.tobytes()


@KERNELS
@pytest.mark.parametrize("name", ["add", "sub", "update"])
def test_an_update_of_slices_multiplies_its_rows_before(kernels, name):
    """Its kernel takes no scale."""
    with use_context(RankContext(Settings(kernels=kernels))), hf.Graph().as_default():
        given, rate = hf.placeholder(hf.float32, [2, WIDTH]), hf.placeholder(hf.float32, [])
        start, rows = draw(ROWS, WIDTH), draw(2, WIDTH)
        table = hf.Variable(start)
        update = getattr(hf, f"scatter_nd_{name}")(table, [[3], [5]], given * rate)
        session = hf.Session()
        session.run(table.initializer)
        session.run(update, {given: rows, rate: np.float32(1.7)})
        scaled, expected = rows * np.float32(1.7), start.copy()
        new = {"add": start[[3, 5]] + scaled, "sub": start[[3, 5]] - scaled, "update": scaled}
        expected[[3, 5]] = new[name]
        assert session.run(table).tobytes() == expected.tobytes()


@KERNELS
def test_all_kinds_of_updates_take_a_scale(kernels):
    with use_context(RankContext(Settings(kernels=kernels))), hf.Graph().as_default():
        at, rows, rate = indices(40), draw(40, WIDTH), hf.placeholder(hf.float32, [])
        given = hf.placeholder(hf.float32, [40, WIDTH])
        ufuncs = {"add": np.add, "sub": np.subtract, "min": np.minimum, "mul": np.multiply}
        for name, ufunc in ufuncs.items():
            start = draw(ROWS, WIDTH) + 1
            table = hf.Variable(start)
            update = getattr(hf, f"scatter_{name}")(table, at, given * rate)
            session, feeds = hf.Session(), {given: rows, rate: np.float32(1.7)}
            session.run(table.initializer)
            assert "Mul" not in rewritten(session, update, feeds)
            session.run(update, feeds)
            ufunc.at(start, at, rows * np.float32(1.7))
            assert session.run(table).tobytes() == start.tobytes()


def test_a_product_that_others_take_stays():
    with hf.Graph().as_default():
        at, rows = indices(4), hf.placeholder(hf.float32, [4, WIDTH])
        table = hf.Variable(draw(ROWS, WIDTH))
        scaled = rows * 2.0
        update = hf.scatter_add(table, at, scaled)
        session = hf.Session()
        feeds = {rows: draw(4, WIDTH)}
        session.run(table.initializer)
        assert rewritten(session, [update, scaled], feeds).count("Mul") == 1
        assert (session.run([update, scaled], feeds)[1] == feeds[rows] * 2).all()


def test_what_a_table_itself_gives_is_read_before_it_changes():
    """Twice the table is added to it, its rows in another order."""
    with hf.Graph().as_default():
        start = draw(ROWS, WIDTH)
        table, at = hf.Variable(start), np.arange(ROWS)[::-1].copy()
        update = hf.scatter_add(table, at, table.read_value() * 2.0)
        session = hf.Session()
        session.run(table.initializer)
        session.run(update)
        assert np.array_equal(session.run(table), start + 2 * start[::-1])


def test_pieces_of_other_sizes_than_their_indices_are_joined():
    with hf.Graph().as_default():
        start = draw(ROWS, WIDTH)
        table = hf.Variable(start)
        a, b = hf.placeholder(hf.int32, [3]), hf.placeholder(hf.int32, [5])
        x, y = hf.placeholder(hf.float32, [5, WIDTH]), hf.placeholder(hf.float32, [3, WIDTH])
        update = hf.scatter_add(table, hf.concat([a, b], 0), hf.concat([x, y], 0))
        session = hf.Session()
        feeds = {a: indices(3), b: indices(5), x: draw(5, WIDTH), y: draw(3, WIDTH)}
        session.run(table.initializer)
        assert rewritten(session, update, feeds).count("Concat") == 2
        session.run(update, feeds)
        np.add.at(start, np.r_[indices(3), indices(5)], np.r_[draw(5, WIDTH), draw(3, WIDTH)])
        assert np.array_equal(session.run(table), start)


def test_a_wrong_index_of_a_piece_is_an_error():
    with hf.Graph().as_default():
        table = hf.Variable(draw(ROWS, WIDTH))
        at = [hf.placeholder(hf.int32, [2]) for _ in range(2)]
        rows = [hf.placeholder(hf.float32, [2, WIDTH]) for _ in range(2)]
        update = hf.scatter_add(table, hf.concat(at, 0), hf.concat(rows, 0))
        session = hf.Session()
        session.run(table.initializer)
        values = [np.array([0, 1], "i4"), np.array([2, ROWS], "i4"), draw(2, WIDTH), draw(2, WIDTH)]
        with pytest.raises(RangeError, match=f"index {ROWS} is outside"):
            session.run(update, dict(zip([*at, *rows], values, strict=True)))
