"""Versioned state: nobody sees half an update, nothing is copied without need."""

import numpy as np
import pytest

from hpcflow.errors import ShapeError, UninitializedError
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.state.state_store import StateStore, VariableState


def variable(shape=(4,), dtype="float32", name="v"):
    node = Node(name, "Variable", attrs={"dtype": dtype, "shape": shape}, line="model.py:7")
    return VariableState(node, Device())


def test_reading_before_a_value_names_the_variable_and_its_line():
    with pytest.raises(UninitializedError, match=r"'v' has no value(.|\n)*model\.py:7"):
        variable().read()


def test_an_update_is_in_place_while_nobody_reads():
    v = variable()
    v.assign(np.arange(4), initial=True)
    before = v.read()
    v.write()[...] += 1
    assert v.read() is before
    assert v.read().tolist() == [1, 2, 3, 4]


def test_a_pinned_version_is_never_changed():
    v = variable()
    v.assign(np.arange(4), initial=True)
    seen = v.pin()
    v.write()[...] += 1
    v.assign(np.full(4, 9))
    assert seen.tolist() == [0, 1, 2, 3]
    assert v.read().tolist() == [9, 9, 9, 9]


def test_readers_of_several_versions_and_the_spare_buffer():
    v = variable()
    v.assign(np.zeros(4), initial=True)
    first = v.pin()
    v.write()[...] += 1
    second = v.pin()
    again = v.pin()
    v.write()[...] += 1
    assert (first[0], second[0], v.read()[0]) == (0, 1, 2)
    v.unpin(second)
    v.write()[...] += 1  # the second version still has a reader
    assert second[0] == 1
    v.unpin(again)
    v.unpin(first)
    pinned = v.pin()
    addresses = {id(first), id(second)}
    v.write()
    assert id(v.read()) in addresses  # a buffer is reused, not allocated again
    v.unpin(pinned)


def test_updates_are_counted_and_initialization_is_not():
    v = variable()
    v.assign(np.zeros(4), initial=True)
    v.write()
    v.assign(np.ones(4))
    assert v.updates == 2


def test_a_name_used_by_another_graph_with_another_shape():
    store = StateStore()
    attrs = {"dtype": "float32", "shape": (4,)}
    store.get(Node("w", "Variable", attrs=attrs), Device())
    with pytest.raises(ShapeError, match="different names"):
        store.get(Node("w", "Variable", attrs={**attrs, "shape": (5,)}), Device())
