"""`hf.test.TestCase`: TensorFlow 1's test case, with its sessions and assertions."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.default_session import get_default_session
from hpcflow.graph.graph import Graph, get_default_graph, reset_default_graph
from hpcflow.ops.random.random_ops import set_random_seed
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session import Session
from hpcflow.test.assertions import Assertions
from hpcflow.test.machine import get_temp_dir

SEED = 87654321  # of the default graph of each test


class _NoTest:
    """A method whose name is like a test's: who collects tests of the class finds no function."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self._method, instance)


class TestCase(Assertions):
    """A test case whose assertions take tensors, which are computed, arrays and numbers.

    Each test begins with an empty default graph and the same seeds.
    """

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        self._cached: Session | None = None
        self._threads: list[_Checked] = []

    def setUp(self) -> None:
        """Begin with an empty default graph, and the same seeds."""
        super().setUp()
        self._close()
        random.seed(SEED)
        np.random.seed(SEED)
        reset_default_graph()
        set_random_seed(SEED)

    def tearDown(self) -> None:
        """Close the session of `cached_session`; wait for threads."""
        for thread in self._threads:
            thread.check()
        self._threads.clear()
        self._close()
        super().tearDown()

    def _close(self) -> None:
        if self._cached is not None:
            self._cached.close()
            self._cached = None

    def get_temp_dir(self) -> str:
        """A folder for the files of this test alone."""
        folder = os.path.join(get_temp_dir(), self.id().replace(os.sep, "_"))
        os.makedirs(folder, exist_ok=True)
        return folder

    # -- sessions

    @contextlib.contextmanager
    def session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """A new session of `graph`, by default the default one; closed after the `with`.

        Without `use_gpu` it stays on the CPU.
        """
        with self._new_session(graph, config, use_gpu, force_gpu) as session:
            yield session

    @contextlib.contextmanager
    def cached_session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """The session of this test: the same each time, closed at the test's end."""
        if self._cached is None:
            self._cached = self._new_session(graph, config, use_gpu, force_gpu)
        elif graph is not None and graph is not self._cached.graph:
            raise ValueError("the cached session belongs to another graph: use self.session(graph)")
        with self._cached.graph.as_default(), self._cached.as_default():
            yield self._cached

    @_NoTest
    @contextlib.contextmanager
    def test_session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """`session` of a graph that is given, else `cached_session`."""
        args = graph, config, use_gpu, force_gpu
        with self.cached_session(*args) if graph is None else self.session(*args) as session:
            yield session

    def _new_session(
        self, graph: Graph | None, config: ConfigProto | None, use_gpu: bool, force_gpu: bool
    ) -> Session:
        session_config = ConfigProto()
        session_config.CopyFrom(ConfigProto() if config is None else config)
        session_config.allow_soft_placement = session_config.allow_soft_placement or not force_gpu
        if not (use_gpu or force_gpu):
            session_config.device_count["GPU"] = 0
        return Session(graph=graph or get_default_graph(), config=session_config)

    def evaluate(self, tensors: Any) -> Any:
        """The values of tensors, in their structure, by the default session or the cached one."""
        session = get_default_session()
        if session is not None:
            return session.run(tensors)
        with self.cached_session() as session:
            return session.run(tensors)

    # -- threads

    def checkedThread(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> _Checked:
        """A thread that calls `target`; what it raises `join` raises, at the latest `tearDown`."""
        thread = _Checked(target, args or (), kwargs or {})
        self._threads.append(thread)
        return thread


class _Checked(threading.Thread):
    """A thread whose error who waits for it raises, once."""

    def __init__(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__(daemon=True)
        self._call = lambda: target(*args, **kwargs)
        self._error: BaseException | None = None

    def run(self) -> None:
        """What the thread does."""
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, and raise what it raised."""
        super().join(timeout)
        self.check()

    def check(self) -> None:
        """Raise what it raised, if nobody has."""
        error, self._error = self._error, None
        if error is not None:
            raise AssertionError(f"a thread of the test raised {error!r}") from error
