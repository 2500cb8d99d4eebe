"""Compressed gradients: what is sent, what is kept, and the weights they lead to, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from tests.runtime.ranks import run_here, run_ranks

T = hf.train
N, RATE, STEPS = 600, 0.25, 7
SHAPE = (20, 30)


def given(replica: int = 0, steps: int = STEPS) -> np.ndarray:
    """Gradients of a replica, step by step, in eighths: sums of them are exact in float32."""
    rng = np.random.default_rng([8, replica])
    return (rng.integers(-400, 400, (steps, *SHAPE)) / 8).astype(np.float32)


def bfloat(x: np.ndarray) -> np.ndarray:
    """Float32 to the nearest number with 8 significant bits, ties to even."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32)


def feedback(gradients: np.ndarray, k: int) -> tuple[list[np.ndarray], np.ndarray]:
    """What each step sends, and what is left at the end (Stich et al. 2018, Algorithm 1)."""
    left, sent = np.zeros(gradients[0].size), []
    for g in gradients:
        left = left + g.reshape(-1)
        first = sorted(range(left.size), key=lambda i: (-abs(left[i]), i))[:k]
        now = np.zeros(left.size)
        now[first], left[first] = left[first], 0
        sent.append(now.reshape(g.shape))
    return sent, left


def net(optimizer: Any) -> tuple[Any, ...]:
    """A variable whose gradient is what is fed, and the step that trains it."""
    g = hf.placeholder(hf.float32, SHAPE, name="g")
    with hf.name_scope("net"):
        w = hf.Variable(np.zeros(SHAPE, np.float32), name="w")
    pairs = optimizer.compute_gradients(hf.reduce_sum(w * g))
    return g, w, pairs[0][0], optimizer.apply_gradients(pairs)


def trained(compression: Any, share: int = 1, replica: int = 0, wrap: Any = None) -> Any:
    """Weights, what arrived of the gradient in each step, and the residual.

    A replica of `share` gives a `share`-th of the joined gradient; what is fed makes up for it.
    """
    inside = T.GradientDescentOptimizer(RATE)
    optimizer = T.CompressedOptimizer(wrap(inside) if wrap else inside, compression)
    g, w, arrived, step = net(optimizer)
    session, found = hf.Session(), []
    session.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
    for fed in given(replica):
        found.append(session.run([arrived, step], {g: fed * share})[0])
    residual = getattr(compression, "residual", lambda v: None)(w)
    return session.run(w), found, None if residual is None else session.run(residual)


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 2, "shard_bytes": 512}])
def test_top_k_sends_the_largest_and_keeps_the_rest(settings: Any) -> None:
    """Alone, to a server, and to pieces of the variable on two."""
    ((w, found, left),) = run_ranks(
        1 + settings.get("ps", 0), lambda context: trained(T.TopKCompression(0.05)), **settings
    )
    sent, rest = feedback(given(), 30)
    np.testing.assert_array_equal(found, sent)
    np.testing.assert_array_equal(left, rest)
    np.testing.assert_array_equal(w, -RATE * np.sum(sent, 0))
    total = np.sum(found, 0, dtype=np.float64) + left.reshape(SHAPE)
    np.testing.assert_array_equal(total, given().sum(0, dtype=np.float64))


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 2, "shard_bytes": 512}])
def test_bfloat16_is_rounded_to_nearest_on_the_way(settings: Any) -> None:
    ((w, found, _),) = run_ranks(
        1 + settings.get("ps", 0), lambda context: trained(T.BFloat16Compression()), **settings
    )
    rounded = [bfloat(g) for g in given()]
    np.testing.assert_array_equal(found, rounded)
    assert any((r != g).any() for r, g in zip(rounded, given(), strict=True))
    want = np.zeros(SHAPE, np.float32)
    for g in rounded:
        want = want - np.float32(RATE) * g
    np.testing.assert_array_equal(w, want)


def test_workers_of_a_server_keep_their_own_residuals() -> None:
    def body(context: Any) -> Any:
        found = trained(T.TopKCompression(0.05), replica=context.replica)
        context.barrier()
        return found[2], context.reports()

    results = run_ranks(4, body, ps=1, seed=3)
    for replica, (left, _) in enumerate(results):
        np.testing.assert_array_equal(left, feedback(given(replica), 30)[1])
    kept = {r["task"] for r in results[0][1] if "net/w/residual" in r["updates"]}
    assert kept and "/job:ps/task:0" not in kept


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_gather_the_entries_that_each_sends(replicas: int) -> None:
    def body(context: Any) -> Any:
        return trained(T.TopKCompression(0.05), replicas, context.replica)

    sent = np.sum([feedback(given(r), 30)[0] for r in range(replicas)], 0)
    for replica, (w, found, left) in enumerate(run_ranks(replicas, body, seed=5)):
        # a share of a third is not exact
        np.testing.assert_allclose(found, sent, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(w, -RATE * sent.sum(0), rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(left, feedback(given(replica), 30)[1], rtol=1e-5, atol=1e-4)


def test_two_replicas_sum_in_bfloat16() -> None:
    def body(context: Any) -> Any:
        return trained(T.BFloat16Compression(), 2, context.replica)

    for _, found, _ in run_ranks(2, body, seed=5):
        for step, (a, b) in enumerate(zip(given(0), given(1), strict=True)):
            np.testing.assert_array_equal(found[step], bfloat(bfloat(a) + bfloat(b)))


@pytest.mark.parametrize("settings", [{"ps": 1}, {"ps": 2, "shard_bytes": 512}])
@pytest.mark.parametrize("kind", ["top-k", "bfloat16"])
def test_workers_that_keep_step_join_what_they_send(kind: str, settings: Any) -> None:
    """`sync="all"` with two workers: the servers add up in float32."""

    def body(context: Any) -> Any:
        top = kind == "top-k"
        compression = T.TopKCompression(0.05) if top else T.BFloat16Compression()
        optimizer = T.CompressedOptimizer(T.GradientDescentOptimizer(RATE), compression)
        g, w, _, step = net(optimizer)
        session = hf.Session()
        session.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
        for fed in given(context.replica):
            session.run(step, {g: fed * 2})
        context.barrier()
        left = session.run(compression.residual(w)) if top else None
        return session.run(w), left

    sent = [feedback(given(r), 30)[0] for r in range(2)]
    if kind == "bfloat16":
        sent = [[bfloat(g) for g in given(r)] for r in range(2)]
    want = -RATE * np.sum(sent, (0, 1), dtype=np.float64)
    sync = "all" if settings["ps"] else ""
    for replica, (w, left) in enumerate(
        run_ranks(2 + settings["ps"], body, sync=sync, seed=7, **settings)
    ):
        np.testing.assert_allclose(w, want, rtol=1e-6, atol=1e-4)
        if left is not None:
            np.testing.assert_array_equal(left, feedback(given(replica), 30)[1])


def moved(compression: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """What a step of one worker sends to the server that has a variable of this shape."""
    with hf.Graph().as_default():
        w = hf.Variable(np.zeros(shape, dtype), name="w")
        g = hf.placeholder(dtype, shape)
        optimizer = T.GradientDescentOptimizer(0.5)
        if compression is not None:
            optimizer = T.CompressedOptimizer(optimizer, compression)
        step = optimizer.minimize(hf.reduce_sum(w * g))
        session = hf.Session()
        plan = session.plan(step, {g: np.zeros(shape, dtype)})
        there = [e.spec for e in plan.edges if e.dest == "/job:ps/task:0" and not e.token]
        there = [s for s in there if s.shape != ()]  # what keeps step
        return sorted((str(s.dtype), s.shape) for s in there), sum(s.nbytes for s in there)


@pytest.mark.parametrize("sync", ["async", "all"])
def test_bytes_to_the_server_are_those_of_what_is_sent(sync: str) -> None:
    def body(context: Any) -> Any:
        top, half = T.TopKCompression, T.BFloat16Compression
        return [
            moved(None, (100, 50)),
            moved(half(), (100, 50)),
            moved(top(0.01), (100, 50)),
            moved(half(), (128,), np.float64),
            moved(half(), (255,)),
            moved(top(0.01), (255,)),
            moved(top(0.01), (256,)),
            moved(top(0.01, min_bytes=0), (5,)),
        ]

    (found,) = run_ranks(2, body, ps=1, sync=sync)
    whole, half, top, double, small, few, least, tiny = found
    assert whole == ([("float32", (100, 50))], 20_000)
    assert half == ([("bfloat16", (100, 50))], 10_000)
    assert top == ([("uint8", (400,))], 400)  # values and places in one message
    assert double == ([("bfloat16", (128,))], 256)
    assert small == few == ([("float32", (255,))], 1020)  # under 1 KiB they are left alone
    assert least == ([("uint8", (24,))], 24)
    assert tiny == ([("uint8", (8,))], 8)


def test_bytes_between_replicas() -> None:
    """An all-reduce of half the bytes, by the plan and by what the communicator counts."""

    def body(context: Any) -> Any:
        found = []
        for compression in (None, T.BFloat16Compression(), T.TopKCompression(0.05)):
            with hf.Graph().as_default():
                optimizer = T.GradientDescentOptimizer(0.5)
                if compression is not None:
                    optimizer = T.CompressedOptimizer(optimizer, compression)
                g, _, _, step = net(optimizer)
                session = hf.Session()
                session.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
                session.run(step, {g: given()[0]})
                traffic = context.drivers.traffic
                before = traffic.bytes["collective", 0]
                session.run(step, {g: given()[1]})
                found.append(traffic.bytes["collective", 0] - before)
        return found

    sizes = 2 * 2 * 8  # of two replicas' indices and values
    for found in run_ranks(2, body):
        assert found == [4 * N, 2 * N, 30 * 8 + sizes]


def test_sparse_gradients_and_other_dtypes_travel_as_they_are() -> None:
    for compression in (T.BFloat16Compression(0), T.TopKCompression(0.5, 0)):
        with hf.Graph().as_default():
            table = hf.Variable(np.zeros((400, 3), np.float32), name="table")
            half = hf.Variable(np.zeros(1000, np.float16), name="half")
            loss = hf.reduce_sum(hf.gather(table, [1, 2])) + hf.reduce_sum(
                hf.cast(half, hf.float32)
            )
            optimizer = T.CompressedOptimizer(T.GradientDescentOptimizer(1.0), compression)
            (rows, _), (whole, _) = optimizer.compute_gradients(loss)
            assert isinstance(rows, hf.IndexedSlices) and rows.dtype == hf.float32
            assert compression.variables() == []
            with hf.Session() as session:
                session.run(hf.global_variables_initializer())
                assert session.run(whole).dtype == np.float16


def test_compression_goes_around_other_wrappers() -> None:
    def body(context: Any) -> Any:
        scaled = trained(T.TopKCompression(0.05), wrap=lambda o: T.LossScaleOptimizer(o, 1024.0))
        with hf.Graph().as_default():
            mean = trained(T.TopKCompression(0.05), wrap=lambda o: T.AccumulatingOptimizer(o, 7))
        return scaled, mean

    ((scaled, mean),) = run_ranks(1, body)
    sent, rest = feedback(given(), 30)
    np.testing.assert_array_equal(scaled[0], -RATE * np.sum(sent, 0))
    np.testing.assert_array_equal(mean[2], rest)
    np.testing.assert_allclose(mean[0], -RATE * np.mean(sent, 0), rtol=1e-6, atol=1e-6)


def test_slots_and_variables_are_those_inside_and_the_residuals() -> None:
    with hf.Graph().as_default():
        compression = T.TopKCompression()
        optimizer = T.CompressedOptimizer(T.MomentumOptimizer(0.1, 0.9), compression)
        _, w, _, _ = net(optimizer)
        slot = optimizer.get_slot(w, "momentum")
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.variables() == [slot, compression.residual(w)]
        assert hf.local_variables() == [compression.residual(w)]
        assert compression.residual(w).name == "net/w/residual"


def resumed(ranks: int, folder: Any, steps: range, resume: bool, **places: Any) -> list[Any]:
    """Weights, momentum and residual of each replica after some of the steps; it saves the last."""

    def body(context: Any) -> Any:
        compression = T.TopKCompression(0.05)
        optimizer = T.CompressedOptimizer(T.MomentumOptimizer(RATE, 0.5), compression)
        g, w, _, step = net(optimizer)
        kept = [w, optimizer.get_slot(w, "momentum"), compression.residual(w)]
        with T.TrainingSession(
            context=context, checkpoints=folder, save_every=1000, resume=resume
        ) as session:
            began = session.run(kept)
            for i in steps:
                session.step(step, {g: given(context.replica)[i]})
            session.wait()
            return began, session.run(kept)

    return run_ranks(ranks, body, **places)


@pytest.mark.parametrize(("ranks", "places"), [(1, {}), (3, {}), (2, {"ps": 1}), (4, {"ps": 2})])
def test_a_job_that_resumes_has_every_residual(ranks: int, places: Any, tmp_path: Any) -> None:
    whole = resumed(ranks, None, range(STEPS), False, **places)
    first = resumed(ranks, tmp_path, range(3), False, **places)
    after = resumed(ranks, tmp_path, range(3, STEPS), True, **places)
    for (_, saved), (began, ended), (_, want) in zip(first, after, whole, strict=True):
        np.testing.assert_array_equal(began[2], saved[2])
        assert began[2].any()
        if ranks != 4:  # two asynchronous workers end differently each time
            for mine, theirs in zip((*began, *ended), (*saved, *want), strict=True):
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("ranks", "after"), [(3, 2), (2, 3), (4, 1)])
def test_on_other_replicas_nothing_of_the_residuals_is_lost(
    ranks: int, after: int, tmp_path: Any
) -> None:
    first = resumed(ranks, tmp_path, range(3), False)
    then = resumed(after, tmp_path, range(0), True)
    left = [np.zeros(N, np.float32) for _ in range(after)]
    for replica, (_, ended) in enumerate(first):
        left[replica % after] += ended[2]
    for (began, _), want in zip(then, left, strict=True):
        np.testing.assert_array_equal(began[2], want)


class OfItsOwn(T.GradientDescentOptimizer):
    def compute_gradients(self, loss: Any, var_list: Any = None, grad_loss: Any = None) -> Any:
        return super().compute_gradients(loss, var_list, grad_loss)


def test_what_cannot_be_compressed_is_told() -> None:
    inside, top = T.GradientDescentOptimizer(1.0), T.TopKCompression
    for fraction in (0, -1, 0.6):
        with pytest.raises(GraphError, match="fraction must be above 0"):
            top(fraction)
    with pytest.raises(GraphError, match="'top-k' is not a compression") as info:
        T.CompressedOptimizer(inside, "top-k")
    assert "TopKCompression" in (info.value.hint or "")
    with pytest.raises(GraphError, match="OfItsOwn already sums its gradients"):
        T.CompressedOptimizer(OfItsOwn(1.0), top())
    with pytest.raises(GraphError, match="skips updates"):
        T.CompressedOptimizer(T.LossScaleOptimizer(inside), top())
    T.CompressedOptimizer(T.LossScaleOptimizer(inside), T.BFloat16Compression())
    with pytest.raises(GraphError, match="cannot skip an update"):
        T.AccumulatingOptimizer(T.CompressedOptimizer(inside, top()), 2)


@pytest.mark.mpi
def test_replicas_of_mpi() -> None:
    from hpcflow.comm import mpi_communicator

    n = mpi_communicator.world().size
    everyone = [given(r) for r in range(n)]

    def body(context: Any) -> Any:
        top = trained(T.TopKCompression(0.05), n, context.replica)
        with hf.Graph().as_default():
            return top, trained(T.BFloat16Compression(), n, context.replica)

    (_, top, _), (_, half, _) = run_here(body)
    sent = np.sum([feedback(g, 30)[0] for g in everyone], 0)
    np.testing.assert_allclose(top, sent, rtol=1e-5, atol=1e-4)
    # n roundings of addends and up to n - 1 of sums, by 2^-8 of the largest of them
    bound = (2 * n - 1) * 2.0**-8 * np.sum(np.abs(everyone), 0)
    assert (np.abs(half - np.sum(everyone, 0)) <= bound).all()


@pytest.mark.mpi(min_size=2)
def test_a_worker_and_servers_of_mpi() -> None:
    from hpcflow.comm import mpi_communicator

    servers = mpi_communicator.world().size - 1
    found = run_here(lambda context: trained(T.TopKCompression(0.05)), ps=servers, shard_bytes=512)
    if found is not None:
        np.testing.assert_array_equal(found[0], -RATE * np.sum(feedback(given(), 30)[0], 0))
