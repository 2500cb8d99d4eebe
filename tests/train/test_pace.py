"""Own work and waiting are told apart; who is slow for long is named; shares follow the speeds."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.comm import mpi_communicator
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train import run_records, speed_exchange, step_timing
from hpcflow.train.step_timing import StepTiming, TimingRow, TimingWindow
from hpcflow.train.straggler_detection import STEPS, TIMES, StragglerDetector, straggler_texts
from tests.comm.threads import until
from tests.runtime.ranks import run_here, run_ranks

from .reference import OPTIMIZERS, data, net, trained

SLOW = 1  # the replica that works three times as long
SAMPLES, BATCH, SEED = 150, 48, 11  # the last batch of an epoch is smaller
EPOCHS = 12


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The warnings that are logged."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks of our own: a sample takes 10 ms, 30 on the slow replica."""

    def end(self: StepTiming, batch: Any) -> None:
        self.ended += 0.1  # so that a worker tells after five steps
        self.work = batch.size * (0.03 if self._engine.rank == SLOW else 0.01)
        self.window.add(self.work, 0.0, batch)

    monkeypatch.setattr(StepTiming, "end", end)


# -- measuring


def batch_of(size: int, source: Any = None) -> Any:
    batch: Any = hf.data.Batch.__new__(hf.data.Batch)
    batch.size, batch.source = size, source
    return batch


def test_a_window_leaves_its_longest_step_out() -> None:
    window = TimingWindow()
    for work, size in ((2.0, 4), (90.0, 7), (4.0, 4)):
        window.add(work, 0.5, batch_of(size))
    assert window.row() == TimingRow(3, 3.0, 0.5, 4.0, mean_work=32.0, input=0.0)
    window.clear()
    window.add(2.0, 1.0, {}, 1.5)
    assert window.row() == TimingRow(1, 2.0, 1.0, 0.0, mean_work=2.0, input=1.5)


def test_a_window_of_two_datasets_is_of_neither() -> None:
    first, second = object(), object()
    window = TimingWindow()
    window.add(1.0, 0.0, batch_of(1, first))
    assert window.source is first
    window.add(1.0, 0.0, batch_of(1, second))
    window.add(1.0, 0.0, batch_of(1, second))
    assert window.source is None


def work_and_wait(context: RankContext, folder: Path) -> tuple[float, float, float, float]:
    """Own work, waiting, sleep and time of a step; replica 1 sleeps when all others wait for it."""
    executor, begun, worked = context.executor, threading.Event(), threading.Event()
    others = [replica for replica in range(context.roles.replicas) if replica != SLOW]
    sleeps = 0.2 if context.replica == SLOW else 0.05

    def work(rows: np.ndarray) -> np.ndarray:
        if begun.is_set() and context.replica == SLOW:
            until(lambda: all((folder / f"{replica}").exists() for replica in others))
        time.sleep(sleeps)
        if begun.is_set():
            worked.set()
        return rows

    def tell() -> None:
        until(lambda: worked.is_set() and executor._since)
        (folder / f"{context.replica}").touch()

    x = hf.placeholder(hf.float32, [1])
    total = hf.replica_sum(hf.reduce_sum(hf.py_func(work, [x], hf.float32)))
    with hf.train.TrainingSession() as session:
        since = time.perf_counter()
        session.step(total, {x: np.ones(1, "f4")})
        begun.set()
        if context.replica != SLOW and context.roles.replicas > 1:
            threading.Thread(target=tell, daemon=True).start()
        session.step(total, {x: np.ones(1, "f4")})
        took = time.perf_counter() - since
        return session.pace.work, session.pace.wait, sleeps, took


@pytest.mark.parametrize("ranks", [2, 3])
def test_waiting_for_a_slow_rank_is_not_own_work(ranks: int, tmp_path: Path) -> None:
    found = run_ranks(ranks, lambda context: work_and_wait(context, tmp_path))
    for replica, (work, wait, slept, took) in enumerate(found):
        assert work > slept * 0.99
        if replica != SLOW:
            assert wait > 0.1  # of the 0.2 s that the slow one sleeps meanwhile
        assert work + wait < took


@pytest.mark.mpi
@pytest.mark.parametrize("way", ["mpi", "shared"], ids=["by MPI", "by windows"])
def test_waiting_is_told_apart_on_ranks_of_mpi(
    way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = mpi_communicator.world()
    made = str(tmp_path_factory.mktemp("waits")) if world.rank == 0 else None
    folder = Path(world.broadcast_text(made))
    work, wait, slept, took = run_here(lambda context: work_and_wait(context, folder), comm=way)
    assert work > slept * 0.99 and work + wait < took
    if world.size > 1 and world.rank != SLOW:
        assert wait > 0.1


def test_input_and_the_script_itself_are_own_work() -> None:
    def naps(epoch: int) -> Iterator[np.float32]:
        for number in range(8):
            time.sleep(0.01)
            yield np.float32(number)

    def body(context: RankContext) -> tuple[float, float]:
        x = hf.placeholder(hf.float32, [None])
        total = hf.replica_sum(hf.reduce_sum(x))
        with hf.train.TrainingSession() as session:
            for batch in hf.data.Stream(x, naps, batch=4, read_ahead=0).epochs(1):
                session.step(total, batch)
                time.sleep(0.03)
            return session.pace.work, session.pace.work_seconds

    for last, whole in run_ranks(2, body):
        assert last > 0.07 and whole > last


def test_what_a_device_still_computes_is_own_work() -> None:
    """A poll that fails while kernels run beside the host begins no wait."""
    executor = RankContext(Settings()).executor
    asked: list[bool] = []
    executor.device_is_busy = lambda: asked.append(True) or len(asked) < 50
    done = threading.Event()

    class Request:
        polls = 0

        def test(self) -> bool:
            self.polls += 1
            return self.polls > 40 or done.is_set()

    executor.finish(Request(), "a sum")
    assert len(asked) == 40 and executor.waited == 0.0
    executor.finish(Request(), "another")
    assert executor.waited > 0.0


# -- who is slow for long


def stragglers(crowded: frozenset[str] = frozenset(), inject: str = "") -> StragglerDetector:
    context: Any = SimpleNamespace(
        hosts=("n0", "n1", "n2", "n3"),
        roles=SimpleNamespace(drivers=(0, 1, 3)),
        crowded_hosts=crowded,
        is_chief=True,
        settings=Settings(inject=inject),
    )
    return StragglerDetector(context)


def rows(*work: float, steps: int = 10, fed: float = 0.0) -> speed_exchange.Rows:
    """Reports of workers; the share `fed` of their work is waiting for input."""
    return [(i, TimingRow(steps, w, 0.0, 1.0, w, w * fed)) for i, w in enumerate(work)]


def test_a_persistent_straggler_is_named_once_with_rank_host_and_factor() -> None:
    found = stragglers()
    lines = [found.add(rows(0.1, 0.11, 0.19)) for _ in range(6)]
    assert [len(some) for some in lines] == [0, 0, 1, 0, 0, 0]
    (line,) = lines[2]
    assert line == (
        "worker 2 (rank 3 on n3) is slow: for 30 steps its own work took 190 ms a step, "
        "1.7 times the median of 3 workers (110 ms)"
    )
    expected = {"worker": 2, "rank": 3, "host": "n3", "factor": 1.73, "cause": "work"}
    assert found.stragglers() == [expected]


def test_numbers_of_short_and_long_steps_read_plainly() -> None:
    found = stragglers()
    lines = [line for _ in range(3) for line in found.add(rows(0.0012, 0.0013, 0.0456))]
    assert lines[0].endswith("took 45.6 ms a step, 35 times the median of 3 workers (1.3 ms)")
    found = stragglers()
    lines = [line for _ in range(3) for line in found.add(rows(20, 20.5, 61.5))]
    assert lines[0].endswith("took 61.5 s a step, 3 times the median of 3 workers (20.5 s)")


def test_nothing_is_said_of_workers_that_share_cores() -> None:
    found = stragglers(frozenset(["n3"]))
    assert [line for _ in range(9) for line in found.add(rows(0.1, 0.1, 0.9))] == []
    assert found.stragglers() == []
    other = [line for _ in range(9) for line in found.add(rows(0.9, 0.1, 0.2))]
    assert len(other) == 1 and other[0].startswith("worker 0 (rank 0 on n0) is slow")
    rehearsed = stragglers(frozenset(["n3"]), inject="slow:rank=3x9")
    assert len([line for _ in range(9) for line in rehearsed.add(rows(0.1, 0.1, 0.9))]) == 1


def test_a_slow_step_now_and_then_is_no_straggler() -> None:
    found = stragglers()
    for time_ in range(40):
        assert found.add(rows(0.1, 0.1, 0.9 if time_ % TIMES else 0.1, steps=STEPS)) == []
    assert found.stragglers() == []


@pytest.mark.parametrize(
    "work", [(0.1, 0.1, 0.149), (1e-5, 1e-5, 9e-5), (0.1, 0.1, 0.1)], ids=["less", "tiny", "equal"]
)
def test_who_is_not_much_slower_is_no_straggler(work: tuple[float, ...]) -> None:
    found = stragglers()
    assert [line for _ in range(50) for line in found.add(rows(*work))] == []


def test_of_two_workers_the_slower_one_is_named() -> None:
    found = stragglers()
    lines = [line for _ in range(5) for line in found.add(rows(0.3, 0.1))]
    assert len(lines) == 1 and lines[0].startswith("worker 0 (rank 0 on n0)")


def test_waiting_for_input_is_not_called_own_work() -> None:
    """Of two workers each is measured by the other one, and the text says so."""
    found = stragglers()
    found._places = found._places[:2]
    (line,) = [line for _ in range(3) for line in found.add(rows(0.1, 0.3, fed=0.9))]
    assert line == (
        "worker 1 (rank 1 on n1) is slow: for 30 steps its own work and input, mostly waiting for "
        "input data, took 300 ms a step, 3 times that of the other worker (100 ms)"
    )
    (slow,) = found.stragglers()
    assert slow["cause"] == "input"
    (text,) = straggler_texts([slow], 2)
    assert text.endswith("waiting for input data, took 3 times that of the other worker")
    (text,) = straggler_texts([{**slow, "cause": "work"}], 4)
    assert text.endswith("its own work took 3 times the median of 4 workers")
    (text,) = straggler_texts([{k: v for k, v in slow.items() if k != "cause"}], 4)  # old files
    assert text.endswith("its own work and input took 3 times the median of 4 workers")


def test_a_worker_that_reads_slowly_reports_its_waiting_for_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its message to the chief, the rows of paces.csv have it beside work and waiting."""
    monkeypatch.setattr(speed_exchange, "TELL_S", 0.0)

    def body(context: RankContext) -> Any:
        x = hf.placeholder(hf.float32, [None])
        total = hf.replica_sum(hf.reduce_sum(x))
        nap = 0.02 if context.replica == SLOW else 0.0

        def slowly(epoch: int) -> Iterator[np.float32]:
            for number in range(160):
                time.sleep(nap / 2)
                yield np.float32(number)

        with hf.train.TrainingSession() as session:
            for batch in hf.data.Stream(x, slowly, batch=4, read_ahead=0).epochs(1):
                session.step(total, batch)
            session.wait()
            return session.result()

    (result,) = [one for one in run_ranks(2, body, run_dir=str(tmp_path)) if one]
    paces = [row for row in run_records.read_rows(tmp_path / run_records.PACES) if row["worker"]]
    for row in paces:
        assert 0 <= float(row["input"]) <= float(row["work"]) + 2e-7
    fed = [float(row["input"]) for row in paces if row["worker"] == str(SLOW)]
    assert fed and min(fed) > 0.01
    assert result["input_wait_seconds"][SLOW] > 0.4


@pytest.mark.slow
def test_the_straggler_of_a_synchronous_job_is_named(
    measured: None, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_ranks(3, lambda context: train(context)[2], run_dir=str(tmp_path))
    (line,) = [line for line in said if "is slow" in line]
    assert line.startswith(f"worker {SLOW} (rank {SLOW} on local)") and "3 times" in line
    where = {"worker": SLOW, "rank": SLOW, "host": "local"}
    expected = [{**where, "factor": 3.0, "cause": "work"}]
    assert found[0]["stragglers"] == expected
    assert json.loads((tmp_path / "manifest.json").read_text())["stragglers"] == expected
    paces = run_records.read_rows(tmp_path / run_records.PACES)
    assert {row["worker"] for row in paces} == {"0", "1", "2"}
    work = {row["worker"]: float(row["work"]) for row in paces}
    assert work["1"] > 2 * work["0"]
    cli.main(["report", str(tmp_path), "--out", str(tmp_path)])
    text = capsys.readouterr().out
    assert (
        f"worker {SLOW} (rank {SLOW} on local) was slow for a long time" in text
        and "3 times" in text
    )


def test_the_straggler_of_an_asynchronous_job_is_named(
    said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speed_exchange, "TELL_S", 0.0)

    def end(self: StepTiming, batch: Any) -> None:
        self.ended += 0.1
        self.work = 0.3 if self._engine.rank == 2 else 0.1
        self.window.add(self.work, 0.0, batch)

    monkeypatch.setattr(StepTiming, "end", end)

    def body(context: RankContext) -> Any:
        w = hf.Variable(np.zeros((), np.float32), name="w")
        step = hf.assign_add(w, 1.0)
        with hf.train.TrainingSession() as session:
            for number in range(60):
                session.step(step, {})
                if number % 10 == 9:  # the chief hears of the others in its steps
                    context.barrier()
            session.wait()
            return session.result()

    (result,) = run_ranks(4, body, ps=1, run_dir=str(tmp_path))
    (line,) = [line for line in said if "is slow" in line]
    assert line.startswith("worker 2 (rank 2 on local)")
    assert [one["worker"] for one in result["stragglers"]] == [2]
    assert len(result["work_seconds"]) == len(result["wait_seconds"]) == 3


# -- shares by speed


def train(
    context: RankContext, balance: bool = False, stream: bool = False, **more: Any
) -> tuple[list[np.ndarray], list[list[Any]], Any]:
    """Parameters, (epoch, step, joined size, offset, samples) of each batch, the result."""
    features, labels = data(SAMPLES)
    x, y, _, step, parameters = net(OPTIMIZERS["adam"][0]())
    if stream:
        pairs = list(zip(features, labels, strict=True))
        dataset: Any = hf.data.Stream((x, y), lambda e: iter(pairs), BATCH, balance=balance)
    else:
        dataset = hf.data.Dataset({x: features, y: labels}, BATCH, seed=SEED, balance=balance)
    noise = hf.random_uniform([hf.shape(x)[0], 2], seed=5)
    drawn: list[list[Any]] = []
    stop = more.pop("stop", None)
    with hf.train.TrainingSession(**more) as session:
        for batch in dataset.epochs(EPOCHS):
            _, found = session.step([step, noise], batch)
            samples = batch.indices.tolist()
            drawn.append([batch.epoch, batch.step, batch.joined_size, batch.offset, samples, found])
            if session.steps == stop:
                break
        session.wait()
        result = session.result() if context.settings.run_dir else None
        return session.run(parameters), drawn, result


def check_dealt(results: list[Any]) -> list[int]:
    """All ranks cut alike, a sample is drawn once an epoch; the shares of the last full batch."""
    drawn = [one[1] for one in results]
    per_epoch: dict[int, list[int]] = {}
    shares: list[int] = []
    for parts in zip(*drawn, strict=True):
        assert len({tuple(part[:3]) for part in parts}) == 1
        ends = [part[3] + len(part[4]) for part in parts]
        assert [part[3] for part in parts] == [0, *ends[:-1]] and ends[-1] == parts[0][2]
        per_epoch.setdefault(parts[0][0], []).extend(i for part in parts for i in part[4])
        shares = [len(part[4]) for part in parts] if parts[0][2] == BATCH else shares
    assert all(sorted(some) == list(range(SAMPLES)) for some in per_epoch.values())
    return shares


def expected(stream: bool = False) -> list[np.ndarray]:
    """The parameters by NumPy on the joined batches, drawn as the documentation says."""
    features, labels = data(SAMPLES)
    batches = []
    for epoch in range(EPOCHS):
        philox = np.random.Generator(np.random.Philox(key=[SEED, epoch]))
        order = np.arange(SAMPLES) if stream else philox.permutation(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            mine = order[start : start + BATCH]
            batches.append((features[mine], labels[mine]))
    return trained(batches, OPTIMIZERS["adam"][1])


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize(("ranks", "ps"), [(2, 0), (3, 0), (4, 0), (3, 1), (3, 2)])
def test_a_slow_worker_gets_a_third_of_the_others_shares_and_all_train_as_one(
    measured: None, said: list[str], ranks: int, ps: int, stream: bool
) -> None:
    """Synchronous replicas, and workers of servers under the rule that joins all gradients."""
    settings: Any = {"ps": ps, "sync": "all"} if ps else {}
    results = run_ranks(
        ranks + ps, lambda context: train(context, True, stream), seed=ranks, **settings
    )
    shares = check_dealt(results)
    slow = shares.pop(SLOW)
    assert abs(slow - BATCH / (3 * ranks - 2)) <= 1 and max(shares) - min(shares) <= 1
    first = [len(one[1][0][4]) for one in results]
    assert max(first) - min(first) <= 1  # equal as long as nobody knows
    for found, _, _ in results:
        for mine, theirs in zip(found, expected(stream), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    # a draw for a sample is what one rank would draw for it
    (alone,) = run_ranks(1, lambda context: train(context, True, stream))
    for at, whole in enumerate(alone[1]):
        joined = np.concatenate([one[1][at][5] for one in results])
        assert joined.tobytes() == whole[5].tobytes()
    assert [line for line in said if "is slow" in line] == []  # it works as long as the others


@pytest.mark.mpi
def test_ranks_of_mpi_balance_and_train_as_one(measured: None) -> None:
    found, drawn, _ = run_here(lambda context: train(context, True))
    for mine, theirs in zip(found, expected(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    world = mpi_communicator.world()
    mine_last = [len(one[4]) for one in drawn if one[2] == BATCH][-1]
    rows = json.loads(f"[{','.join(world.all_gather_text(str(mine_last)))}]")
    assert sum(rows) == BATCH
    if world.size > 1:
        assert abs(rows.pop(SLOW) - BATCH / (3 * world.size - 2)) <= 1


@pytest.mark.slow
def test_a_job_that_balances_goes_on_in_the_middle_of_an_epoch(
    measured: None, tmp_path: Path
) -> None:
    where: Any = {"checkpoints": tmp_path / "saved", "save_every": 100, "resume": True}
    first = run_ranks(3, lambda context: train(context, True, stop=30, **where))
    second = run_ranks(4, lambda context: train(context, True, **where))  # on other ranks
    drawn: dict[int, list[int]] = {}
    for one in (*first, *second):
        for epoch, _, _, _, samples, _ in one[1]:
            drawn.setdefault(epoch, []).extend(samples)
    assert sorted(drawn) == list(range(EPOCHS))
    assert all(sorted(some) == list(range(SAMPLES)) for some in drawn.values())
    for found, _, _ in second:
        for mine, theirs in zip(found, expected(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_shares_follow_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of each rank is ahead by what its samples take: so long that no noise counts."""
    mine = threading.local()
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + mine.ahead[0])
    monkeypatch.setattr(step_timing, "time", clock)

    def body(context: RankContext) -> list[int]:
        takes = 30.0 if context.replica == SLOW else 10.0
        mine.ahead = ahead = [0.0]

        def work(rows: np.ndarray) -> np.ndarray:
            ahead[0] += takes * len(rows)
            return rows

        x = hf.placeholder(hf.float32, [None])
        total = hf.replica_sum(hf.reduce_sum(hf.py_func(work, [x], hf.float32)))
        data = hf.data.Dataset({x: np.zeros(48 * 30, "f4")}, batch=48, balance=True)
        with hf.train.TrainingSession() as session:
            for batch in data.epochs(1):
                session.step(total, batch)
            session.wait()
        return data.shares

    shares = run_ranks(3, body)
    assert shares[0] == shares[1] == shares[2] and sum(shares[0]) == 48
    slow = shares[0].pop(SLOW)
    assert 6 <= slow <= 8 and max(shares[0]) - min(shares[0]) <= 2  # 48 / 7 samples is its part


@pytest.mark.slow
def test_two_sessions_at_once_deal_each_its_own(measured: None) -> None:
    """They take turns; only the second one's dataset deals by speed."""

    def body(context: RankContext) -> list[list[int]]:
        sessions = []
        for balance in (False, True):
            with hf.Graph().as_default():
                x = hf.placeholder(hf.float32, [None])
                total = hf.replica_sum(hf.reduce_sum(x))
                values = np.zeros(48 * 40, "f4")
                data = hf.data.Dataset({x: values}, batch=48, balance=balance)
                sessions.append((hf.train.TrainingSession(), total, data, data.epochs(1)))
        for _ in range(40):
            for session, total, _, batches in sessions:
                session.step(total, next(batches))
        for session, *_ in sessions:
            session.wait()
        return [data.shares for _, _, data, _ in sessions]

    for plain, dealt in run_ranks(3, body):
        assert plain == [16, 16, 16] and dealt[SLOW] < 10
