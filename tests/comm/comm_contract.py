"""What every Communicator does: each check runs on all ranks of one, and compares exactly.

Numbers are small integers that every dtype represents, so that the order of a sum cannot matter.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError
from hpcflow.graph.dtypes import bfloat16

DTYPES = ("f4", "f8", "i4", "i8")
COUNTS = (0, 1, 7, 1000, 100_003)
PATIENCE = 60.0  # only a wrong program needs it
CHECKS: list[Callable[[Communicator], None]] = []


def check(function: Callable[[Communicator], None]) -> Callable[[Communicator], None]:
    """Enter a check in the list that the tests are made of."""
    CHECKS.append(function)
    return function


def done(*requests) -> None:
    """Wait, but not for ever."""
    wait_for_requests(*requests, timeout=PATIENCE)


def numbers(count: int, dtype: str, rank: int) -> np.ndarray:
    """The addend of `rank`."""
    return (np.arange(count) % 11 + 3 * rank + 1).astype(dtype)


def put(bucket, value) -> None:
    """Write the addend, wherever the bucket lives."""
    array = np.broadcast_to(value, bucket.input.shape).astype(bucket.input.dtype)
    if hasattr(bucket.input, "set"):
        bucket.input.set(array)
    else:
        bucket.input[:] = array


def got(bucket) -> np.ndarray:
    """The sum, in host memory."""
    return bucket.output.get() if hasattr(bucket.output, "get") else bucket.output


@check
def who_is_who(comm: Communicator) -> None:
    """Ranks, hosts and tags are told."""
    assert 0 <= comm.rank < comm.size
    assert len(comm.hosts) == comm.size and all(comm.hosts)
    assert comm.max_tag >= 32767


@check
def sends_round_a_ring(comm: Communicator) -> None:
    """Every dtype and size arrives, also empty and at rank itself when it is alone."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for tag, dtype in enumerate(DTYPES):
        for count in COUNTS:
            out, into = numbers(count, dtype, comm.rank), np.zeros(count, dtype)
            done(comm.recv(into, before, tag), comm.send(out, after, tag))
            assert np.array_equal(into, numbers(count, dtype, before))


@check
def shapes_and_strange_dtypes_travel(comm: Communicator) -> None:
    """Bytes are bytes: any shape, booleans, records, zero dimensions."""
    record = np.dtype([("a", "i4"), ("b", "f8")])
    pairs = [((3, 4), "?"), ((), "f8"), ((2, 0), "f4"), (5, record), ((2, 3), bfloat16)]
    for tag, (shape, dtype) in enumerate(pairs):
        out, into = np.ones(shape, dtype), np.zeros(shape, dtype)
        done(comm.recv(into, comm.rank, tag), comm.send(out, comm.rank, tag))
        assert np.array_equal(into, out)


@check
def order_is_kept(comm: Communicator) -> None:
    """Messages of one sender and tag are received in the order sent; tags do not mix."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [comm.send(np.array([i, tag]), after, tag) for i in range(40) for tag in (1, 2)]
    arrays = {(i, tag): np.zeros(2, int) for i in range(40) for tag in (1, 2)}
    receives = [comm.recv(arrays[i, 2], before, 2) for i in range(40)]
    receives += [comm.recv(arrays[i, 1], before, 1) for i in range(40)]
    done(*reversed(receives), *sends)
    assert all(tuple(array) == key for key, array in arrays.items())


@check
def many_are_in_flight(comm: Communicator) -> None:
    """Hundreds of messages of mixed sizes between all pairs, tested in any order."""
    sizes = [random.Random(i).choice([0, 3, 900, 20_000]) for i in range(60)]
    requests, arrays = [], {}
    for peer in range(comm.size):
        for i, size in enumerate(sizes):
            arrays[peer, i] = np.zeros(size, "i4")
            requests.append(comm.recv(arrays[peer, i], peer, i % 7))
            requests.append(comm.send(numbers(size, "i4", comm.rank + i), peer, i % 7))
    random.Random(comm.rank).shuffle(requests)
    done(*requests)
    for (peer, i), array in arrays.items():
        assert np.array_equal(array, numbers(sizes[i], "i4", peer + i))
    done(comm.barrier())


@check
def channels_are_used_again(comm: Communicator) -> None:
    """A channel carries what its array holds when it is started, as often as wanted."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 5, 30_000):
        out, into = np.zeros(count), np.zeros(count)
        sender, receiver = comm.send_channel(out, after, 9), comm.recv_channel(into, before, 9)
        assert sender.test() and receiver.test()
        for step in range(4):
            out[:] = 100 * step + comm.rank
            receiver.start()
            sender.start()
            done(sender, receiver)
            assert sender.test() and receiver.test() and receiver.source == before
            assert (into == 100 * step + before).all()
        for channel in (sender, receiver, sender, receiver):  # closing twice does nothing
            channel.close()


@check
def short_messages_are_taken_where_they_may_come(comm: Communicator) -> None:
    """A channel made for them says how many bytes came; others refuse them."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    into = np.zeros(10, "u1")
    channel = comm.recv_channel(into, before, 6, short=True)
    for size in (10, 0, 4, 10):
        channel.start()
        done(channel, comm.send(np.full(size, size, "u1"), after, 6))
        assert channel.nbytes == size and (into[:size] == size).all()
    channel.close()


@check
def large_messages_go_through_channels(comm: Communicator) -> None:
    """Whole by either way of sending, or empty in place of the whole."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out, into = np.zeros(2_500_001, "f4"), np.zeros(2_500_001, "f4")
    sender = comm.send_channel(out, after, 8)
    receiver = comm.recv_channel(into, before, 8, short=True)
    for step in range(1, 7):
        out[:] = np.arange(out.size) % 1000 + comm.rank + step
        receiver.start()
        if step % 3 == 0:
            done(receiver, comm.send_to_channel(out[:0], after, 8))
            assert receiver.nbytes == 0
            continue
        if step % 2:
            sender.start()
        done(receiver, sender if step % 2 else comm.send_to_channel(out, after, 8))
        assert receiver.nbytes == out.nbytes
        assert np.array_equal(into, np.arange(out.size) % 1000 + np.float32(before + step))
    receiver.start()
    with pytest.raises(CommError, match="started again"):
        receiver.start()
    receiver.close()
    sender.close()
    done(comm.barrier())


@check
def a_channel_in_flight_cannot_start(comm: Communicator) -> None:
    """Starting twice is an error; closing withdraws the receive, so nothing is stolen later."""
    into = np.zeros(3)
    channel = comm.recv_channel(into, comm.rank, 5)
    channel.start()
    assert not channel.test()
    with pytest.raises(CommError, match="again"):
        channel.start()
    channel.close()
    other = np.zeros(3)
    done(comm.recv(other, comm.rank, 5), comm.send(np.arange(3.0), comm.rank, 5))
    assert (other == np.arange(3)).all() and (into == 0).all()


@check
def any_source_is_named(comm: Communicator) -> None:
    """A server receives from whoever sends and learns who it was."""
    sends = [comm.send(np.array([comm.rank, i], "i4"), 0, 4) for i in range(3)]
    if comm.rank == 0:
        seen, into = [], np.zeros(2, "i4")
        channel = comm.recv_channel(into, comm.ANY, 4)
        for _ in range(3 * comm.size):
            channel.start()
            done(channel)
            assert into[0] == channel.source
            seen.append(tuple(into.tolist()))
        channel.close()
        for rank in range(comm.size):
            assert [number for source, number in seen if source == rank] == [0, 1, 2]
    done(*sends, comm.barrier())


@check
def probe_sees_what_waits(comm: Communicator) -> None:
    """Probe tells sender and size without receiving, and None where nothing waits."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.probe(comm.ANY, 77) is None
    done(comm.barrier())
    sends = [comm.send(np.zeros(count), after, 77) for count in (6, 0)]
    for count in (6, 0):
        while (found := comm.probe(comm.ANY, 77)) is None:
            pass
        assert found == (before, 8 * count) == comm.probe(before, 77)
        done(comm.recv(np.ones(count), before, 77))
    done(*sends, comm.barrier())
    assert comm.probe(before, 77) is None


@check
def wrong_size_is_an_error(comm: Communicator) -> None:
    """A message of another size than its array is a CommError when the receive is tested."""
    for tag, (sent, expected) in enumerate([(3, 5), (5, 3), (0, 1)]):
        send = comm.send(np.zeros(sent), comm.rank, 20 + tag)
        into = comm.recv(np.zeros(expected), comm.rank, 20 + tag)
        with pytest.raises(CommError, match="receive"):
            done(into)
        assert into.test()
        done(send)


def told(watch, count: int) -> list:
    """The next `count` tokens, or more, that a watch tells."""
    found: list = []
    end = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < end:
        finished = watch.finished()
        while finished:
            found.append(finished.popleft())
    return found


@check
def a_watch_tells_of_what_is_over(comm: Communicator) -> None:
    """Of each request once, channels again and again; none of those that nothing has met."""
    watch, ranks = comm.watch, range(comm.size)
    into = {rank: np.zeros(4) for rank in ranks}
    channels = {rank: comm.recv_channel(into[rank], rank, 30, short=True) for rank in ranks}
    missing = comm.recv(np.zeros(1), comm.rank, 31)
    missing.watched_by(watch, "missing")
    for step in range(3):
        for rank, channel in channels.items():
            channel.start()
            channel.watched_by(watch, (step, rank))
        assert set(watch.tokens()) == {"missing", *((step, rank) for rank in ranks)}
        assert len(watch) == comm.size + 1
        size = 4 - step % 2
        sends = [comm.send(np.full(size, comm.rank + step, float), rank, 30) for rank in ranks]
        assert sorted(told(watch, comm.size)) == [(step, rank) for rank in ranks]
        for rank, channel in channels.items():
            assert channel.test() and (channel.source, channel.nbytes) == (rank, 8 * size)
            assert (into[rank][:size] == rank + step).all()
        for sent in sends:
            sent.watched_by(watch, "sent")
        assert told(watch, comm.size) == ["sent"] * comm.size and all(s.test() for s in sends)
        assert not watch.finished()
    assert watch.tokens() == ["missing"] and not missing.test()
    watch.drop_tokens(lambda token: token == "missing")
    done(comm.send(np.zeros(1), comm.rank, 31), missing)
    assert not watch.finished() and not watch.tokens() and not len(watch)


@check
def a_watch_receives_what_is_expected(comm: Communicator) -> None:
    """Messages of any size, though others that nobody asks for are in front of them."""
    watch, ranks = comm.watch, range(comm.size)
    unasked = [comm.send(np.zeros(1), rank, 40) for rank in ranks]
    done(comm.barrier())
    for step in range(3):
        found = {}

        def receive(nbytes: int, rank: int, found: dict = found) -> Request:
            found[rank] = np.zeros(nbytes, "u1")
            return comm.recv(found[rank], rank, 41)

        for rank in ranks:
            watch.expect(rank, 41, functools.partial(receive, rank=rank), rank)
        assert not watch.finished() or step
        done(comm.barrier())
        message = np.full(comm.rank + step, comm.rank, "u1")
        sends = [comm.send(message, rank, 41) for rank in ranks]
        assert sorted(told(watch, comm.size)) == list(ranks)
        done(*sends)
        for rank in ranks:
            assert (found[rank] == np.full(rank + step, rank)).all()
        assert not watch.tokens()
    watch.expect(comm.rank, 42, lambda nbytes: pytest.fail("nothing was sent"), "never")
    assert not watch.finished() and watch.tokens() == ["never"]
    watch.drop_tokens(lambda token: True)
    done(*unasked, *(comm.recv(np.zeros(1), rank, 40) for rank in ranks), comm.barrier())


@check
def a_watched_receive_of_a_wrong_size_says_so_when_it_is_tested(comm: Communicator) -> None:
    """The others are told of as ever, also those that ended together with it."""
    watch, after, before = comm.watch, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sizes = [(3, 5), (0, 1)]
    if comm.size > 1:  # Open MPI cuts what a rank sends itself without a word
        sizes.append((5, 3))
    for tag, (sent, expected) in enumerate(sizes):
        into = [np.zeros(size) for size in (2, expected, 2, 2)]
        receives = [comm.recv(array, before, 50 + 4 * tag + i) for i, array in enumerate(into[:2])]
        receives.append(comm.recv_channel(into[2], before, 52 + 4 * tag, short=True))
        receives[2].start()
        receives.append(comm.recv(into[3], before, 53 + 4 * tag))
        for i, receive in enumerate(receives):
            receive.watched_by(watch, i)
        lengths = (2, sent, 1)
        sends = [comm.send(np.ones(n), after, 50 + 4 * tag + i) for i, n in enumerate(lengths)]
        assert sorted(told(watch, 3)) == [0, 1, 2]
        assert receives[0].test() and receives[2].test() and receives[2].nbytes == 8
        assert into[0].sum() == 2 and into[2].sum() == 1
        with pytest.raises(CommError, match="receive"):
            receives[1].test()
        assert receives[1].test() and not receives[3].test()
        assert watch.tokens() == [3]
        done(*sends, comm.barrier())
        done(comm.send(np.ones(2), after, 53 + 4 * tag))
        assert told(watch, 1) == [3] and into[3].sum() == 2


@check
def unfit_arrays_are_refused(comm: Communicator) -> None:
    """Strided, object and read-only arrays are errors at once, and change nothing."""
    strided, objects, fixed = np.zeros((4, 4))[:, ::2], np.array([{}]), np.zeros(3)
    fixed.flags.writeable = False
    for bad in (strided, objects, [1.0, 2.0]):
        for call in (comm.send, comm.recv, comm.send_channel, comm.recv_channel):
            with pytest.raises(CommError):
                call(bad, comm.rank, 1)
        with pytest.raises(CommError):
            comm.all_reduce(bad)
    for call in (comm.recv, comm.recv_channel):
        with pytest.raises(CommError, match="read-only"):
            call(fixed, comm.rank, 1)
    with pytest.raises(CommError, match="median"):
        comm.all_reduce(np.zeros(2), "median")


@check
def reductions_are_exact(comm: Communicator) -> None:
    """Sum, max and min over all ranks, in place, any shape."""
    for dtype in DTYPES:
        for count in COUNTS:
            rows = np.array([numbers(count, dtype, rank) for rank in range(comm.size)])
            for op, want in (("sum", rows.sum(0)), ("max", rows.max(0)), ("min", rows.min(0))):
                array = numbers(count, dtype, comm.rank)
                done(comm.all_reduce(array, op))
                assert array.dtype == dtype and np.array_equal(array, want)
    square = np.full((2, 3), comm.rank + 1.0)
    done(comm.all_reduce(square))
    assert (square == comm.size * (comm.size + 1) / 2).all()


@check
def bfloat16_is_summed(comm: Communicator) -> None:
    """By buckets of any size and in place; small integers, which it holds exactly."""
    for count in COUNTS:
        rows = [numbers(count, "f4", rank).astype(bfloat16) for rank in range(comm.size)]
        want = sum(row.astype("f4") for row in rows)
        bucket = comm.bucket(count, bfloat16)
        for _ in range(2):
            put(bucket, rows[comm.rank])
            bucket.start()
            done(bucket)
            assert got(bucket).dtype == bfloat16 and np.array_equal(got(bucket), want)
        bucket.close()
    if type(comm).__name__ in ("MpiCommunicator", "LocalCommunicator"):
        array = rows[comm.rank].copy()
        done(comm.all_reduce(array))
        assert np.array_equal(array, want)


@check
def broadcast_from_every_root(comm: Communicator) -> None:
    """Everyone gets the root's array, and the root's may be read-only."""
    for root in range(comm.size):
        for count in COUNTS:
            array = numbers(count, "f4", comm.rank)
            array.flags.writeable = comm.rank != root
            done(comm.broadcast(array, root))
            assert np.array_equal(array, numbers(count, "f4", root))


@check
def rows_of_all_ranks_are_gathered(comm: Communicator) -> None:
    """Also where some or all have none, and rows of several axes."""
    for rows in ([r % 3 for r in range(comm.size)], [0] * comm.size, [5] * comm.size):
        for shape, dtype in (((), "i8"), ((3, 2), "f4")):
            whole = numbers(sum(rows) * int(np.prod(shape)), dtype, 1).reshape(sum(rows), *shape)
            at = sum(rows[: comm.rank])
            mine = np.ascontiguousarray(whole[at : at + rows[comm.rank]])
            out = np.zeros_like(whole)
            done(comm.all_gather(mine, out, rows))
            assert np.array_equal(out, whole)
    wholes = [np.zeros((comm.size, 2), "i4") for _ in range(3)]
    mine = [np.full((1, 2), 10 * i + comm.rank, "i4") for i in range(3)]
    each = [1] * comm.size
    at_once = [comm.all_gather(*pair, each) for pair in zip(mine, wholes, strict=True)]
    done(*(reversed(at_once) if comm.rank % 2 else at_once))
    for i, whole in enumerate(wholes):
        assert whole[:, 0].tolist() == [10 * i + rank for rank in range(comm.size)]
    with pytest.raises(CommError, match="cannot be gathered"):
        comm.all_gather(np.zeros((2, 3)), np.zeros((1, 3)), [1] * comm.size)


@check
def a_barrier_holds(comm: Communicator) -> None:
    """Nobody passes before all have come."""
    if comm.size > 1 and comm.rank == 0:
        for other in range(1, comm.size):
            done(comm.recv(np.zeros(1), other, 3))
        done(comm.barrier())
    elif comm.size > 1:
        barrier = comm.barrier()
        assert not any(barrier.test() for _ in range(50))
        done(comm.send(np.zeros(1), 0, 3), barrier)


@check
def text_is_gathered_and_spread(comm: Communicator) -> None:
    """Strings of any length, also empty and beyond ASCII."""
    text = "ä" * comm.rank
    for root in range(comm.size):
        rows = comm.gather_text(text, root)
        assert rows == (["ä" * rank for rank in range(comm.size)] if comm.rank == root else None)
        told = comm.broadcast_text(f"from {comm.rank} ö" if comm.rank == root else None, root)
        assert told == f"from {root} ö"
    assert comm.all_gather_text(text) == ["ä" * rank for rank in range(comm.size)]


@check
def split_renumbers(comm: Communicator) -> None:
    """Ranks count in the order given; messages of parent and part do not meet."""
    ranks = list(reversed(range(comm.size)))[: max(1, comm.size - 1)]
    part = comm.split(ranks)
    assert (part is None) == (comm.rank not in ranks)
    if part is not None:
        assert (part.rank, part.size) == (ranks.index(comm.rank), len(ranks))
        assert part.hosts == tuple(comm.hosts[rank] for rank in ranks)
        one, two = np.zeros(1), np.zeros(1)
        here, there = comm.recv(one, comm.rank, 8), part.recv(two, part.rank, 8)
        sends = part.send(np.full(1, 2.0), part.rank, 8), comm.send(np.full(1, 1.0), comm.rank, 8)
        done(here, there, *sends)
        assert (one[0], two[0]) == (1, 2)
        total = np.array([comm.rank])
        done(part.all_reduce(total))
        assert total[0] == sum(ranks)
        bucket = part.bucket(10, np.dtype("f4"))
        put(bucket, comm.rank)
        bucket.start()
        done(bucket)
        assert (got(bucket) == sum(ranks)).all()
        before = comm.traffic.bytes[comm.rank, 31]
        done(part.recv(one, part.rank, 31), part.send(two, part.rank, 31))
        assert comm.traffic.bytes[comm.rank, 31] == before + 8
        bucket.close()
        part.close()
    with pytest.raises(CommError, match="distinct"):
        comm.split([0, 0])


@check
def traffic_is_counted(comm: Communicator) -> None:
    """Bytes and messages by destination and tag, counted by the sender only."""
    traffic, after = comm.traffic, (comm.rank + 1) % comm.size
    messages, total = traffic.messages[after, 50], traffic.total_bytes
    channel, into = comm.send_channel(np.zeros(10), after, 50), np.zeros(10)
    for _ in range(2):
        channel.start()
        done(comm.recv(into, (comm.rank - 1) % comm.size, 50), channel)
    assert traffic.messages[after, 50] == messages + 2
    assert traffic.total_bytes == total + 160
    channel.close()


@check
def buckets_sum(comm: Communicator) -> None:
    """Every dtype and count, used again and again, with only the last rank's part changing."""
    for dtype in DTYPES:
        for count in COUNTS:
            bucket = comm.bucket(count, np.dtype(dtype))
            assert bucket.input.dtype == bucket.output.dtype == dtype
            assert bucket.input.shape == bucket.output.shape == (count,)
            for step in range(3):
                put(bucket, numbers(count, dtype, comm.rank + step))
                bucket.start()
                done(bucket)
                want = sum(numbers(count, dtype, rank + step) for rank in range(comm.size))
                assert np.array_equal(got(bucket), want) and bucket.test()
            if type(bucket.output) is np.ndarray:
                with pytest.raises(ValueError, match="read-only"):
                    bucket.output[...] = 0
            bucket.close()


@check
def buckets_overlap(comm: Communicator) -> None:
    """Several in flight at once, tested in another order on each rank."""
    counts = (100_000, 3, 70_001, 9_000)
    buckets = [comm.bucket(count, np.dtype("f8")) for count in counts]
    order = random.Random(comm.rank)
    for step in range(5):
        for i, bucket in enumerate(buckets):
            put(bucket, comm.rank + 10 * i + step)
            bucket.start()
        left = list(buckets)
        while left:
            order.shuffle(left)
            done(left.pop())
        for i, bucket in enumerate(buckets):
            want = sum(rank + 10 * i + step for rank in range(comm.size))
            assert (got(bucket) == want).all()
    for bucket in [*buckets, *buckets]:  # closing twice does nothing
        bucket.close()


@check
def a_bucket_in_flight_cannot_start(comm: Communicator) -> None:
    """Starting a bucket twice is an error that leaves the sum alone."""
    if comm.size == 1:
        return
    bucket = comm.bucket(50_000, np.dtype("i8"))
    put(bucket, 1)
    if comm.rank == 0:
        bucket.start()
        assert not bucket.test()
        with pytest.raises(CommError, match="again"):
            bucket.start()
        done(*[comm.send(np.zeros(0), rank, 60) for rank in range(1, comm.size)])
    else:
        done(comm.recv(np.zeros(0), 0, 60))
        bucket.start()
    done(bucket)
    assert (got(bucket) == comm.size).all()
    bucket.close()
