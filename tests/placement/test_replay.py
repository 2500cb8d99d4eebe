"""The discrete-event replay against schedules computed by hand and by slower simulations."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.comm.bruck_allgather import bruck_rounds
from hpcflow.errors import PlacementError
from hpcflow.placement.network import Network
from tests.placement.replay_by_tasks import Task, replay


def test_two_ranks_and_one_message() -> None:
    tasks = [
        Task(resource=0, seconds=2.0),
        Task((0,), nbytes=100.0, ports=((0, 1.0), (1, 1.0)), delay=0.5),
        Task((1,), resource=1, seconds=1.0),
    ]
    times = replay(tasks, 2, [50.0, 80.0])
    assert times.ends.tolist() == pytest.approx([2.0, 4.5, 5.5])
    assert times.resource_busy.tolist() == [2.0, 1.0]
    assert times.port_busy.tolist() == pytest.approx([2.0, 1.25])


def test_a_resource_runs_one_task_at_a_time_in_the_order_in_which_they_become_ready() -> None:
    late = Task((0,), resource=0, seconds=1.0)
    early = Task(resource=0, seconds=5.0)
    times = replay([Task(seconds=2.0), late, early, Task((2,), resource=0, seconds=1.0)], 1, [])
    assert times.ends.tolist() == [2.0, 6.0, 5.0, 7.0]


@pytest.mark.parametrize("senders", [1, 2, 7, 64])
def test_incast_takes_the_bytes_of_all_senders_through_the_port_of_the_receiver(
    senders: int,
) -> None:
    ports = [100.0] * (senders + 1)
    tasks = [
        Task(nbytes=300.0, ports=((i, 1.0), (senders, 1.0)), delay=0.25) for i in range(senders)
    ]
    explicit = replay(tasks, 0, ports)
    assert explicit.ends.tolist() == pytest.approx([senders * 300.0 / 100.0 + 0.25] * senders)
    one = Task(nbytes=300.0, ports=((0, 1.0), (1, float(senders))), delay=0.25)
    assert replay([one], 0, [100.0, 100.0]).ends[0] == pytest.approx(explicit.ends[0])


def test_messages_that_overlap_in_part_share_while_they_overlap() -> None:
    tasks = [
        Task(nbytes=100.0, ports=((0, 1.0),)),
        Task(seconds=0.5),
        Task((1,), nbytes=100.0, ports=((0, 1.0),)),
    ]
    assert replay(tasks, 0, [100.0]).ends.tolist() == pytest.approx([1.5, 0.5, 2.0])


def test_a_connection_with_three_messages_gets_no_more_than_one_with_a_single_message() -> None:
    """As TCP: each connection gets half of the port until the single message has passed."""
    many = [Task(nbytes=100.0, ports=((0, 1.0),), connection=7) for _ in range(3)]
    single = Task(nbytes=100.0, ports=((0, 1.0),), connection=8)
    ends = replay([*many, single], 0, [100.0]).ends
    assert ends.tolist() == pytest.approx([4.0, 4.0, 4.0, 2.0])


def shared_fairly(starts: list[float], sizes: list[float], weights: list[float]) -> list[float]:
    """The ends of messages in a port of 1 byte/s, by advancing from event to event."""
    left, ends, now = list(sizes), [np.inf] * len(sizes), 0.0
    while np.isinf(ends).any():
        here = [i for i, s in enumerate(starts) if s <= now and np.isinf(ends[i])]
        later = [s for s in starts if s > now]
        share = 1.0 / sum(weights[i] for i in here) if here else 0.0
        until = min([now + left[i] / share for i in here] + later)
        for i in here:
            left[i] -= (until - now) * share
            if left[i] < 1e-9:
                ends[i] = until
        now = until
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_a_port_shares_as_a_simulation_from_event_to_event(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    starts, sizes = rng.uniform(0, 10, count).tolist(), rng.uniform(0.1, 5, count).tolist()
    weights = rng.integers(1, 4, count).astype(float).tolist()
    tasks = [Task(seconds=start) for start in starts]
    tasks += [
        Task((i,), nbytes=sizes[i], ports=((0, weights[i]),)) for i in range(count)
    ]  # weights are of equal messages, each of `nbytes`
    ends = replay(tasks, 0, [1.0]).ends[count:]
    assert ends.tolist() == pytest.approx(shared_fairly(starts, sizes, weights))


@pytest.mark.parametrize(("needed", "end"), [(1.0, 1.0), (2.0, 2.0), (4.0, 3.0), (5.0, 3.0)])
def test_a_task_with_a_quorum_begins_when_the_weights_are_together(
    needed: float, end: float
) -> None:
    before = [Task(seconds=float(i)) for i in (1, 2, 3)]
    gate = Task((0, 1, 2), needed=needed, weights=(1.0, 1.0, 3.0))
    assert replay([*before, gate], 0, []).ends[3] == end


def test_tasks_that_can_never_begin_are_an_error() -> None:
    with pytest.raises(PlacementError, match="task 0 of the replay never begins"):
        replay([Task((1,)), Task((0,))], 0, [])
    with pytest.raises(PlacementError, match="task 1 of the replay never begins"):
        replay([Task(), Task((0,), needed=2.0, weights=(1.0,))], 0, [])
    with pytest.raises(PlacementError, match="bandwidth"):
        replay([], 0, [0.0])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_formula_of_a_ring_is_the_replay_of_its_messages(ranks: int) -> None:
    """Each rank sends n - 1 chunks and then n - 1 sums to the right, each after it has the last."""
    network, nbytes = Network(bandwidth=1e9, latency=3e-6), ranks * 20e3  # a ring of one part
    tasks: list[Task] = []
    for step in range(2 * (ranks - 1)):
        for rank in range(ranks):
            left = (rank - 1) % ranks
            after = ((step - 1) * ranks + left,) if step else ()
            ports = ((2 * rank, 1.0), (2 * ((rank + 1) % ranks) + 1, 1.0))
            tasks.append(Task(after, nbytes=nbytes / ranks, ports=ports, delay=network.latency))
    ends = replay(tasks, 0, [network.bandwidth] * 2 * ranks).ends
    assert network.allreduce_times(nbytes, ranks, 1).alone == pytest.approx(ends.max())


def test_an_allreduce_within_a_node_uses_no_network() -> None:
    slow, fast = (Network(bandwidth=rate, latency=1.0) for rate in (1.0, 1e9))
    assert slow.allreduce_times(1e6, 4, 4).alone == fast.allreduce_times(1e6, 4, 4).alone < 1.0
    assert slow.allreduce_times(1e6, 1, 4).alone == 0.0
    assert fast.allreduce_times(1e6, 8, 4).alone > 2.0


def test_fast_networks_take_a_number_of_messages_that_grows_with_the_logarithm() -> None:
    network = Network(bandwidth=1e10, latency=1.0)
    times = [network.allreduce_times(0.0, ranks, 1).alone for ranks in (2, 4, 1024)]
    assert times == [2.0, 4.0, 20.0]


def test_all_ranks_of_a_node_receive_gathered_rows_through_its_port() -> None:
    network = Network(bandwidth=100.0, latency=0.0)
    assert network.gather_seconds(50.0, 4, 1) == pytest.approx(3 * 50 / 100)
    assert network.gather_seconds(50.0, 8, 4) == pytest.approx(4 * 50 / 100)


@pytest.mark.parametrize("ranks", [2, 3, 8, 12, 16])
def test_rows_take_the_rounds_of_their_allgather_and_two_trees_of_their_counts(ranks: int) -> None:
    """A round begins when the last one has ended; the counts go up a binomial tree and down."""
    network = Network(bandwidth=100.0, latency=2.0)
    rounds = [count for _, _, count in bruck_rounds(0, ranks)]
    tree = max(bin(rank).count("1") for rank in range(1, 1 << (ranks - 1).bit_length()))
    wanted = 2 * tree * 2.0 + sum(2.0 + count * 50 / 100 for count in rounds)
    assert network.gather_seconds(50.0, ranks, 1) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "field", ["bandwidth", "ranks_per_node", "latency", "memory_bandwidth", "cores"]
)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_network_refuses_values_that_are_not_positive(field: str, value: float) -> None:
    with pytest.raises(PlacementError, match=field):
        Network(**{field: value})
