"""Damage to checkpoints, and what may come of it: it is found and named, or does no harm."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import equal

Damage = Callable[[bytes, random.Random], bytes]


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def check(path: Path, changed: str, values: Mapping[str, np.ndarray]) -> bool:
    """Whether the damage was found, by each way of reading; wrong values fail.

    `changed` is the name of the changed file, which all messages must have.
    """
    faults = verify_checkpoint(checkpoint_directory.read_entry(path)).faults
    for fault in faults:
        assert changed in fault.text, fault
    found: dict[str, np.ndarray] = {}
    refused = 0
    try:
        saved = SavedCheckpoint(path)
    except CheckpointError as error:
        assert changed in error.message, error
        assert faults
        return True
    for name, array in saved.arrays.items():
        out = np.empty(array.shape, array.dtype)
        try:
            saved.read_checked(name, 0, array.rows, out)
            found[name] = out
        except CheckpointError as error:
            assert changed in error.message, error
            refused += 1
    assert equal(found, {name: values[name] for name in found})
    assert faults or not refused
    return bool(faults)


def flip(data: bytes, draw: random.Random) -> bytes:
    """One bit."""
    at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def flips(data: bytes, draw: random.Random) -> bytes:
    """Some bits anywhere."""
    for _ in range(draw.randrange(2, 9)):
        data = flip(data, draw)
    return data


def zeros(data: bytes, draw: random.Random) -> bytes:
    """A block of the disk that was never written."""
    at = draw.randrange(0, len(data), 4096)
    return data[:at] + bytes(len(data[at : at + 4096])) + data[at + 4096 :]


def twice(data: bytes, draw: random.Random) -> bytes:
    """A block at the place of another."""
    a, b = draw.randrange(0, len(data), 4096), draw.randrange(0, len(data), 4096)
    block = data[a : a + 4096]
    return (data[:b] + block + data[b + len(block) :])[: len(data)]


def shifted(data: bytes, draw: random.Random) -> bytes:
    """Bytes that were lost, and all behind them moved up; as many zeros at the end."""
    at, count = draw.randrange(len(data)), draw.randrange(1, 64)
    return (data[:at] + data[at + count :]).ljust(len(data), b"\0")


DAMAGES: dict[str, Damage] = {
    f.__name__: f  # type: ignore[attr-defined]
    for f in (flip, flips, zeros, twice, shifted)
}


def damage_often(
    path: Path, values: Mapping[str, np.ndarray], damage: Damage, times: int, seed: int
) -> int:
    """Damage any file so often, each time restoring it; how often there was something to find."""
    draw, real = random.Random(seed), 0
    for _ in range(times):
        file = draw.choice(files_of(path))
        whole = file.read_bytes()
        broken = damage(whole, draw)
        file.write_bytes(broken)
        try:
            assert check(path, file.name, values) is (broken != whole), (file, damage)
        finally:
            file.write_bytes(whole)
        real += broken != whole
    assert check(path, "nothing", values) is False
    return real
