"""Files whose digests are right and whose words are not: refused, or harmless; nothing is believed.

A digest says that a text is as it was written, not that hpcflow wrote it.
"""

from __future__ import annotations

import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcflow.checkpoint import checkpoint_directory, header_digests
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import save_some

FORMS = {"sharded": dict(ranks=2), "one file": dict(ranks=1, form="parallel")}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.sampled_from([2**60, 2**63, -1, 0, 1, "..", "/etc/passwd", "|O", "<f4", "<U9", "V3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=FORMS)
def saved(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("saved")
    save_some(where, 1, rows=20, **FORMS[request.param])
    return checkpoint_directory.find_checkpoints(where)[0].path


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A length that is believed is an error here, not a machine without memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside."""
    if above:
        yield above
    keys: Any = range(len(value)) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else keys:
        yield from places(value[key], (*above, key))


def changed(facts: Any, draw: st.DataObject) -> Any:
    """Facts with a value, somewhere, that is another, gone, or there twice."""
    facts = copy.deepcopy(facts)
    path = draw.draw(st.sampled_from(sorted(places(facts), key=str)))
    inside = facts
    for key in path[:-1]:
        inside = inside[key]
    how = draw.draw(st.sampled_from(["other", "near", "gone", "twice"]))
    last = path[-1]
    if how == "gone":
        del inside[last]
    elif how == "twice" and isinstance(inside, list):
        inside.insert(last, copy.deepcopy(inside[last]))
    elif how == "near" and type(inside[last]) is int:
        inside[last] += draw.draw(st.sampled_from([-1, 1, 8, 2**40, -(2**40), 2**61]))
    else:
        inside[last] = draw.draw(JSON)
    return facts


def read_all(path: Path) -> None:
    """Read it in all ways; only CheckpointErrors may come."""
    verify_checkpoint(checkpoint_directory.read_entry(path))
    checkpoint_directory.find_checkpoints(path.parent)
    try:
        found = SavedCheckpoint(path)
    except CheckpointError:
        return
    for name, array in found.arrays.items():
        out = np.empty(array.shape, array.dtype)
        try:
            found.read_checked(name, 0, array.rows, out)
        except CheckpointError as error:
            assert str(error)


@pytest.mark.slow
@FUZZ
@given(draw=st.data())
def test_facts_that_are_not_ours(saved, draw):
    index = checkpoint_directory.index_file(saved)
    whole = index.read_bytes()
    facts = header_digests.read_user_block(index)
    text = json.dumps(changed(facts, draw)).encode()
    start = int.from_bytes(whole[8:16], "little")
    try:
        for more in (whole[start:], b"x" * 99):
            index.write_bytes(stamped(text, start) + more)
            read_all(saved)
    finally:
        index.write_bytes(whole)


def stamped(text: bytes, size: int) -> bytes:
    """A user block with this text and a digest that fits."""
    size = max(size, header_digests.user_block_size(len(text)))
    head = header_digests.MAGIC + size.to_bytes(8, "little") + len(text).to_bytes(8, "little")
    body = text + bytes(size - header_digests.TEXT_AT - len(text))
    return head + header_digests._header_digest(head, body) + body


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"3", b'"x"', b"null", b"{", b"\xff\xfe", b"{}", b'{"format_version": true}'),
        *(b"[" * 100_000, b'{"format_version":1,"kind":"whole","size":1e999}', b"NaN"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_text_that_is_no_table_of_facts(tmp_path, text):
    path = tmp_path / "step-1.h5"
    path.write_bytes(stamped(text, 4096) + b"more")
    with pytest.raises(CheckpointError, match=r"step-1\.h5"):
        SavedCheckpoint(path)
    assert verify_checkpoint(checkpoint_directory.read_entry(path)).faults


@pytest.mark.parametrize(
    "size, length", [(1 << 60, 10), (1 << 60, 1 << 59), (100, 1 << 63), (0, 0)]
)
def test_lengths_that_no_file_has(tmp_path, size, length):
    path = tmp_path / "step-1.h5"
    head = header_digests.MAGIC + size.to_bytes(8, "little") + length.to_bytes(8, "little")
    path.write_bytes(head + bytes(5000))
    with pytest.raises(CheckpointError, match="has a damaged header"):
        SavedCheckpoint(path)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "step-1.h5"
    for content in (data, header_digests.MAGIC + data):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"step-1\.h5"):
            SavedCheckpoint(path)
