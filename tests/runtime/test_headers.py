"""Headers: the words of each kind on the wire, there and back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcflow.runtime.job import message_headers
from hpcflow.runtime.job.message_headers import HEADERS, Header, HeaderKind, decode

# name of the kind -> fields of 11, 12 ..., and the eight words before a body of 99 bytes
WIRE = {
    "REGISTER": (("plan",), [1, 11, 0, 0, 99, 0, 0, 0]),
    "STEP": (("plan", "instance", "step"), [2, 11, 12, 13, 99, 0, 0, 0]),
    "REPORT": ((), [3, 0, 0, 0, 99, 0, 0, 0]),
    "BYE": ((), [4, 0, 0, 0, 99, 0, 0, 0]),
    "CLOSING": (("barriers", "collectives"), [5, 0, 11, 12, 99, 0, 0, 0]),
    "STOP": (("number",), [6, 0, 0, 11, 99, 0, 0, 0]),
    "CALL": ((), [7, 0, 0, 0, 99, 0, 0, 0]),
    "NOTE": (("number",), [8, 0, 0, 11, 99, 0, 0, 0]),
    "MEETING": (("barriers", "collectives"), [9, 0, 11, 12, 99, 0, 0, 0]),
    "FAILED": (("plan", "instance", "step"), [10, 11, 12, 13, 99, 0, 0, 0]),
    "CANCEL": (("plan", "instance", "step"), [11, 11, 12, 13, 99, 0, 0, 0]),
    "PACE": (
        ("origin", "work_ns", "wait_ns", "millisamples", "mean_work_ns", "input_ns"),
        [12, 11, 12, 13, 99, 14, 15, 16],
    ),
    "DECLARE": ((), [13, 0, 0, 0, 99, 0, 0, 0]),
    "ROUND": (("plan", "instance", "step"), [14, 11, 12, 13, 99, 0, 0, 0]),
    "REST": (("plan",), [15, 11, 0, 0, 99, 0, 0, 0]),
    "POST": ((), [16, 0, 0, 0, 99, 0, 0, 0]),
    "PLACE": (("recovery", "has_voted", "steps"), [17, 11, 12, 13, 99, 0, 0, 0]),
    "VERDICT": (("recovery", "verdict"), [18, 11, 12, 0, 99, 0, 0, 0]),
    "TRAINED": (
        ("session", "dataset", "step", "epoch", "line"),
        [19, 11, 12, 13, 99, 14, 15, 0],
    ),
    "FORGET": (("plan",), [20, 11, 0, 0, 99, 0, 0, 0]),
    "CLOSED": (("session",), [21, 11, 0, 0, 99, 0, 0, 0]),
    "ASK_LOAD": ((), [22, 0, 0, 0, 99, 0, 0, 0]),
    "LOAD": (("clock_ns", "idle_ns"), [23, 11, 12, 0, 99, 0, 0, 0]),
}
KINDS = sorted(HEADERS.values(), key=lambda header: header.kind)
WORD = st.integers(-(2**63), 2**63 - 1)


def test_the_kinds_stand_in_numeric_order_and_each_has_one_dataclass():
    assert [kind.value for kind in HeaderKind] == list(range(1, 24))
    assert [header.kind for header in KINDS] == list(HeaderKind)
    assert [kind.name for kind in HeaderKind] == list(WIRE)


@pytest.mark.parametrize("header", KINDS, ids=lambda header: header.__name__)
def test_the_bytes_of_each_kind(header: type[Header]):
    names, words = WIRE[header.kind.name]
    message = header(**{name: number for number, name in enumerate(names, 11)})
    encoded = message.encode(99)
    assert encoded.tobytes() == np.array(words, np.int64).tobytes()
    assert [field.name for field in dataclasses.fields(header)] == list(names)


@pytest.mark.parametrize("header", KINDS, ids=lambda header: header.__name__)
@given(data=st.data(), size=WORD)
def test_any_values_there_and_back(header: type[Header], data, size):
    count = len(dataclasses.fields(header))
    sent = header(*data.draw(st.lists(WORD, min_size=count, max_size=count)))
    words = sent.encode(size)
    assert words[message_headers.BODY_WORD] == size
    found = decode(words.tolist())
    assert type(found) is header and found == sent


def test_no_two_tags_have_one_number():
    tags = [value for name, value in vars(message_headers).items() if name.endswith("_TAG")]
    assert len(tags) > 4 and len(set(tags)) == len(tags)


@given(
    steps=st.integers(0, 2**23 - 1),
    session=st.integers(0, 2**24 - 1),
    dataset=st.integers(-1, 2**16 - 2),
)
def test_three_numbers_of_a_pace_share_a_word(steps: int, session: int, dataset: int):
    origin = message_headers.WorkerPace.packed(steps, session, dataset)
    words = message_headers.WorkerPace(origin, 1, 2, 3, 4, 5).encode()
    found = decode(words.tolist())
    assert isinstance(found, message_headers.WorkerPace)
    assert (found.steps, found.session, found.dataset) == (steps, session, dataset)
