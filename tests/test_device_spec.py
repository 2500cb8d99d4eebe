"""`hf.DeviceSpec` and `hf.container`, as TensorFlow 1 has them."""

from __future__ import annotations

import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, PlacementError

DeviceSpec = hf.DeviceSpec


def test_texts() -> None:
    """TensorFlow 1's."""
    full = DeviceSpec("worker", 0, 1, "gpu", 2)
    assert full.to_string() == "/job:worker/replica:0/task:1/device:GPU:2"
    assert DeviceSpec.from_string(full.to_string()) == full
    assert DeviceSpec.from_string("/gpu:0").to_string() == "/device:GPU:0"
    assert DeviceSpec(job="ps", device_type="CPU").to_string() == "/job:ps/device:CPU:*"
    assert DeviceSpec().to_string() == ""
    spec = DeviceSpec(job="ps", task=1)
    spec.merge_from(DeviceSpec(job="w", device_type="GPU", device_index=0))
    assert spec.to_string() == "/job:w/task:1/device:GPU:0"
    assert len({spec, DeviceSpec.from_string("/job:w/task:1/gpu:0")}) == 1
    with pytest.raises(PlacementError):
        DeviceSpec.from_string("nowhere at all")
    with pytest.raises(PlacementError):
        DeviceSpec(job="a b")
    with pytest.raises(PlacementError):
        DeviceSpec(task="one")  # type: ignore[arg-type]


def test_a_scope() -> None:
    with hf.Graph().as_default():
        with hf.device(DeviceSpec("ps", 0, 1)), hf.device(DeviceSpec(device_type="CPU")):
            made = hf.constant(1)
        assert made.device == "/job:ps/task:1/cpu"


def test_a_container() -> None:
    with hf.Graph().as_default(), hf.container("experiment") as name:
        v = hf.Variable(1.0)
        assert name == "experiment" and v.name == "Variable"
    with pytest.raises(GraphError), hf.container(3):  # type: ignore[arg-type]
        pass
