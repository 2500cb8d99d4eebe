"""What a rank sends and holds grows no faster with the number of ranks than stated.

The classes, and what is known to grow with all ranks and why, are in benchmarks/growth_classes.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import growth
import growth_classes
import growth_program
import growth_simulated

from hpcflow.runtime.job.job_membership import current_context

SIMULATED = {
    "collective": (16, 128, 1024),
    "collective, rows of a table": (16, 128, 1024),
    "ps, async": (16, 64, 256),
    "ps, sync=all": (16, 64, 256),
}
HELD = ("threads", "descriptors", "files of the job", "files of the node")
TAG = 1 << 20  # of messages that nobody receives


def rows(mode, sizes, **more):
    """Rows of counts: no time, no memory."""
    how = growth.MODES[mode]
    told = {
        n: growth_simulated.counted(n, how.servers, how.rows, **more, **how.settings) for n in sizes
    }
    found = growth.rows_of(mode, "simulated", told)
    return [row for row in found if row.quantity not in ("CPU time", "memory")]


def outside(found):
    return {f"{row.role}, {row.phase}: {row.quantity}": row for row in found if not row.within}


@pytest.mark.slow
@pytest.mark.parametrize("mode", SIMULATED)
def test_messages_bytes_and_collectives_stay_within_their_class(mode):
    found = rows(mode, SIMULATED[mode])
    assert {row.quantity for row in found if row.phase == "start"} >= {
        growth_classes.CALLS,
        growth_classes.CALL_BYTES,
    }
    assert any(row.phase == "step" and row.values[16] for row in found)
    assert not {name: (row.values, row.found) for name, row in outside(found).items()}


@pytest.mark.slow
def test_threads_files_and_descriptors_of_real_ranks_stay_within_their_class():
    told = {n: growth.real(n, growth.MODES["collective"]) for n in (2, 4)}
    found = [row for row in growth.rows_of("collective", "real", told) if row.quantity in HELD]
    assert {row.quantity for row in found} == set(HELD)
    assert not {name: row.values for name, row in outside(found).items()}


def greedy(what):
    """The training program, but each rank, or the chief, does `what` in the start or each step."""

    def program(is_rows):
        context = current_context()
        step, world = growth_program.training(is_rows), context.world

        def send(rank):
            world.send(np.zeros(1, np.uint8), rank, TAG)

        def once():
            if what == "to all":
                for rank in range(world.size):
                    send(rank)
            if what == "to the chief" and not context.is_chief:
                send(0)
            if what == "a gather in each step":
                context.meetings.all_gather_text("x" * 20)
            return step()

        if what == "a gather":
            world.all_gather_text("x" * 500)
        return once

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, row",
    [
        ("to all", "worker, step: messages sent"),
        ("to the chief", "chief, step: messages received"),
        ("a gather", "worker, start: collective bytes"),
        ("a gather in each step", "worker, step: collective bytes"),
    ],
)
def test_what_grows_with_all_ranks_is_found(what, row):
    found = outside(rows("collective", (16, 64, 256), program=greedy(what)))
    assert found[row].found == growth_classes.ALL


@pytest.mark.parametrize("mode", SIMULATED)
def test_ranks_that_are_an_echo_count_as_if_they_lived(mode):
    how = growth.MODES[mode]
    few, whole = (
        growth_simulated.counted(6, how.servers, how.rows, all_live=all_live, **how.settings)
        for all_live in (False, True)
    )
    for role, phases in few.items():
        for phase in ("step", "meeting"):
            for quantity, value in phases[phase].items():
                if quantity != "CPU time":
                    assert value == whole[role][phase][quantity], (role, phase, quantity)


@pytest.mark.parametrize(
    "values, name",
    [
        ([7, 7, 7, 7], growth_classes.ONE),
        ([9, 7, 4, 1], growth_classes.ONE),
        ([0, 4, 8, 12], growth_classes.LOG),
        ([3, 3, 15, 15], growth_classes.NODE),
        ([3, 15, 63, 255], growth_classes.ALL),
        ([500, 512, 560, 752], growth_classes.ALL),
        ([1, 64, 1024, 16384], growth_classes.WORSE),
    ],
)
def test_a_class_is_that_of_the_least_curve_through_the_values(values, name):
    sizes = [2, 8, 32, 128]
    if name == growth_classes.NODE:
        node = {2: 2, 8: 2, 32: 8, 128: 8}.get
    else:
        node = lambda n: 16  # noqa: E731
    found = growth_classes.found(dict(zip(sizes, values, strict=True)), node, lambda value: 1.0)
    assert found == name
