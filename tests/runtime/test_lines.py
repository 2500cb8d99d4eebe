"""Shares of workers that have died, dealt to those that live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcflow.runtime.failure.shard_reassignment import DataShard, ShardAssignment, WorkerLoss

EPOCHS, STEPS = 3, 7
BATCHES = [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]


@st.composite
def stories(draw):
    """Workers, and deaths: who, after how many batches of each of its lines."""
    workers = draw(st.integers(2, 6))
    living, deaths = list(range(workers)), []
    while len(living) > 1 and draw(st.booleans()):
        worker = draw(st.sampled_from(living[1:]))
        living.remove(worker)
        deaths.append((worker, draw(st.lists(st.integers(0, 30), min_size=40, max_size=40))))
    return workers, living, deaths


@given(stories())
def test_every_share_of_every_batch_is_drawn_once(story):
    """Who lives draws all that is left in its lines; the dead had drawn a beginning of theirs."""
    workers, living, deaths = story
    drawn: list[tuple[int, tuple[int, int]]] = []  # of which worker's share, in which batch
    losses: list[WorkerLoss] = []

    def batches(line: DataShard, lines: ShardAssignment) -> list[tuple[int, int]]:
        behind = lines.places.get(line, (0, -1))
        return [place for place in BATCHES if line.has(*place) and place > behind]

    for worker, counts in deaths:
        lines, places = ShardAssignment(workers, losses), {}
        for (number, line), count in zip(lines.shards_of(worker).items(), counts, strict=False):
            done = batches(line, lines)[:count]
            drawn += [(line.worker, place) for place in done]
            if done:
                places[number] = done[-1]
        losses.append(WorkerLoss(worker, places))
    lines = ShardAssignment(workers, losses)
    assert not any(lines.shards_of(worker) for worker, _ in deaths)
    for worker in living:
        for line in lines.shards_of(worker).values():
            drawn += [(line.worker, place) for place in batches(line, lines)]
    assert sorted(drawn) == [(worker, place) for worker in range(workers) for place in BATCHES]


@given(stories(), st.data())
def test_where_all_stand_together(story, data):
    """Of each share's part the last batch: as whoever holds it says, else as the dead had said."""
    workers, living, deaths = story
    losses = [WorkerLoss(worker, {0: (1, 2)} if counts[0] else {}) for worker, counts in deaths]
    lines = ShardAssignment(workers, losses)
    told = {
        worker: {number: (2, data.draw(st.integers(0, 6))) for number in lines.shards_of(worker)}
        for worker in living
    }
    found = lines.last_batches_by_share(told)
    assert len(found) == workers
    holders = {line: (w, n) for w in living for n, line in lines.shards_of(w).items()}
    for line, (worker, number) in holders.items():
        parts = found[line.worker]
        assert len(parts) == line.modulus
        assert parts[line.remainder] == told[worker][number]
    for worker, parts in enumerate(lines.last_batches_by_share({})):
        before = next((loss.last_batches.get(0) for loss in losses if loss.worker == worker), None)
        assert set(parts) == {before}


def test_what_one_leaves_is_dealt_evenly():
    lines = ShardAssignment(5, [WorkerLoss(2, {}), WorkerLoss(4, {})])
    shares = [
        sum(1 / line.modulus for line in lines.shards_of(worker).values()) for worker in (0, 1, 3)
    ]
    assert sum(shares) == 5
    assert max(shares) - min(shares) <= 1 / 4
