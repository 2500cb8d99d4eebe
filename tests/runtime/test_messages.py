"""Whatever bytes come as a message of control: an error that names who sent them, never a hang."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow import errors
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import CommError, HpcflowError, KernelError, VerifyError
from hpcflow.runtime.failure import error_serialization
from hpcflow.runtime.job import service_registry
from hpcflow.runtime.job.message_headers import BODY_TAG, HEADER_TAG, WORDS, CallService, HeaderKind
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
WORD = st.integers(-(2**63), 2**63 - 1)
FUZZ = settings(max_examples=60)


class Ear:
    """A server that hears what the test, as its driver, says."""

    def __init__(self) -> None:
        self.worlds = thread_world(2)
        made: list[RankContext] = []

        def rank(r: int) -> None:
            made.append(RankContext(Settings(ps=1), self.worlds[r], crowded=True))

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (self.server,) = [context for context in made if not context.is_driver]
        self.mouth = self.worlds[1 - self.server.rank]

    def hear(self, message: np.ndarray, body: bytes = b"") -> None:
        """Have the server take a message."""
        control, inbox = self.server.control, self.server.executor.inbox
        assert control is not None
        self.mouth.send(message, self.server.rank, HEADER_TAG)
        if body:
            self.mouth.send(np.frombuffer(body, np.uint8), self.server.rank, BODY_TAG)
        assert control.handle_messages()
        while inbox:
            inbox.popleft()()


def refused(kind: int, body: bytes, *words: int) -> None:
    """Nothing but an error of hpcflow may come of it."""
    ear = Ear()
    first = [kind, *words, *[0] * 3][:4]
    message = np.array([*first, len(body), 0, 0, 0], np.int64)
    assert message.size == WORDS
    try:
        ear.hear(message, body)
    except HpcflowError as error:
        assert str(error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["REGISTER", "CALL", "DECLARE", "FAILED", "MEETING"])
@FUZZ
@given(data=st.data())
def test_bodies_of_any_bytes(kind, data):
    body = data.draw(
        st.binary(min_size=1, max_size=60)
        | JSON.map(lambda value: json.dumps(value).encode())
        | JSON.map(lambda v: len(json.dumps(v)).to_bytes(8, "little") + json.dumps(v).encode())
        | st.dictionaries(st.sampled_from(["service", "do", "wanted", "path", "session"]), JSON
            | st.sampled_from([*service_registry.SERVICES, "load", "write", "survey"]),
            min_size=2).map(lambda v: json.dumps(v).encode())
    )  # fmt: skip
    refused(HeaderKind[kind], body)


@FUZZ
@given(st.sampled_from([*map(int, HeaderKind)]) | WORD, st.lists(WORD, min_size=3, max_size=3))
def test_headers_of_any_numbers(kind, words):
    if kind not in (HeaderKind.STOP, HeaderKind.BYE):  # a signal, and a good-bye, need no more
        refused(kind, b"", *words)


@pytest.mark.parametrize("size", [2**60, -1, -(2**62)])
def test_the_length_of_a_body_that_nobody_has(size):
    with pytest.raises(CommError, match=r"rank . announces"):
        Ear().hear(CallService().encode(size))


@pytest.mark.parametrize("name", sorted(n for n in vars(errors) if n.endswith("Error")))
def test_every_error_travels(name):
    """Its kind, words and facts are those of the rank where it was raised."""
    kind = getattr(errors, name)
    facts = dict(op="w", line="a.py:3", rank=2, hint="do this")
    sent = kind("rule", "what", **facts) if kind is VerifyError else kind("what", **facts)
    found = error_serialization.decode_error(error_serialization.encode_error(sent))
    assert type(found) is kind and str(found) == str(sent)
    assert getattr(found, "rule", None) == getattr(sent, "rule", None)


def test_an_error_that_is_not_ours_travels_as_that_of_a_kernel():
    for kind in ("SystemExit", "dict", "__name__", "HpcflowErrors"):
        body = json.dumps({"kind": kind, "message": "x"}).encode()
        assert type(error_serialization.decode_error(body)) is KernelError


@FUZZ
@given(JSON)
def test_calls_of_any_shape(request_):
    context = SimpleNamespace(rank=1)
    with pytest.raises(CommError):
        service_registry.answer_service(context, request_, lambda answer: None)
