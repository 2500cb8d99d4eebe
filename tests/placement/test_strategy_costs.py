"""Terms of a step's time under a parallel strategy, beside simulations and published formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement import strategy_costs as costs
from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.parallel_strategy import LayeredModel, ParallelStrategy, TrainingSetup
from hpcflow.placement.strategy_constants import RANGES

from . import strategy_machine

MODEL = LayeredModel(layers=24, hidden=1536, heads=16, sequence=512, vocabulary=30720)
CONSTANTS = {name: float(np.sqrt(r.low * r.high)) for name, r in RANGES.items()}


def one(data: int, tensor: int, pipeline: int, micro: int, batches: int) -> TrainingSetup:
    return TrainingSetup(MODEL, ParallelStrategy(data, tensor, pipeline, micro, batches))


def column(*setups: TrainingSetup) -> costs.SetupColumns:
    return costs.columns(setups, strategy_machine.tables())


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batches", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("more", [0.0, 0.7])
def test_a_pipeline_takes_what_its_schedule_takes(stages: int, batches: int, more: float) -> None:
    forward, backward = [1.0] * stages, [2.0] * stages
    forward[-1] += more / 3
    backward[-1] += more * 2 / 3
    simulated = strategy_machine.pipeline(forward, backward, batches)
    x = column(one(1, 1, stages, 1, batches))
    took = costs.pipeline_seconds(x, np.array([3.0]), np.array([more]))
    assert took[0] == pytest.approx(simulated)
    if not more:
        bubble = 1 - 3 * batches / simulated
        assert bubble == pytest.approx((stages - 1) / (batches + stages - 1))


def test_products_are_the_flops_of_a_step_without_recomputation() -> None:
    """72 B s l h^2 (1 + s / 6h + V / 12lh): Narayanan et al., SC 2021, less one forward pass."""
    x = column(one(1, 1, 1, 4, 8))
    none = CONSTANTS | {"half_speed_columns": 0.0, "micro_batch_s": 0.0, "product_flops": 1.0}
    none |= {"vocabulary_flops": 1.0, "whole_vocabulary_factor": 1.0}
    layers = 24 * costs.product_seconds(x, none)
    total = 8 * (layers + costs.vocabulary_seconds(x, none))
    b, s, n, h, v = 32, 512, 24, 1536, 30720
    formula = 72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h))
    assert total[0] == pytest.approx(formula)


def test_what_each_term_splits() -> None:
    whole, halves = column(one(1, 1, 1, 4, 8)), column(one(1, 2, 1, 4, 8))
    free = CONSTANTS | {"half_speed_columns": 0.0}
    ratio = costs.product_seconds(whole, free) / costs.product_seconds(halves, free)
    assert ratio[0] == pytest.approx(2)
    narrow = costs.product_seconds(whole, CONSTANTS) / costs.product_seconds(halves, CONSTANTS)
    assert 1 < narrow[0] < 2
    assert costs.device_parameters(whole) == 2 * costs.device_parameters(halves)
    assert costs.activation_allreduce_seconds(whole, CONSTANTS) == 0
    assert costs.activation_allreduce_seconds(halves, CONSTANTS) > 0
    assert costs.transfer_seconds(whole, CONSTANTS) == 0
    assert costs.gradient_allreduce_seconds(whole, CONSTANTS) == 0


def test_a_layer_takes_its_launches_or_its_kernels() -> None:
    """At both ends the smaller one does not count; between them the sum is an upper bound."""
    x = column(*(one(1, 1, 1, micro, 2) for micro in (1, 2, 4, 8)))
    slow_host = CONSTANTS | {"launch_s": 1.0}
    assert costs.layer_seconds(x, slow_host) == pytest.approx([120.0] * 4, rel=1e-3)
    slow_device = CONSTANTS | {"product_flops": 1e9}
    products = costs.product_seconds(x, slow_device)
    assert costs.layer_seconds(x, slow_device) == pytest.approx(products, rel=0.01)
    fast = CONSTANTS | {"kernel_s": 0.0}
    device = costs.product_seconds(x, fast) + costs.memory_seconds(x, fast)
    host = costs.launch_seconds(x, fast)
    took = costs.layer_seconds(x, fast)
    assert np.all(took >= np.maximum(device, host)) and np.all(took <= device + host)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_faster_machine_is_never_slower(name: str) -> None:
    setups = strategy_machine.setups()
    x = column(*setups)
    faster = 2.0 if name.endswith(("_flops", "per_s", "_exponent")) else 0.5
    better = costs.step_seconds(x, CONSTANTS | {name: CONSTANTS[name] * faster})
    before = costs.step_seconds(x, CONSTANTS)
    assert np.all(better <= before * (1 + 1e-12)) and np.any(better < before)


def test_faster_allreduces_are_never_slower() -> None:
    setups, slow = strategy_machine.setups(), strategy_machine.tables()
    fast = AllreduceTables({n: (sizes, times / 2) for n, (sizes, times) in slow.by_ranks.items()})
    before = costs.step_seconds(costs.columns(setups, slow), CONSTANTS)
    better = costs.step_seconds(costs.columns(setups, fast), CONSTANTS)
    alone = np.array([s.strategy.tensor == s.strategy.data == 1 for s in setups])
    assert np.all(better[~alone] < before[~alone]) and np.array_equal(better[alone], before[alone])


def test_more_work_takes_longer() -> None:
    for name in ("layers", "hidden", "sequence", "vocabulary"):
        small, large = one(2, 2, 2, 4, 8), one(2, 2, 2, 4, 8)
        doubled = {name: 2 * getattr(MODEL, name)}
        large = dataclasses.replace(large, model=dataclasses.replace(MODEL, **doubled))
        times = costs.step_seconds(column(small, large), CONSTANTS)
        assert times[1] > times[0], name


def test_tables_give_what_was_measured_and_go_on_beyond() -> None:
    sizes, times = np.array([1e6, 2e6, 8e6]), np.array([50e-6, 60e-6, 110e-6])
    tables = AllreduceTables({2: (sizes, times), 4: (sizes, 2 * times)})
    two = np.full(3, 2)
    assert tables.seconds(two, sizes) == pytest.approx(times)
    assert tables.seconds(2 * two, sizes) == pytest.approx(2 * times)
    assert tables.seconds(np.ones(3), sizes).tolist() == [0, 0, 0]
    assert tables.seconds(two[:2], np.array([1.0, 0.5e6])) == pytest.approx([40e-6, 45e-6])
    assert tables.seconds(two[:1], np.array([80e6])) == pytest.approx([1100e-6])
    middle = tables.seconds(two[:1], np.array([4e6]))
    assert middle == pytest.approx([(60e-6 * 110e-6) ** 0.5])
    noise = AllreduceTables({2: (sizes, np.array([50e-6, 45e-6, 110e-6]))})
    assert noise.seconds(two[:1], np.array([1.0])) == pytest.approx([50e-6])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlacementError, match="no all-reduce table of 16"):
        column(one(16, 1, 1, 1, 1))
    with pytest.raises(PlacementError, match="24 layers"):
        one(1, 1, 25, 1, 1)
    with pytest.raises(PlacementError, match="16 attention heads"):
        one(1, 32, 1, 1, 1)
    for wrong in (0, -1, 1.5):
        with pytest.raises(PlacementError, match="micro batch is"):
            ParallelStrategy(1, 1, 1, wrong, 1)  # type: ignore[arg-type]
    for sizes, times in (([1.0], [1.0]), ([2.0, 1.0], [1.0, 1.0]), ([1.0, 2.0], [1.0, 0.0])):
        with pytest.raises(PlacementError, match="table of 2 ranks"):
            AllreduceTables({2: (np.array(sizes), np.array(times))})


def test_devices_and_batches_of_a_strategy() -> None:
    strategy = ParallelStrategy(data=4, tensor=2, pipeline=3, micro_batch=5, micro_batches=7)
    assert (strategy.devices, strategy.global_batch) == (24, 140)
