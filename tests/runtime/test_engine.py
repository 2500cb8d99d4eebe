"""The laws of the runtime, each broken by a different wrong engine; ranks are threads here."""

import contextlib
import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    FeedError,
    GraphMismatchError,
    KernelError,
    LonelyCollectiveError,
    NumericError,
    UninitializedError,
)
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.platform.rank_logging import logger
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks

ONE = np.ones(3, np.float32)


def vector(name):
    return hf.placeholder(hf.float32, [3], name=name)


# -- order and deadlock


def test_two_tasks_exchange_values_crosswise():
    """A waits for x, then sends y; B waits for y2, then makes x2: no fixed order would do."""

    def body(context):
        x = vector("x")
        with hf.device("/job:worker/task:1"):
            b = x + 1.0
        with hf.device("/job:worker/task:0"):
            a = x * 2.0
            c = b + a  # waits for b, from task 1
        with hf.device("/job:worker/task:1"):
            d = a * 3.0  # waits for a, from task 0
            e = c + d
        with hf.device("/job:worker/task:0"):
            f = d - b
        return hf.Session().run([e, f], {x: ONE})

    for seed in range(5):
        (result,) = run_ranks(2, body, seed=seed, tasks_per_replica=2)
        np.testing.assert_array_equal(result, [ONE * 10, ONE * 4])


def random_graph(seed, tasks):
    """Fifty small ops on random tasks; the NumPy value of the sum of the last ones beside it."""
    rng = np.random.default_rng(seed)
    x = vector("x")
    values = [(x, ONE * 2)]
    kinds = (hf.add, np.add), (hf.subtract, np.subtract), (hf.maximum, np.maximum)
    for _ in range(50):
        (a, na), (b, nb) = (values[i] for i in rng.integers(len(values), size=2))
        make, reference = kinds[rng.integers(3)]
        with hf.device(f"/job:worker/task:{rng.integers(tasks)}"):
            values.append((make(a, b), reference(na, nb)))
    return x, [v for v, _ in values[-5:]], [n for _, n in values[-5:]]


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_over_four_ranks_with_random_delays_never_hang(seed):
    def body(context):
        x, fetches, expected = random_graph(seed, 4)
        session = hf.Session()
        results = [session.run(fetches, {x: ONE * 2}) for _ in range(3)]
        return results, expected

    ((results, expected),) = run_ranks(4, body, seed=seed, tasks_per_replica=4)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_collectives_start_in_one_order_whatever_becomes_ready_first():
    def body(context):
        x, y = vector("x"), vector("y")
        sums = [replica_sum(hf.tanh(x) if i % 2 else y * float(i)) for i in range(6)]
        out = hf.add_n(sums)
        return hf.Session().run(out, {x: ONE * 0, y: ONE})

    results = run_ranks(3, body, seed=4, bucket_bytes=1)
    for result in results:
        np.testing.assert_array_equal(result, ONE * 3 * (0 + 2 + 4))


# -- buffers


def test_a_fetch_held_across_later_runs_is_never_overwritten():
    def body(context):
        x = vector("x")
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        both = [hf.identity(x) * 2.0, v.assign_add(x), v.value()]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        kept = [session.run([both[0], v.value()], {x: ONE * i}) for i in range(6)]
        return [float(row[0][0]) for row in kept]

    assert run_ranks(2, body, ps=1)[0] == [0, 2, 4, 6, 8, 10]


def test_fed_arrays_are_not_written_nor_kept():
    x = vector("x")
    array = ONE.copy()
    references = []
    with hf.Graph().as_default():
        x = vector("x")
        y = hf.identity(x) + 1.0
        session = hf.Session()
        session.run(y, {x: array})
        import sys

        references.append(sys.getrefcount(array))
        np.testing.assert_array_equal(array, ONE)
    assert references == [2]


def test_two_steps_of_one_plan_in_flight_keep_their_buffers_apart():
    """Threads of one driver run the same fetch with different feeds, through a slow server."""

    def body(context):
        x = vector("x")
        with hf.device("/job:ps/task:0"):
            y = x * 2.0
            for _ in range(5):
                y = y + x
        session = hf.Session()
        wrong = []

        def run(i):
            for _ in range(20):
                result = session.run(y, {x: ONE * i})
                if not np.array_equal(result, ONE * i * 7):
                    wrong.append((i, result))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (family,) = session._families.values()
        (step,) = family._steps.values()
        return wrong, len(step.instances)

    ((wrong, instances),) = run_ranks(2, body, seed=1, ps=1)
    assert not wrong
    assert instances > 1  # else this test shows nothing


# -- state


def test_a_step_reads_what_was_there_before_its_own_update():
    v = hf.Variable(np.zeros(3, np.float32), name="before")
    with hf.Graph().as_default():
        v = hf.Variable(np.zeros(3, np.float32))
        read = v.value()
        with hf.control_dependencies([read]):
            update = v.assign_add(ONE)
        with hf.control_dependencies([update]):
            difference = v.read_value() - read
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(difference), ONE)
        np.testing.assert_array_equal(session.run(v), ONE)


def test_replicas_start_from_rank_zeros_values():
    def body(context):
        v = hf.Variable(hf.placeholder_with_default(np.zeros(3, np.float32), [3]))
        session = hf.Session()
        source = v.initial_value
        session.run(v.initializer, {source: ONE * (context.rank + 5)})
        return session.run(v)

    for value in run_ranks(3, body):
        np.testing.assert_array_equal(value, ONE * 5)


def test_workers_wait_for_the_chief_to_initialize():
    def body(context):
        v = hf.Variable(ONE * 7, name="v")
        session = hf.Session()
        if context.is_chief:
            import time

            time.sleep(0.3)
        session.run(hf.global_variables_initializer())
        return session.run(v)

    for value in run_ranks(4, body, ps=1, seed=2):
        np.testing.assert_array_equal(value, ONE * 7)


def test_steps_of_several_workers_interleave_and_every_update_counts():
    def body(context):
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        x = vector("x")
        update = v.assign_add(x)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(10 * (context.replica + 1)):  # an uneven number of steps hangs nobody
            session.run(update, {x: ONE})
        context.barrier()
        return session.run(v)[0], context.reports()

    results = run_ranks(4, body, ps=1, seed=3)
    assert [value for value, _ in results] == [60, 60, 60]
    (reports,) = [r for _, r in results if r is not None]
    assert reports[3]["updates"] == {"v": 60}


# -- the baton


def test_a_second_thread_s_step_runs_while_the_first_waits():
    """The first step can only end through what the second one does."""

    def body(context):
        ready = hf.Variable(np.zeros((), np.float32), name="ready")
        session = hf.Session()
        if context.replica == 1:  # waits for the chief's initializer, with the baton in hand
            other = hf.placeholder(hf.float32, [], name="other")
            double = other * 2.0
            waiting = threading.Thread(target=session.run, args=(ready.initializer,))
            waiting.start()
            until(lambda: context.executor.waits)
            found = session.run(double, {other: np.float32(4)})
            context.shared.set()
            waiting.join()
            return float(found)
        assert context.shared.wait(60)
        session.run(ready.initializer)
        return None

    event = threading.Event()

    def with_event(context):
        context.shared = event
        return body(context)

    assert run_ranks(3, with_event, ps=1) == [8.0]


# -- errors


def test_errors_name_the_op_the_line_and_the_rank():
    with hf.Graph().as_default():
        x = vector("x")
        v = hf.Variable(ONE, name="v")
        y = x + v
        session = hf.Session()
        with pytest.raises(UninitializedError, match="'v' has no value"):
            session.run(y, {x: ONE})
        with pytest.raises(FeedError, match="'x' needs a feed"):
            session.run(y)
        with pytest.raises(FeedError, match=r"shape \[4\]; it takes \[3\]"):
            session.run(y, {x: np.ones(4, np.float32)})
        with pytest.raises(FeedError, match="is float32 and cannot hold complex128"):
            session.run(y, {x: np.ones(3, complex)})


def test_a_failing_kernel_is_named_and_the_session_goes_on():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None], name="x")
        y = hf.check_numerics(x, "loss")
        session = hf.Session()
        with pytest.raises(hf.errors.NumericError, match="loss") as caught:
            session.run(y, {x: np.array([1, np.nan], np.float32)})
        assert "test_engine.py" in str(caught.value)
        np.testing.assert_array_equal(session.run(y, {x: ONE}), ONE)


def test_a_kernel_s_own_error_is_the_cause(monkeypatch):
    with hf.Graph().as_default():
        x = vector("x")
        session = hf.Session()
        y = x + 1.0
        session.run(y, {x: ONE})
        (family,) = session._families.values()
        (step,) = family._steps.values()

        def broken(*inputs):
            raise ZeroDivisionError("by test")

        monkeypatch.setattr(step, "call", broken)
        with pytest.raises((KernelError, ZeroDivisionError), match="by test"):
            step.run(ONE)


def test_replicas_with_different_graphs_are_told_the_first_difference():
    def body(context):
        x = vector("x")
        factor = 3.0 if context.rank == 1 else 2.0
        return hf.Session().run(replica_sum(x * factor), {x: ONE})

    with pytest.raises(GraphMismatchError, match=r"different graphs(.|\n)*test_engine\.py"):
        run_ranks(3, body)


def test_a_replica_that_sums_alone_is_told_so():
    def body(context):
        x = vector("x")
        total = replica_sum(x)
        session = hf.Session()
        session.run(total, {x: ONE})
        if context.rank == 0:
            session.run(total, {x: ONE})

    with pytest.raises(LonelyCollectiveError, match="has ended"):
        run_ranks(3, body)


def test_a_replica_that_ends_after_a_step_that_failed_leaves_nobody_waiting():
    def body(context):
        x = vector("x")
        total = replica_sum(hf.check_numerics(x, "the input"))
        session = hf.Session()
        session.run(total, {x: ONE})
        with contextlib.suppress(NumericError):
            session.run(total, {x: ONE * (np.nan if context.rank == 0 else 1)})

    with pytest.raises(LonelyCollectiveError, match="rank 0 has ended"):
        run_ranks(2, body)


def test_check_numerics_setting_names_the_first_op_with_a_nan():
    def body(context):
        x = vector("x")
        y = hf.log(x, name="the_log") + 1.0
        return hf.Session().run(y, {x: -ONE})

    with pytest.raises(hf.errors.NumericError, match=r"3 of 3 values(.|\n)*the_log"):
        run_ranks(1, body, check_numerics=True)


# -- shapes


def test_many_shapes_are_served_by_one_general_plan():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        w = hf.Variable(np.ones((3, 2), np.float32))
        y = hf.nn.softmax(hf.matmul(x, w)) + hf.reduce_mean(x)
        loss = hf.reduce_mean(hf.square(y))
        (gradient,) = hf.gradients(loss, [w])
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        rng = np.random.default_rng(0)
        for rows in [*range(1, 30), 3, 0, 40]:
            array = rng.standard_normal((rows, 3)).astype(np.float32)
            found, slope = session.run([y, gradient], {x: array})
            assert found.shape == (rows, 2)
            assert slope.shape == (3, 2)
            np.testing.assert_allclose(found - (array.mean() if rows else 0), 0.5, atol=1e-6)
        families = [f for f in session._families.values() if f._general]
        assert len(families) == 1
        assert len(families[0]._steps) == 8


def test_a_value_of_unknown_size_crosses_between_ranks():
    def body(context):
        n = hf.placeholder(hf.int32, [], name="n")
        with hf.device("/job:worker/task:1"):
            counted = hf.range(n)
            total = hf.reduce_sum(counted)
        with hf.device("/job:worker/task:0"):
            doubled = counted * 2
        session = hf.Session()
        return [session.run([doubled, total], {n: np.int32(i)}) for i in (3, 0, 5, 1)]

    (found,) = run_ranks(2, body, tasks_per_replica=2, seed=3)
    assert [list(row[0]) for row in found] == [[0, 2, 4], [], [0, 2, 4, 6, 8], [0]]
    assert [int(row[1]) for row in found] == [3, 0, 10, 0]


def test_a_graph_that_grows_in_the_loop_is_told_once(monkeypatch):
    told = []
    monkeypatch.setattr(logger, "warning", lambda text, *of: told.append(text % of))
    with hf.Graph().as_default():
        x = vector("x")
        session = hf.Session()
        for _ in range(250):
            session.run(x + 1.0, {x: ONE})
    assert len(told) == 1
    assert "grew" in told[0] and "test_engine.py" in told[0]


def test_fetches_of_every_structure():
    with hf.Graph().as_default():
        x = vector("x")
        v = hf.Variable(ONE, name="v")
        y = hf.add(x, v, name="y")
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        found = session.run(
            {"list": [y, v], "tuple": (x, [y, "y:0"]), "op": v.initializer, "name": "v"}, {x: ONE}
        )
        np.testing.assert_array_equal(found["list"], [ONE * 2, ONE])
        np.testing.assert_array_equal(found["tuple"][0], ONE)
        np.testing.assert_array_equal(found["tuple"][1], [ONE * 2, ONE * 2])
        assert found["op"] is None
        assert found["name"] is None
        assert session.run([]) == []
        with pytest.raises(hf.errors.FetchError, match="cannot be fetched"):
            session.run([y, 3])


def test_partial_execution_feeds_an_inner_tensor():
    with hf.Graph().as_default():
        x = vector("x")
        inner = x * 2.0
        y = inner + 1.0
        np.testing.assert_array_equal(hf.Session().run(y, {inner: ONE * 5}), ONE * 6)


def test_feeds_of_every_kind_that_fits():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [2, None], name="x")
        y = hf.placeholder(hf.float32, [], name="y")
        z = x * y
        session = hf.Session()
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        for _ in range(2):  # found the slow way, then the quick one
            for fed in (array, array.tolist(), np.asfortranarray(array), array.astype(">f4")):
                for factor in (2, 2.0, np.float32(2), np.array(2, np.float32), np.int8(2)):
                    np.testing.assert_array_equal(
                        session.run(z, {y: factor, x: fed}), array * 2, strict=True
                    )
            assert session.run(z, {"y:0": 3, "x:0": array[:, ::2]}).tolist() == [[0, 6], [9, 15]]
        (family,) = session._families.values()  # the order of feeds makes no other plan
        assert len(family._steps) == 2


@pytest.mark.parametrize("update", ["assign", "assign_add", "assign_sub"])
def test_an_update_of_unknown_size_must_fit(update):
    with hf.Graph().as_default():
        n = hf.placeholder(hf.int32, [], name="n")
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        change = getattr(v, update)(hf.cast(hf.range(n), hf.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(change, {n: 3})
        with pytest.raises(hf.errors.ShapeError, match=r"'v' is \[3\]; the update is \[1\]"):
            session.run(change, {n: 1})
