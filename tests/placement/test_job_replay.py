"""Replays of whole jobs against exact distributions, and groups against every rank by itself."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time

import numpy as np
import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement.durations import Seconds, total
from hpcflow.placement.job_replay import JobSettings, JobTimes, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.noise_statistics import draw_order_statistics, group_sizes, noise_factor
from hpcflow.placement.step_template import StepTemplate, TemplateTask

WORKER, SERVER = "/job:worker/task:0", "/job:ps/task:0"
QUIET = JobSettings(sigma=0.0, steps=10)
NETWORK = Network(bandwidth=1e9, latency=1e-5)


def of(seconds: float) -> Seconds:
    return Seconds(seconds, seconds / 2, seconds * 2)


def with_sums(replicas: int, compute: float = 1.0, joint: float = 0.25) -> StepTemplate:
    """Compute, a sum over all replicas, an update."""
    tasks = (
        TemplateTask(WORKER, (), of(compute), "cpu:0"),
        TemplateTask(WORKER, (0,), of(joint), is_collective=True),
        TemplateTask(WORKER, (1,), of(0.5), "cpu:0"),
    )
    return StepTemplate(tasks, (0, 1, 2), replicas)


def with_servers(replicas: int, served: float, nbytes: float = 0.0) -> StepTemplate:
    """Compute for a second, send a gradient, and go on when the server has applied it."""
    tasks = (
        TemplateTask(WORKER, (), of(1.0), "cpu:0"),
        TemplateTask(WORKER, (0,), to=SERVER, nbytes=nbytes),
        TemplateTask(SERVER, (1,), of(served), "cpu:0"),
        TemplateTask(SERVER, (2,), to=WORKER),
    )
    return StepTemplate(tasks, (0, 3), replicas, {SERVER: 1}, ticks=(2,))


def with_updates(replicas: int, needed: int) -> StepTemplate:
    """Compute after the last update, and send a gradient; the server waits for `needed`."""
    tasks = (
        TemplateTask(SERVER, (), gate="update"),
        TemplateTask(SERVER, (0,), to=WORKER),
        TemplateTask(WORKER, (1,), of(1.0), "cpu:0"),
        TemplateTask(WORKER, (2,), to=SERVER),
    )
    update = (TemplateTask(SERVER, (), of(1e-6), "cpu:0"),)
    return StepTemplate(tasks, (2,), replicas, {SERVER: 1}, update, (3,), needed)


def replayed(
    template: StepTemplate, settings: JobSettings = QUIET, network: Network = NETWORK
) -> JobTimes:
    return replay_job(template, network, [ReplicaClass(template.replicas)], settings)


def test_a_synchronous_step_without_noise_is_the_sum_of_its_parts() -> None:
    times = replayed(with_sums(8))
    assert times.quantile(0.5) == pytest.approx(1.75)
    assert times.steps_per_second == pytest.approx(8 / 1.75)
    assert times.busy[f"{WORKER}/cpu:0"] == pytest.approx(1.5 / 1.75)
    high = replayed(with_sums(8), dataclasses.replace(QUIET, bound="high"))
    assert high.quantile(0.5) == pytest.approx(3.25)  # a sum takes the same time


def test_sums_pass_the_network_in_order_and_gathers_beside_them() -> None:
    """By hand: two sums of 1 s and a gather of 2 s all start at 1, and the latencies follow.

    The sums, one after the other, have half of the network, and the gather has the other half. So
    the sums have passed at 3 and 5, and the gather at 5. They end at 3.5, 5.5 and 5.25.
    """

    sums = [
        TemplateTask(WORKER, (0,), of(1.0), is_collective=True, delay=0.5),
        TemplateTask(WORKER, (0,), of(1.0), is_collective=True, delay=0.5),
    ]
    gather = TemplateTask(WORKER, (0,), of(2.0), is_collective=True, delay=0.25, in_order=False)
    tasks = (TemplateTask(WORKER, (), of(1.0), "cpu:0"), *sums, gather)
    times = replayed(StepTemplate(tasks, (1, 2, 3), 4))
    assert times.quantile(0.5) == pytest.approx(5.5)
    assert times.busy["collectives"] == pytest.approx(4 / 5.5, rel=0.01)
    alone = tuple(dataclasses.replace(task, after=()) for task in sums)
    assert replayed(StepTemplate(alone, (0, 1), 4)).quantile(0.5) == pytest.approx(2.5)


def test_a_slow_rank_makes_synchronous_steps_slow_and_asynchronous_ones_not() -> None:
    classes = [ReplicaClass(15), ReplicaClass(1, 3.0)]
    joint = replay_job(with_sums(16), NETWORK, classes, QUIET)
    assert joint.quantile(0.5) == pytest.approx(3 * 1.5 + 0.25)
    alone = replay_job(with_servers(16, 1e-6), NETWORK, classes, QUIET)
    assert alone.quantile(0.5) == pytest.approx(1.0, rel=1e-3)
    assert alone.quantile(0.99) == pytest.approx(3.0, rel=1e-3)
    assert alone.steps_per_second == pytest.approx(15 + 1 / 3, rel=1e-3)


@pytest.mark.parametrize("workers", [4, 8, 12])
def test_two_values_that_a_server_sends_at_once_take_as_long_as_one_of_their_size(
    workers: int,
) -> None:
    """The second value follows while the first is on its way, on the same connection.

    A worker that is owed two values must not get more of the port than one that is owed one. It
    would catch up with the worker before it, and all would come and leave together ever after.
    """
    nbytes, rate = 5e6, 1e8

    def times(*sent: TemplateTask) -> JobTimes:
        ends = tuple(range(1, 1 + len(sent)))
        work = TemplateTask(WORKER, ends, of(1.0), "cpu:0")
        tasks = (TemplateTask(WORKER, to=SERVER), *sent, work)
        template = StepTemplate(tasks, (len(sent) + 1,), workers, {SERVER: 1})
        settings = JobSettings(sigma=0.02, steps=100)
        return replayed(template, settings, Network(bandwidth=rate, latency=0.0))

    first = TemplateTask(SERVER, (0,), to=WORKER, nbytes=nbytes)
    reads = TemplateTask(SERVER, (0,), of(0.03))  # shorter than the first value takes
    second = TemplateTask(SERVER, (2,), to=WORKER, nbytes=nbytes)
    both = TemplateTask(SERVER, (0,), to=WORKER, nbytes=2 * nbytes)
    two, one = times(first, reads, second), times(both, reads)
    exact = slice(0, 15)  # rounding grows from step to step
    assert two.steps[:, exact] == pytest.approx(one.steps[:, exact], rel=1e-4)
    assert two.quantile(0.5) == pytest.approx(one.quantile(0.5), rel=0.1)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_bounded_staleness_ties_all_to_the_slowest(ahead: int) -> None:
    template = with_servers(4, 1e-6)
    tasks = (TemplateTask(SERVER, (), gate="clock"), *(
        dataclasses.replace(task, after=tuple(k + 1 for k in task.after) or (0,))
        for task in template.tasks
    ))  # fmt: skip
    template = dataclasses.replace(template, tasks=tasks, ends=(1, 4), ticks=(3,), ahead=ahead)
    classes = [ReplicaClass(3), ReplicaClass(1, 3.0)]
    settings = dataclasses.replace(QUIET, steps=60)
    times = replay_job(template, NETWORK, classes, settings)
    assert times.steps[:, -20:].mean() == pytest.approx(3.0, rel=1e-2)
    free = replay_job(dataclasses.replace(template, ahead=None), NETWORK, classes, settings)
    assert free.steps_per_second > times.steps_per_second * 2


def test_backup_workers_hide_a_slow_rank_and_cut_the_tail() -> None:
    classes = [ReplicaClass(15), ReplicaClass(1, 3.0)]
    all_of_them = replay_job(with_updates(16, 16), NETWORK, classes, QUIET)
    first_15 = replay_job(with_updates(16, 15), NETWORK, classes, QUIET)
    assert all_of_them.quantile(0.5) == pytest.approx(3.0, rel=1e-3)
    assert first_15.quantile(0.5) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("backups", [0, 1, 4, 8])
def test_the_step_of_backup_workers_is_the_order_statistic_of_the_noise(backups: int) -> None:
    ranks, sigma = 256, 0.4
    settings = JobSettings(sigma=sigma, groups=64, steps=400, seed=3)
    times = replayed(with_updates(ranks, ranks - backups), settings)
    draws = np.random.default_rng(9).beta(ranks - backups, backups + 1, 20_000)
    exact = [noise_factor(sigma, q) for q in np.quantile(draws, [0.25, 0.5, 0.75])]
    # the step of a group that has been on time begins and ends with an update
    steps = times.steps[0]
    assert np.quantile(steps, [0.25, 0.5, 0.75]) == pytest.approx(exact, rel=0.05)


def test_the_maximum_over_equal_ranks_has_its_exact_distribution() -> None:
    ranks, sigma = 4096, 0.2
    settings = JobSettings(sigma=sigma, groups=16, steps=800)
    template = StepTemplate(with_sums(ranks).tasks[:2], (0, 1), ranks)
    steps = replayed(template, settings).steps[0]
    exact = [noise_factor(sigma, share ** (1 / ranks)) + 0.25 for share in (0.25, 0.5, 0.75)]
    assert np.quantile(steps, [0.25, 0.5, 0.75]) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("make", [with_sums, lambda n: with_updates(n, n - 4)])
def test_groups_of_ranks_are_as_fast_as_every_rank_by_itself(make) -> None:
    template = make(256)
    times = [
        replayed(template, JobSettings(sigma=0.1, groups=groups, steps=150)) for groups in (16, 256)
    ]
    few, every = (one.quantile(0.5) for one in times)
    assert few == pytest.approx(every, rel=0.02)
    assert times[0].steps_per_second == pytest.approx(times[1].steps_per_second, rel=0.02)


@pytest.mark.parametrize("served", [1e-4, 3e-3, 8e-3])
def test_asynchronous_groups_are_as_fast_as_every_rank_by_itself(served: float) -> None:
    """A server that is little, half and more than fully used by 256 workers."""
    template = with_servers(256, served)
    few, every = (
        replayed(template, JobSettings(sigma=0.1, groups=groups, steps=40)) for groups in (64, 256)
    )
    assert few.steps_per_second == pytest.approx(every.steps_per_second, rel=0.05)
    if served * 256 > 1:
        assert every.steps_per_second == pytest.approx(1 / served, rel=0.02)
        assert few.busy[f"{SERVER}/cpu:0"] > 0.9


def test_gradients_of_all_workers_pass_the_port_of_the_server() -> None:
    """64 workers send 1e8 bytes each at once: 6.4 s at 1e9 bytes a second."""
    tasks = (
        *with_sums(64).tasks[:2],
        TemplateTask(WORKER, (1,), to=SERVER, nbytes=1e8),
        TemplateTask(SERVER, (2,), to=WORKER),
    )
    template = StepTemplate(tasks, (3,), 64, {SERVER: 1})
    for groups in (8, 64):
        times = replayed(template, dataclasses.replace(QUIET, groups=groups))
        assert times.quantile(0.5) == pytest.approx(1.25 + 6.4, rel=1e-3)
    two = dataclasses.replace(template, servers={SERVER: 2})  # each worker sends to two
    assert replayed(two).quantile(0.5) == pytest.approx(1.25 + 6.4, rel=1e-3)
    eight = dataclasses.replace(NETWORK, ranks_per_node=8)
    assert replayed(template, network=eight).quantile(0.5) == pytest.approx(1.25 + 6.4, rel=1e-3)


def test_ranks_of_a_node_share_its_port() -> None:
    """8 workers of a node send to a worker task of their replica on another node."""
    other = "/job:worker/task:1"
    tasks = (
        TemplateTask(WORKER, (), of(1.0), "cpu:0"),
        TemplateTask(WORKER, (0,), to=other, nbytes=1e9),
    )
    template = StepTemplate(tasks, (1,), 1)
    apart = replayed(template)
    assert apart.quantile(0.5) == pytest.approx(2.0, rel=1e-3)
    together = replayed(template, network=dataclasses.replace(NETWORK, ranks_per_node=2))
    assert together.quantile(0.5) == pytest.approx(1.05, rel=1e-3)  # through the memory


def test_more_ranks_than_cores_compute_more_slowly() -> None:
    crowded = dataclasses.replace(NETWORK, ranks_per_node=8, cores=2)
    assert replayed(with_sums(8), network=crowded).quantile(0.5) == pytest.approx(4 * 1.5 + 0.25)


@pytest.mark.parametrize("seed", range(10))
def test_more_bandwidth_is_never_slower_and_more_latency_never_faster(seed: int) -> None:
    """Of asynchronous steps up to the chance of who meets whom at the server."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    joint, free = with_updates(size, size), with_servers(size, 1e-3, float(rng.uniform(1e6, 1e9)))
    first, last = joint.tasks[:3], dataclasses.replace(joint.tasks[3], nbytes=free.tasks[1].nbytes)
    joint = dataclasses.replace(joint, tasks=(*first, last))
    settings = JobSettings(sigma=0.0, groups=8, steps=10, seed=seed)
    for template, slack in ((joint, 1e-9), (free, 0.03)):
        rates = [
            replayed(template, settings, Network(bandwidth=rate, latency=1e-5)).steps_per_second
            for rate in (1e8, 1e9, 1e10)
        ]
        late = [
            replayed(template, settings, Network(bandwidth=1e9, latency=time)).steps_per_second
            for time in (0.1, 1e-3, 1e-6)
        ]
        for slower, faster in (*itertools.pairwise(rates), *itertools.pairwise(late)):
            assert faster >= slower * (1 - slack)


def test_draws_depend_on_the_seed_alone() -> None:
    template = with_servers(40, 1e-3)
    times = [replayed(template, JobSettings(seed=seed)).steps for seed in (1, 1, 2)]
    assert (times[0] == times[1]).all() and (times[0] != times[2]).any()


@pytest.mark.slow
@pytest.mark.parametrize("groups", [64, 1024])
@pytest.mark.parametrize("sync", [True, False])
def test_the_time_of_a_replay_is_recorded(groups, sync, record_property) -> None:
    """65,536 ranks and 4 servers; the report of pytest has the time, which no test asserts."""
    servers = [f"/job:ps/task:{i}" for i in range(4)]
    tasks = [TemplateTask(WORKER, (), of(1.0), "cpu:0")]
    for name in servers:
        tasks += [
            TemplateTask(WORKER, (0,), to=name, nbytes=1e5),
            TemplateTask(name, (len(tasks),), of(1e-6), "cpu:0"),
            TemplateTask(name, (len(tasks) + 1,), to=WORKER, nbytes=1e5),
        ]
    counts = dict.fromkeys(servers, 1)
    template = StepTemplate(tuple(tasks), (0, 3, 6, 9, 12), 65_536, counts)
    if sync:
        update = (TemplateTask(servers[0], (), of(1e-3), "cpu:0"),)
        first = (dataclasses.replace(tasks[0], gate="update"), *tasks[1:])
        changes = {"tasks": first, "update": update, "ready": (2, 5, 8, 11), "needed": 65_536}
        template = dataclasses.replace(template, **changes)
    begin = time.process_time()
    times = replayed(template, JobSettings(groups=groups))
    record_property("seconds of CPU", time.process_time() - begin)
    # a server receives and sends 6.55e9 bytes in a step; a worker sends between both
    step = 65_536 / times.steps_per_second
    assert 1.0 * sync + 6.5536 * 0.99 < step < 1.3 + 2 * 6.5536 * 1.05


@pytest.mark.parametrize("make", [with_sums, lambda n: with_servers(n, 1e-7)])
def test_the_size_of_a_replay_does_not_grow_with_the_number_of_ranks(make) -> None:
    for groups in (64, 1024):
        times = replayed(make(65_536), JobSettings(groups=groups))
        assert times.steps.shape[0] == groups
        assert times.weights.sum() == 65_536


def test_order_statistics_are_jointly_those_of_sorted_numbers() -> None:
    rng, ends = np.random.default_rng(4), [3, 10, 19, 20]
    drawn = np.array([draw_order_statistics(ends, rng) for _ in range(20_000)])
    direct = np.sort(rng.random((20_000, 20)), axis=1)[:, [end - 1 for end in ends]]
    assert drawn.mean(axis=0) == pytest.approx(direct.mean(axis=0), abs=0.005)
    assert np.cov(drawn.T) == pytest.approx(np.cov(direct.T), abs=0.002)
    with pytest.raises(PlacementError, match="ascend"):
        draw_order_statistics([2, 2], rng)


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (5, 8), (8, 8), (9, 8), (512, 64), (7, 1)])
def test_groups_have_all_ranks_and_the_slowest_by_themselves(count: int, groups: int) -> None:
    sizes = group_sizes(count, groups)
    assert sum(sizes) == count and len(sizes) == min(count, groups) and min(sizes) >= 1
    single = groups // 2
    assert all(size == 1 for size in sizes[len(sizes) - single :])
    rest = sizes[: len(sizes) - single]
    assert max(rest) - min(rest) <= 1
    with pytest.raises(PlacementError, match="groups"):
        group_sizes(count, 0)


def test_noise_has_median_one_and_its_sigma() -> None:
    assert noise_factor(0.3, 0.5) == pytest.approx(1.0)
    normal = statistics.NormalDist()
    assert noise_factor(0.3, normal.cdf(1.0)) == pytest.approx(np.exp(0.3))
    assert total([of(1.0), of(2.0)]) == Seconds(3.0, 1.5, 6.0)


def test_replicas_that_are_in_no_class_are_an_error() -> None:
    with pytest.raises(PlacementError, match="3 replicas in classes of 4"):
        replay_job(with_sums(4), NETWORK, [ReplicaClass(3)], QUIET)
