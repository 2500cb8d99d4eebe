"""Equal-feeds warning: synchronous replicas that train on the same samples do the same work.

Ranks of a node leave a file named by a checksum of their first batches beside the wait ledgers. A
rank that finds such a file has fed what another rank has. No message is sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.platform.exception_translation import user_line
from hpcflow.platform.rank_logging import logger

STEPS = 3  # batches that have to be equal
LEAST_ROWS = 2  # of a batch


class EqualFeeds:
    """The checksum of the first batches of a rank; `folder` is shared by ranks of a node."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checksum, self._steps = folder, 0, 0

    def step(self, feeds: Mapping[Any, Any]) -> bool:
        """Add the feeds of a step; False once no more steps are needed.

        Arrays whose elements are all equal are not samples, nor are fed numbers: a step that has
        nothing else ends the check. So does a batch of `hf.data`, which shards its samples.
        """
        if hasattr(feeds, "size"):
            return False
        arrays = [
            (str(getattr(key, "name", key)), np.asarray(value)) for key, value in feeds.items()
        ]
        samples = [pair for pair in arrays if _may_be_samples(pair[1])]
        for name, array in sorted(samples, key=lambda pair: pair[0]):
            text = f"{name} {array.dtype} {array.shape}".encode()
            self._checksum = zlib.crc32(array.tobytes(), zlib.crc32(text, self._checksum))
        self._steps += 1
        if samples and self._steps == STEPS:
            self._compare()
        return bool(samples) and self._steps < STEPS

    def _compare(self) -> None:
        try:
            (self._folder / f"feeds-{self._checksum:08x}").touch(exist_ok=False)
        except FileExistsError:
            logger.warning(
                "%s: replicas were fed the same %d batches, so they repeat each other's work\n"
                "  next  feed each its share: hf.data.Dataset does, or start at "
                "session.worker in your data",
                *(user_line(), STEPS),
            )
        except OSError:  # no such folder, or the disk is full: nothing is known
            return


def _may_be_samples(array: np.ndarray) -> bool:
    plain = array.dtype.kind in "biuf" and array.ndim > 0 and len(array) >= LEAST_ROWS
    return bool(plain and array.size and array.min() != array.max())
