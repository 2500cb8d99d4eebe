"""`hpcflow doctor --topology`: what the file says of made facts, and of real ranks here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.cli.measured_topology import topology_data, write_topology
from hpcflow.doctor.rank_facts import SLURM, JobFacts, NetworkLink, RackUplink, RankFacts
from hpcflow.doctor.rank_inspection import memory_bytes
from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.placement.topology import read_topology, topology_of

ROOT = Path(__file__).parents[1]
INSIDE_A_JOB = launcher_detection.detect_launcher() is not None
GB = 10**9


def facts(*nodes: str, **changes: dict[int, object]) -> list[RankFacts]:
    """Ranks on these nodes; `changes` are values of fields by rank."""
    ranks = [
        RankFacts(rank=r, node=node, gemm=4e10, copies=1e10, memory=64 * GB)
        for r, node in enumerate(nodes)
    ]
    for name, values in changes.items():
        for rank, value in values.items():
            setattr(ranks[rank], name, value)
    return ranks


def test_equal_nodes_are_written_once_and_slow_ranks_and_ports_are_named(tmp_path):
    """Node c has a port of a fifth, and rank 5 computes and copies at half the rate."""
    slow = {"gemm": {5: 2e10}, "copies": {5: 5e9}}
    names = {name: "s0.s1" for name in "abc"} | {"d": "s0.s2"}
    nodes = [node for node in "abcd" for _ in range(2)]
    switches = {rank: names[node] for rank, node in enumerate(nodes)}
    rates = {"ab": 1.02e9, "ac": 2e8, "ad": 0.99e9, "bc": 2e8, "bd": 1e9, "cd": 2e8}
    links = [NetworkLink(*pair, 1e-5, rate, 1e-3) for pair, rate in rates.items()]
    local = [NetworkLink(node, node, 1e-6, 1e10, 1e-4) for node in "abcd"]
    job = JobFacts(facts(*nodes, switches=switches, **slow), links, local)
    file = tmp_path / "topology.json"
    told = write_topology(str(file), job)
    assert "8 ranks, 4 nodes and 2 racks" in told and "uplinks are not measured" in told
    first, second = json.loads(file.read_text())["racks"]
    assert [node.get("count", 1) for node in first["nodes"]] == [2, 1] and len(second["nodes"]) == 1
    topology = read_topology(file)
    assert topology.nodes == (0, 0, 1, 1, 2, 2, 3, 3) and topology.racks == (0, 0, 0, 1)
    assert topology.speeds == (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0)
    assert topology.ports == (1e9, 1e9, 2e8, 1e9)
    assert topology.memory == (32 * GB,) * 8 and topology.gpus == (0,) * 8
    assert (topology.latency, topology.memory_latency) == (1e-5, 1e-6)
    assert topology.memory_bandwidth == 1e10


def test_narrow_uplinks_are_written_by_their_slower_direction(tmp_path):
    nodes = [f"n{i}" for i in range(8)]
    names = ["a", "a", "b", "b", "c", "c", "d\x1b[2J", "d\x1b[2J"]
    uplinks = {
        "a": RackUplink(5.3e8, 5e8, 2e9),
        "b": RackUplink(5.2e8, 5.1e8, 2e9),  # within 10 %: equal to a
        "c": RackUplink(1.9e9, 2.1e9, 2e9),  # as wide as its ports
        names[6]: RackUplink(1e9, 2e8, 2e9),
    }
    racks = dict(zip(nodes, names, strict=True))
    job = JobFacts(facts(*nodes), racks=racks, racks_from=SLURM, uplinks=uplinks)
    told = write_topology(str(tmp_path / "topology.json"), job)
    assert read_topology(tmp_path / "topology.json").uplinks == (5e8, 5e8, math.inf, 2e8)
    assert "racks are from SLURM_TOPOLOGY_ADDR; uplinks: a 530 MB/s out, 500 MB/s in" in told
    assert "2 GB/s" in told and " c " not in told and told.isprintable()
    job.uplinks = {"c": uplinks["c"]}
    told = write_topology(str(tmp_path / "topology.json"), job)
    assert told.endswith("no uplink is narrower than the ports of its rack")
    assert read_topology(tmp_path / "topology.json").uplinks == (math.inf,) * 4


def test_noise_is_no_difference_and_one_rank_with_a_gpu_each_is_told():
    noise = {0: 3.8e10, 1: 4.1e10, 2: 4.3e10}
    data = topology_data(
        JobFacts(facts("a", "b", "c", gemm=noise, gpu=dict.fromkeys(range(3), "A")))
    )
    (rack,) = data["racks"]
    assert rack["nodes"] == [
        {"count": 3, "ranks": 1, "speed": 1.0, "memory_bytes": 64 * GB, "gpus": 1}
    ]
    assert topology_of(data).size == 3


def test_ranks_that_go_round_the_nodes_are_refused():
    with pytest.raises(LaunchError, match="node by node"):
        topology_data(JobFacts(facts("a", "b", "a", "b")))


def test_memory_is_that_of_the_control_group(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7/step_0\n")
    groups = tmp_path / "sys/fs/cgroup/slurm/job_7/step_0"
    groups.mkdir(parents=True)
    (groups / "memory.max").write_text("max\n")
    assert memory_bytes(str(tmp_path)) == memory_bytes(str(tmp_path / "none"))
    (groups.parent / "memory.max").write_text("123000000\n")
    assert memory_bytes(str(tmp_path)) == 123000000


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcflow", "doctor", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
@pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs")
@pytest.mark.parametrize("ranks", [2, 3])
def test_real_ranks_of_this_machine(tmp_path, ranks):
    file = tmp_path / "topology.json"
    done = doctor("-n", str(ranks), "--topology", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ranks"]) == ranks
    assert str(file) in done.stderr and "one node has no uplink" in done.stderr
    topology = read_topology(file)
    assert topology.nodes == (0,) * ranks and topology.racks == (0,)
    assert sum(topology.memory) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1e6 < topology.memory_bandwidth < 1e12
    assert all(0.02 < speed < 50 for speed in topology.speeds)


@pytest.mark.slow
@pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs")
def test_no_job_and_no_folder_are_errors(tmp_path):
    alone = doctor("--topology", str(tmp_path / "topology.json"))
    assert alone.returncode == 2 and "start it with -n N" in alone.stderr
    (tmp_path / "file").write_text("")
    done = doctor("-n", "2", "--topology", str(tmp_path / "file" / "topology.json"))
    assert done.returncode == 1 and "topology.json cannot be written" in done.stderr
    assert not list(tmp_path.glob("*.json"))
