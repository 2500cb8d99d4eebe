"""Plans that are kept: the same as made ones, found again only where nothing has changed."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import kernel_registry
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.pass_list import make_plan
from hpcflow.plan.serialization import plan_cache_key
from hpcflow.plan.serialization.partition_codec import encode_partition
from hpcflow.platform import artifact_cache
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step import plan_cache
from hpcflow.settings import Settings

pytestmark = pytest.mark.skipif(absent() != "", reason="needs llvmlite")

ROOT = Path(__file__).parent.parent.parent
STEPS = 3
ACROSS = """
import sys
from pathlib import Path
from tests.runtime.test_plans import mlp, train
print(train(Path(sys.argv[1]), mlp)[1].plans_made)
"""


@dataclasses.dataclass
class Net:
    """What a step fetches, and its feeds."""

    fetches: list[Any]
    feeds: dict[Any, np.ndarray]


def mlp(batch: int = 8, rate: float = 0.5, wide: int = 16) -> Net:
    random = np.random.default_rng(1)
    x, y = hf.placeholder(hf.float32, [None, 12]), hf.placeholder(hf.int32, [None])
    h: Any = x
    for i, (rows, cols) in enumerate([(12, wide), (wide, wide), (wide, 5)]):
        w = hf.Variable(random.normal(size=(rows, cols)).astype("f4"), name=f"w{i}")
        h = hf.tanh(hf.matmul(h, w) + hf.Variable(np.zeros(cols, "f4"), name=f"b{i}"))
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)
    loss = hf.reduce_mean(losses)
    train = hf.train.MomentumOptimizer(rate, 0.9).minimize(loss)
    images = random.normal(size=(batch, 12)).astype("f4")
    return Net([loss, train], {x: images, y: np.arange(batch, dtype="i4") % 5})


def words() -> Net:
    """A loop, rows of a table with Adam, and what is drawn."""
    random = np.random.default_rng(2)
    ids = hf.placeholder(hf.int32, [6])
    embedding = hf.Variable(random.normal(size=(20, 4)).astype("f4"), name="embedding")
    near = hf.nn.embedding_lookup(embedding, ids)
    _, grown = hf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 1.5 + near), [0, near])
    kept = hf.nn.dropout(grown, 0.5, seed=3)
    loss = hf.reduce_sum(hf.square(kept)) + hf.reduce_mean(hf.sigmoid(grown))
    train = hf.train.LazyAdamOptimizer(0.1).minimize(loss)
    return Net([loss, train], {ids: np.array([1, 1, 7, 19, 0, 3], "i4")})


def images() -> Net:
    random = np.random.default_rng(3)
    x = hf.placeholder(hf.float32, [2, 9, 9, 3])
    h: Any = x
    for i, channels in enumerate([3, 4]):
        kernel = random.normal(size=(3, 3, channels, 4)).astype("f4")
        bias = hf.Variable(np.zeros(4, "f4"), name=f"b{i}")
        h = hf.nn.conv2d(h, hf.Variable(kernel, name=f"k{i}"), 1, "SAME")
        h = hf.nn.max_pool2d(hf.nn.relu(hf.nn.bias_add(h, bias)), 2, 1, "VALID")
    loss = hf.reduce_mean(hf.square(h))
    train = hf.train.GradientDescentOptimizer(1e-3).minimize(loss)
    return Net([loss, train], {x: random.normal(size=(2, 9, 9, 3)).astype("f4")})


def train(
    folder: Path | str, make: Callable[..., Net] = mlp, **given: Any
) -> tuple[list[bytes], plan_cache.PlanningCosts]:
    """The losses of the first steps, as bytes, and what the plan of a step has taken."""
    chosen = {k: given.pop(k) for k in list(given) if k in Settings.__dataclass_fields__}
    context = RankContext(Settings(plan_cache=str(folder), **chosen))
    with hf.Graph().as_default() as graph, hf.Session(graph, context=context) as session:
        net = make(**given)
        session.run(hf.global_variables_initializer())
        before = context.plans.costs
        found = [session.run(net.fetches, net.feeds)[0].tobytes() for _ in range(STEPS)]
        return found, context.plans.costs.difference(before)


def made_or_loaded(spent: plan_cache.PlanningCosts) -> tuple[int, int]:
    return spent.plans_made, spent.plans_loaded


@pytest.mark.parametrize("make", [mlp, words, images])
def test_a_loaded_plan_trains_to_the_same_bits(tmp_path: Path, make: Callable[..., Net]) -> None:
    without, spent = train("none", make)
    assert made_or_loaded(spent) == (1, 0)
    cold, spent = train(tmp_path, make)
    assert made_or_loaded(spent) == (1, 0)
    warm, spent = train(tmp_path, make)
    assert made_or_loaded(spent) == (0, 1)
    assert without == cold == warm and len(set(warm)) == STEPS


@pytest.mark.parametrize("make", [mlp, words, images])
def test_a_loaded_plan_is_the_one_that_was_made(tmp_path: Path, make: Callable[..., Net]) -> None:
    found = []
    for _ in range(2):
        context = RankContext(Settings(plan_cache=str(tmp_path)))
        with hf.Graph().as_default() as graph:
            net = make()
            specs = {t: Spec(a.dtype, a.shape) for t, a in net.feeds.items()}
            asked = [net.fetches[0], net.fetches[1]]
            found.append(context.plans.find(graph, asked, specs, (), None, context.cluster))
    assert context.plans.costs.plans_loaded == 1
    assert repr(found[0]) == repr(found[1])


CHANGES: list[dict[str, Any]] = [
    {"batch": 9},
    {"rate": 0.25},
    {"wide": 17},
    {"exact": True},
    {"check_numerics": True},
    {"kernels": "llvm"},
    {"bucket_bytes": 100},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_has_changed_is_planned_anew(tmp_path: Path, change: dict[str, Any]) -> None:
    train(tmp_path)
    before = set(tmp_path.iterdir())
    assert made_or_loaded(train(tmp_path, **change)[1]) == (1, 0)
    assert before < set(tmp_path.iterdir())
    assert made_or_loaded(train(tmp_path, **change)[1]) == (0, 1)
    assert made_or_loaded(train(tmp_path)[1]) == (0, 1)


def test_other_libraries_threads_or_sources_are_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path)
    for what, name, value in [
        (plan_cache, "versions", lambda wish: [("llvm", "another")]),
        (plan_cache, "source_fingerprint", lambda: "edited"),
        (plan_cache.np, "__version__", "0.1"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(what, name, value)
            assert made_or_loaded(train(tmp_path)[1]) == (1, 0), name


def test_where_things_are_written_makes_no_other_plan(tmp_path: Path) -> None:
    train(tmp_path)
    _, spent = train(tmp_path, run_dir=str(tmp_path / "run"), stall_s=7.0)
    assert made_or_loaded(spent) == (0, 1)


def test_no_pass_reads_a_setting_that_is_left_out_of_the_name() -> None:
    for room in ("plan", "kernels", "native", "graph", "ops"):
        for file in (ROOT / "hpcflow" / room).rglob("*.py"):
            read = set(re.findall(r"settings\.(\w+)", file.read_text()))
            assert not read & plan_cache_key.UNRELATED_SETTINGS, file
    assert plan_cache_key.UNRELATED_SETTINGS <= {
        field.name for field in dataclasses.fields(Settings)
    }


@pytest.mark.parametrize("damage", ["cut", "empty", "bit"])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: str) -> None:
    losses, _ = train(tmp_path)
    for file in tmp_path.iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes({"cut": data[:-10], "empty": b"", "bit": data}[damage])
    again, spent = train(tmp_path)
    assert again == losses and made_or_loaded(spent) == (1, 0)
    assert made_or_loaded(train(tmp_path)[1]) == (0, 1)


def test_a_plan_under_the_name_of_another_is_not_used(tmp_path: Path) -> None:
    """The one of another rate is valid and would train to other losses."""
    losses, _ = train(tmp_path, rate=0.5)
    mine = set(tmp_path.iterdir())
    train(tmp_path, rate=0.25)
    (other,) = set(tmp_path.iterdir()) - mine
    for file in mine:
        file.write_bytes(other.read_bytes())
    again, spent = train(tmp_path, rate=0.5)
    assert again == losses and made_or_loaded(spent) == (1, 0)
    assert made_or_loaded(train(tmp_path, rate=0.5)[1]) == (0, 1)


UNUSABLE = [
    b"",
    b"no zlib",
    *(zlib.compress(text) for text in (b"no JSON", b"[1, 2]", b"[]", b"null", b'[["Gone"], []]')),
    zlib.compress(b'[["Generated", 1], [["tuple"], [], null]]'),
]


@pytest.mark.parametrize("held", UNUSABLE, ids=str)
def test_a_whole_file_that_is_no_plan_is_made_again(
    tmp_path: Path, held: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    losses, _ = train(tmp_path)
    files = list(tmp_path.iterdir())
    for file in files:
        artifact_cache.CacheFolder(tmp_path, ".plan").write(file.stem, held)
    again, spent = train(tmp_path)
    assert again == losses and made_or_loaded(spent) == (1, 0)
    assert all(f"{file} cannot be used and is made anew" in caplog.text for file in files)
    assert made_or_loaded(train(tmp_path)[1]) == (0, 1)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_plan_in_a_folder_where_others_may_write_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """Whoever puts one there knows its name and can make its digest."""
    losses, _ = train(tmp_path)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert files
    tmp_path.chmod(mode)
    again, spent = train(tmp_path)
    assert again == losses and made_or_loaded(spent) == (1, 0)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert "others may write there" in caplog.text
    assert "HPCFLOW_PLAN_CACHE" in caplog.text


def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    losses, spent = train(tmp_path / "file" / "plans")
    assert losses == train("none")[0] and made_or_loaded(spent) == (1, 0)
    assert "Not a directory" in caplog.text


@pytest.mark.slow
def test_of_several_processes_one_plans_and_the_others_wait(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ACROSS, str(folder)]
    jobs = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(3)]
    counts = [int(job.communicate(timeout=240)[0]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0] and sum(counts) == 1


@pytest.fixture
def tables() -> Iterator[None]:
    """The table of kernels as it was."""
    kernels, own = dict(kernel_registry._TABLE), set(kernel_registry._OWN)
    yield
    kernel_registry._TABLE.clear()
    kernel_registry._TABLE.update(kernels)
    kernel_registry._OWN.clear()
    kernel_registry._OWN.update(own)


def test_kernels_of_ones_own_are_planned_each_time(tmp_path: Path, tables: None) -> None:
    @hf.kernel("Tanh", "out")
    def kernel(xp: Any, node: Any) -> Any:
        return lambda x, out: np.copyto(out, 0.5 * x)

    assert made_or_loaded(train(tmp_path)[1]) == (1, 0)
    assert made_or_loaded(train(tmp_path)[1]) == (1, 0)


def test_functions_of_ones_own_are_planned_each_time(tmp_path: Path) -> None:
    def make() -> Net:
        net = mlp()
        double = hf.py_func(lambda x: 2 * x, [net.fetches[0]], hf.float32)
        return Net([double, *net.fetches], net.feeds)

    train(tmp_path, make)
    assert made_or_loaded(train(tmp_path, make)[1]) == (1, 0)


def names(draws: bool, mode: str) -> list[str | None]:
    """What the plans of some replicas are called."""
    cluster = Cluster(4, 1) if mode == "ps" else Cluster(4)
    with hf.Graph().as_default() as graph:
        net = mlp()
        x = next(iter(net.feeds))
        if draws:
            net.fetches.append(hf.random_uniform([hf.shape(x)[0]], batch=True))
        specs = {t: Spec(a.dtype, a.shape) for t, a in net.feeds.items()}
        program = prune_to_fetches(graph, net.fetches, specs)
        given = program, graph, cluster, Settings(), {}
        return [plan_cache_key.plan_cache_key(*given, replica, lambda: "") for replica in range(4)]


def test_replicas_with_the_same_plan_share_a_file() -> None:
    assert len(set(names(False, "collective"))) == 1
    first, *others = names(False, "ps")  # it gives the variables their first values
    assert len(set(others)) == 1 and first not in others
    with hf.Graph().as_default() as graph:
        net = mlp()
        specs = {t: Spec(a.dtype, a.shape) for t, a in net.feeds.items()}
        made = [make_plan(graph, net.fetches, specs, Cluster(4), Settings(), k) for k in range(4)]
    assert len({repr(plan) for plan in made}) == 1


def test_replicas_that_draw_for_other_samples_do_not() -> None:
    assert len(set(names(True, "collective"))) == 4


def test_a_part_from_a_driver_is_generated_once(tmp_path: Path) -> None:
    with hf.Graph().as_default() as graph:
        net = mlp()
        specs = {t: Spec(a.dtype, a.shape) for t, a in net.feeds.items()}
        plan = make_plan(graph, net.fetches, specs, Cluster(), Settings())
    part = plan.parts[plan.driver]
    data, found = encode_partition(part), []
    for _ in range(2):
        context = RankContext(Settings(plan_cache=str(tmp_path)))
        found.append(context.plans.code(part, data))
    assert context.plans.costs.plans_loaded == 1
    assert repr(found[0]) == repr(found[1])


def test_a_rank_reports_what_plans_and_kernels_took(tmp_path: Path) -> None:
    context = RankContext(Settings(plan_cache=str(tmp_path)))
    with hf.Graph().as_default() as graph, hf.Session(graph, context=context) as session:
        net = mlp()
        session.run(hf.global_variables_initializer())
        session.run(net.fetches, net.feeds)
    told = context.report()["compile"]
    assert told["plans_made"] == 2 and told["plans_loaded"] == 0 and told["plan_seconds"] > 0
    assert told["kernels_compiled"] + told["kernels_loaded"] > 0


def test_what_was_spent_is_said() -> None:
    made = plan_cache.PlanningCosts(1, 0, 0.0731, 12, 0, 0.12)
    assert str(made) == "the plan was made in 73.1 ms, its kernels (12 compiled) in 120 ms"
    loaded = plan_cache.PlanningCosts(0, 1, 0.009, 1, 11, 0.004)
    assert str(loaded) == (
        "the plan was loaded in 9 ms, its kernels (1 compiled and 11 loaded) in 4 ms"
    )
    assert str(plan_cache.PlanningCosts(1, 0, 0.002)) == "the plan was made in 2 ms"
