"""Ranks as threads."""

from __future__ import annotations

import threading
import time

from hpcflow.errors import CommError


def until(condition, seconds=60):
    """Wait until `condition()`; for so long only a wrong program keeps a loaded machine waiting."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def on_all(comms, function) -> None:
    """Run `function(comm)` in one thread for each rank; the first failure ends all."""
    errors: list[BaseException] = []

    def play(comm) -> None:
        try:
            function(comm)
        except BaseException as error:
            errors.append(error)
            try:
                comm.abort(1)
            except CommError:
                pass

    threads = [threading.Thread(target=play, args=(comm,), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if errors:
        raise errors[0]
