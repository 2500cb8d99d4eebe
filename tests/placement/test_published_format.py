"""`benchmarks/placement.py`: splits of graph files, and checks by the definitions alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "placement.py"


def command(*words: object, blocked: bool = False) -> tuple[int, str, str]:
    """Exit code, output and errors; `blocked`: it cannot import hpcflow or numpy."""
    block = "import sys; sys.modules['hpcflow'] = sys.modules['numpy'] = None; " if blocked else ""
    code = (
        f"{block}import runpy, sys; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    return done.returncode, done.stdout, done.stderr


def graph(times: list[float], edges: list[tuple[int, int]], **more: object) -> dict:
    """Nodes 10, 11, ... of these times; each edge costs 1."""
    nodes = [
        {
            "id": 10 + i,
            "fpgaLatency": ms,
            "cpuLatency": 10 * ms,
            "supportedOnFpga": 1,
            "size": 1.0,
            "isBackwardNode": False,
            "colorClass": i,
            "comment": "ignored",
        }
        for i, ms in enumerate(times)
    ]
    rows = [{"sourceId": 10 + a, "destId": 10 + b, "cost": 1.0} for a, b in edges]
    limits = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 100.0}
    return {"nodes": nodes, "edges": rows, **limits, **more}


def trained(times: list[float], edges: list[tuple[int, int]], reverse: bool) -> dict:
    """A graph with a backward node for each forward one, in both ways of writing its edges."""
    made, n = graph(times, edges), len(times)
    for i in range(n):
        node = made["nodes"][i]
        made["nodes"].append({**node, "id": 10 + n + i, "isBackwardNode": True})
    for a, b in edges:
        ends = (b, a) if reverse else (a, b)
        source, dest = (10 + n + end for end in ends)
        made["edges"].append({"sourceId": source, "destId": dest, "cost": 1.0})
    return made


CHAIN = graph([4, 1, 1, 4], [(0, 1), (1, 2), (2, 3)])


@pytest.fixture
def write(tmp_path):
    def written(name: str, content: object) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return written


def split_of(*groups: list[int], cpus: tuple[list[int], ...] = ()) -> dict:
    rows = [[{"nodes": ids} for ids in found] for found in (groups, cpus)]
    return dict(zip(("fpgas", "cpus"), rows, strict=True))


@pytest.mark.parametrize("reverse", [False, True, None])
def test_a_split_is_the_best_and_check_confirms_it_without_hpcflow(write, tmp_path, reverse):
    times, edges = [4.0, 1.0, 1.0, 4.0], [(0, 1), (1, 2), (2, 3)]
    made = graph(times, edges) if reverse is None else trained(times, edges, reverse)
    file, out = write("graph.json", made), tmp_path / "split.json"
    code, printed, errors = command("split", file, "--contiguous", "--seconds", 600, "--out", out)
    assert code == 0, errors
    code, checked, errors = command("check", file, out, blocked=True)
    assert code == 0, errors
    found = json.loads(checked)
    assert found.items() <= json.loads(printed).items() and json.loads(printed)["exact"]
    assert found["load_ms"] == (6 if reverse is None else 12)
    assert found["contiguous"] and found["memory_ok"] and found["colocation_ok"]
    if reverse is None:
        assert found["latency_ms"] == 12


def test_loads_count_a_transfer_once_a_device(write):
    fan = graph([1, 1, 1, 1], [(0, 1), (0, 2), (0, 3)], maxCPUs=1)
    file = write("graph.json", fan)
    split = write("split.json", split_of([10], [11, 12], cpus=([13],)))
    code, printed, _ = command("check", file, split, blocked=True)
    assert code == 0 and json.loads(printed)["load_ms"] == 10
    fan["nodes"][3]["cpuLatency"] = 0.5
    _, printed, _ = command("check", write("graph.json", fan), split, blocked=True)
    assert json.loads(printed)["load_ms"] == 3, "two nodes, and one input for both"


@pytest.mark.parametrize(
    ("change", "split", "false"),
    [
        ({"maxSizePerFPGA": 2.5}, split_of([10, 11, 12], [13]), "memory_ok"),
        ({"maxFPGAs": 1}, split_of([10, 11], [12, 13]), "devices_ok"),
        ({}, split_of([10, 11], cpus=([12, 13],)), "devices_ok"),
        ({"color": 1}, split_of([10, 11, 12], [13]), "colocation_ok"),
        ({"unsupported": 2}, split_of([10, 11, 12], [13]), "supported_ok"),
    ],
)
def test_what_is_infeasible_exits_with_one(write, change, split, false):
    made = json.loads(json.dumps(CHAIN))
    if "color" in change:
        made["nodes"][0]["colorClass"] = made["nodes"][3]["colorClass"] = 7
    elif "unsupported" in change:
        made["nodes"][2]["supportedOnFpga"] = 0
    else:
        made |= change
    code, printed, _ = command("check", write("g.json", made), write("s.json", split))
    found = json.loads(printed)
    keys = ("memory_ok", "colocation_ok", "supported_ok", "devices_ok")
    assert code == 1 and [key for key in keys if not found[key]] == [false]


def test_a_part_that_is_left_and_entered_again_is_not_contiguous(write):
    split = write("s.json", split_of([10, 13], [11, 12]))
    code, printed, _ = command("check", write("g.json", CHAIN), split)
    found = json.loads(printed)
    assert code == 0 and not found["contiguous"] and found["latency_ms"] is None
    both = trained([1, 1], [(0, 1)], reverse=True)
    both["edges"].append({"sourceId": 11, "destId": 13, "cost": 0.0})  # the loss
    split = write("s.json", split_of([10, 12], [11, 13]))
    _, printed, _ = command("check", write("g.json", both), split)
    assert json.loads(printed)["contiguous"], "forward and backward nodes each on their own"


def test_a_search_that_is_free_is_not_worse_and_obeys_the_constraints(write, tmp_path):
    times = [3, 1, 2, 5, 1, 4, 2, 2]
    made = graph(times, [(i, i + 1) for i in range(7)], maxCPUs=1, maxSizePerFPGA=5.0)
    for i in (0, 7):
        made["nodes"][i]["colorClass"] = 99
    made["nodes"][4]["supportedOnFpga"] = False
    made["nodes"][4]["cpuLatency"] = 1.0
    file, loads = write("g.json", made), []
    for words in (["--contiguous"], [], ["--objective", "latency"]):
        out = tmp_path / "s.json"
        code, printed, errors = command("split", file, *words, "--seconds", 1, "--out", out)
        assert code == 0, errors
        code, printed, _ = command("check", file, out)
        assert code == 0, printed
        loads.append(json.loads(printed)["load_ms"])
    assert loads[1] <= loads[0]


def test_no_split_exits_with_one(write, tmp_path):
    made = json.loads(json.dumps(CHAIN)) | {"maxSizePerFPGA": 1.0}
    for words in ([], ["--contiguous"], ["--objective", "latency"]):
        code, _, errors = command(
            "split", write("g.json", made), *words, "--seconds", 1, "--out", tmp_path / "s"
        )
        assert code == 1 and "no split was found that fits" in errors
        assert not (tmp_path / "s").exists()


def graph_with(**entries: object) -> dict:
    first, *others = CHAIN["nodes"]
    return {**CHAIN, "nodes": [{**first, **entries}, *others]}


UNUSUAL_GRAPHS = {
    "nothing costs anything": graph([0, 0, 0], []),
    "more devices than nodes": {**CHAIN, "maxFPGAs": 10**9, "maxCPUs": 10**9},
    "one device": {**CHAIN, "maxFPGAs": 0, "maxCPUs": 1},
    "a node that takes very long on accelerators": {
        **graph_with(fpgaLatency=1e100),
        "maxCPUs": 1,
    },
}


@pytest.mark.parametrize("name", UNUSUAL_GRAPHS)
def test_unusual_graphs_are_split(write, tmp_path, name):
    file, out = write("g.json", UNUSUAL_GRAPHS[name]), tmp_path / "s.json"
    for words in (["--contiguous"], []):
        code, _, errors = command("split", file, *words, "--seconds", 0.5, "--out", out)
        assert code == 0, errors
        code, printed, _ = command("check", file, out)
        assert code == 0 and json.loads(printed)["load_ms"] <= 100, printed


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_time_of_a_search_is_positive(write, tmp_path, seconds):
    words = ("split", write("g.json", CHAIN), "--out", tmp_path / "s.json")
    code, _, errors = command(*words, f"--seconds={seconds}")
    assert code == 2 and "--seconds" in errors


BAD_GRAPHS = {
    "is not JSON": "{",
    "has no list 'nodes'": [],
    "has no nodes": {**CHAIN, "nodes": [], "edges": []},
    "nodes[0]: fpgaLatency must be a number": {**CHAIN, "nodes": [{"id": 1}]},
    "nodes[1]: id 10 is given twice": {**CHAIN, "nodes": [CHAIN["nodes"][0]] * 2},
    "edges[0]: there is no node 99": {
        **CHAIN,
        "edges": [{"sourceId": 99, "destId": 10, "cost": 1}],
    },
    "edges[0]: cost must be a number from 0 to 1e100": {
        **CHAIN,
        "edges": [{"sourceId": 10, "destId": 11, "cost": -1}],
    },
    "maxFPGAs must be": {k: v for k, v in CHAIN.items() if k != "maxFPGAs"},
    "has no devices": {**CHAIN, "maxFPGAs": 0},
    "maxFPGAs must be a number from 0 to 1e100, is True": {**CHAIN, "maxFPGAs": True},
    "maxFPGAs must be a number from 0 to 1e100, is 1000": {**CHAIN, "maxFPGAs": 10**400},
    "nodes[0]: supportedOnFpga must be 0, 1": graph_with(supportedOnFpga="no"),
    "nodes[0]: isBackwardNode must be 0, 1": graph_with(isBackwardNode=2),
    "nodes[0]: colorClass must be a whole number or text": graph_with(colorClass=[1]),
    "is not JSON: maximum recursion": "[" * 100_000,
}
BAD_SPLITS = {
    "has no list 'fpgas'": {},
    "99 is no node": split_of([10, 11, 12, 13, 99]),
    "node 10 is on two devices": split_of([10, 11], [10, 12, 13]),
    "2 nodes are on no device: [12, 13]": split_of([10], [11]),
}


@pytest.mark.parametrize("said", BAD_GRAPHS)
def test_a_bad_graph_exits_with_two_and_says_where(write, tmp_path, said):
    file = write("g.json", BAD_GRAPHS[said])
    code, _, errors = command("split", file, "--out", tmp_path / "s.json")
    assert code == 2 and said in errors and "g.json" in errors, errors


@pytest.mark.parametrize("said", BAD_SPLITS)
def test_a_bad_split_exits_with_two_and_says_where(write, said):
    file = write("s.json", BAD_SPLITS[said])
    code, _, errors = command("check", write("g.json", CHAIN), file)
    assert code == 2 and said in errors and "s.json" in errors, errors
