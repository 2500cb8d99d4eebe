"""How many files a checkpoint has: as its bytes and the nodes say, whatever the number of ranks."""

from __future__ import annotations

import collections
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.checkpoint.checkpoint_layout import HeldRows, Slab
from hpcflow.checkpoint.row_partitioning import choose_writers, rows_to_write
from hpcflow.errors import HpcflowError
from hpcflow.plan.distribution.task_assignment import assign_tasks
from hpcflow.settings import Settings
from tests.checkpoint.jobs import equal, load_some, variables
from tests.runtime.ranks import run_ranks

MIB = 1 << 20
A_NODE = 64  # ranks
PLACINGS = {
    "by node": lambda rank, nodes: rank // A_NODE,
    "in turn": lambda rank, nodes: rank % nodes,
    "uneven": lambda rank, nodes: rank // A_NODE if rank % 3 else 0,
}


def parts(
    ranks: int, nbytes: int, placing: str = "by node", tasks: int = 1, **settings: Any
) -> dict[int, list[Slab]]:
    """By rank what it writes of `nbytes`, in a job of so many ranks."""
    nodes = -(-ranks // A_NODE)
    hosts = tuple(f"node{PLACINGS[placing](rank, nodes)}" for rank in range(ranks))
    context: Any = SimpleNamespace(
        hosts=hosts,
        roles=assign_tasks(hosts, 0, tasks),
        settings=Settings(**settings),
        cluster=SimpleNamespace(mode="collective"),
    )
    rows = nbytes // 4096
    found = [HeldRows("w", "<f4", (rows, 1024), 0, rows, 0)]
    duties = {r: rows_to_write(context, r, found, (), r // tasks, r == 0) for r in range(ranks)}
    chosen = {rank: duty for rank, duty in duties.items() if duty}
    for task in range(tasks):
        mine = sorted((s.start, s.stop) for r, d in chosen.items() if r % tasks == task for s in d)
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == rows
    counts = collections.Counter(hosts[rank] for rank in chosen)
    assert max(counts.values()) <= max(context.settings.writers_per_node, tasks)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, placing", [(2, "by node"), (4096, "by node"), (256, "in turn"), (1024, "uneven")]
)
def test_a_small_checkpoint_has_one_part_on_any_number_of_ranks(ranks: int, placing: str) -> None:
    assert list(parts(ranks, 100 * MIB, placing)) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, placing", [(256, "by node"), (4096, "by node"), (1024, "in turn"), (512, "uneven")]
)
def test_a_large_one_is_written_by_a_few_ranks_of_each_node(ranks: int, placing: str) -> None:
    chosen = parts(ranks, 400_000 * MIB, placing)
    nodes = {PLACINGS[placing](rank, ranks // A_NODE) for rank in chosen}
    assert len(nodes) == ranks // A_NODE and len(chosen) == 4 * len(nodes)
    assert len(parts(256, 400_000 * MIB, placing, writers_per_node=9)) == 9 * 4


def test_between_them_each_part_has_so_many_bytes() -> None:
    chosen = parts(1024, 1500 * MIB)
    sizes = [4096 * sum(slab.stop - slab.start for slab in duty) for duty in chosen.values()]
    assert len(sizes) == 1500 // 64 and min(sizes) >= 64 * MIB - 4096 and max(sizes) < 67 * MIB
    assert len({rank // A_NODE for rank in chosen}) == 16  # and each node has its share of them
    assert len(parts(1024, 1500 * MIB, part_bytes=500 * MIB)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [2, 8, 64])
def test_tasks_of_replicas_share_the_writers_of_a_node(tasks: int) -> None:
    for ranks in (256, 2048):
        chosen = parts(ranks, 400_000 * MIB, tasks=tasks)
        assert len(chosen) == max(4 * ranks // A_NODE, tasks)
    assert len(parts(2048, MIB, tasks=tasks)) == tasks  # each task has variables of its own


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(0, 5000),
    st.integers(1, 300),
    st.sampled_from([0.25, 0.5, 1, 2, 7]),
    st.integers(0, 7),
)
def test_anywhere(
    nodes: list[int], nbytes: int, part_bytes: int, per_node: float, first: int
) -> None:
    hosts = [f"node{node}" for node in nodes]
    chosen = choose_writers(hosts, nbytes, part_bytes, per_node, first)
    assert chosen and chosen == sorted(set(chosen)) and set(chosen) <= set(range(len(hosts)))
    assert len(chosen) == 1 or len(chosen) * part_bytes <= nbytes
    assert len(chosen) <= max(1, per_node * len(set(hosts)))
    counts = collections.Counter(hosts[replica] for replica in chosen)
    assert max(counts.values()) <= max(1, per_node)
    some = [counts[host] for host in set(hosts) if counts[host] < hosts.count(host)]
    assert not some or max(counts.values()) - min(some) <= 1  # no node has two more than another


def files(where: Path, ranks: int, **settings: Any) -> tuple[list[str], dict[str, np.ndarray]]:
    """The files of a checkpoint that ranks have written, and the values in it."""

    def body(context: Any) -> dict[str, np.ndarray]:
        made = variables(7)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver(made, form="sharded").save(session, where, 1)
        return session.run(made)  # type: ignore[no-any-return]

    values = run_ranks(ranks, body, **settings)[0]
    return sorted(path.name for path in (where / "step-1").iterdir()), values


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, count",
    [
        ({"part_bytes": Settings.part_bytes}, 1),
        ({"part_bytes": 100_000}, 4),
        ({"part_bytes": 100_000, "writers_per_node": 2}, 2),
        ({"part_bytes": 100_000, "writers_per_node": 50}, 6),
        ({"tasks_per_replica": 2}, 2),
    ],
)
def test_on_disk(tmp_path: Path, settings: dict[str, Any], count: int) -> None:
    names, values = files(tmp_path, 6, **settings)
    assert names[0] == "index.h5" and len(names) == 1 + count
    for ranks in (1, 3):
        assert equal(load_some(tmp_path / "step-1", ranks), values)


@pytest.mark.parametrize("name", ["part_bytes", "writers_per_node"])
def test_there_is_a_writer(name: str) -> None:
    with pytest.raises(HpcflowError, match=f"{name}=0 must be at least 1"):
        Settings.from_environ({}, **{name: 0})
