"""User block of a checkpoint file: its facts and the digests of every byte, without HDF5.

Layout: 8 bytes magic, 8 bytes size of the block, 8 bytes length of the text (little-endian), 32
bytes BLAKE2b of the whole block with this field zero, the text (JSON), zeros. HDF5 data follows.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from hpcflow.checkpoint import header_validation
from hpcflow.errors import CheckpointCorruptError, CheckpointError
from hpcflow.runtime.step.observer import checkpoint_observers

MAGIC = b"HPCFCKP1"
DIGEST_AT, TEXT_AT = 24, 56
SMALLEST = 4096  # HDF5: a user block's size is a power of two, at least 512
LARGEST = 1 << 32
PIECE_BYTES = 16 << 20  # largest piece with its own digest; the size of the staging buffer
CHECK_BYTES = 1 << 20  # bytes read per call of a check, to fit a core's cache
FORMAT_VERSION = 1


class DigestedRange(NamedTuple):
    """A range of bytes of a file with its CRC-32."""

    offset: int
    nbytes: int
    crc: int


def user_block_size(text_bytes: int) -> int:
    """The size of a user block for `text_bytes` bytes of text."""
    size = SMALLEST
    while size < TEXT_AT + text_bytes:
        size *= 2
    return size


def encode_user_block(said: dict[str, Any], size: int) -> bytes:
    """A user block of `size` bytes with the facts `said`."""
    text = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
    if TEXT_AT + len(text) > size:
        raise CheckpointError(f"{len(text)} bytes of facts do not fit a user block of {size}")
    head = MAGIC + size.to_bytes(8, "little") + len(text).to_bytes(8, "little")
    body = text + bytes(size - TEXT_AT - len(text))
    return head + _header_digest(head, body) + body


def _header_digest(head: bytes, body: bytes | bytearray) -> bytes:
    return hashlib.blake2b(head + bytes(TEXT_AT - DIGEST_AT) + body, digest_size=32).digest()


def read_user_block(path: Path) -> dict[str, Any]:
    """The facts in the user block of a file.

    Errors: CheckpointCorruptError if it is missing, damaged, truncated or no checkpoint file;
    CheckpointError if it cannot be read or has a newer format version.
    """
    try:
        with open_checkpoint_file(path) as fd:
            facts = _read_user_block(path, fd)
            size = os.fstat(fd).st_size
    except FileNotFoundError:
        raise CheckpointCorruptError(f"{path} is missing", hint=_HINT) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if size != facts["size"]:
        raise CheckpointCorruptError(
            f"{path} has {size:,} bytes instead of {facts['size']:,}", hint=_HINT
        )
    return facts


_HINT = "restore from another checkpoint; this file was cut off, changed or replaced"


@contextlib.contextmanager
def open_checkpoint_file(path: Path) -> Iterator[int]:
    """A checkpoint file, open for reading; links are not followed.

    Errors: OSError; CheckpointCorruptError if it is a link or not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointCorruptError(
            f"{path} is a symbolic link: the files of a checkpoint must be in it",
            hint="put the file itself there, or give the checkpoint that it links to",
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CheckpointCorruptError(f"{path} is not a regular file", hint=_HINT)
        yield fd
    finally:
        os.close(fd)


def _read_user_block(path: Path, fd: int) -> dict[str, Any]:
    damage = CheckpointCorruptError(f"{path} has a damaged header", hint=_HINT)
    head = os.pread(fd, TEXT_AT, 0)
    if head[:8] != MAGIC:
        raise CheckpointCorruptError(
            f"{path} is not a file of a checkpoint: its signature is missing", hint=_HINT
        )
    size, length = int.from_bytes(head[8:16], "little"), int.from_bytes(head[16:24], "little")
    if not TEXT_AT <= TEXT_AT + length <= size <= min(os.fstat(fd).st_size, LARGEST):
        raise damage
    body = bytearray(size - TEXT_AT)
    read_all(fd, memoryview(body), TEXT_AT, path)
    if _header_digest(head[:DIGEST_AT], body) != head[DIGEST_AT:]:
        raise damage
    try:
        facts = json.loads(body[:length])
    except (ValueError, RecursionError):
        raise damage from None
    version = facts.get("format_version") if isinstance(facts, dict) else None
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, but this hpcflow reads up to {FORMAT_VERSION}",
            hint="install the version of hpcflow that wrote it, or a newer one",
        )
    try:
        header_validation.check_header(facts, size)
    except (header_validation.InvalidHeader, RecursionError) as error:
        raise CheckpointCorruptError(f"{path} has an invalid header: {error}", hint=_HINT) from None
    return cast(dict[str, Any], facts)


def write_user_block(path: Path, said: dict[str, Any], size: int) -> None:
    """Write the user block of a finished file, then fsync the file."""
    fd = os.open(path, os.O_RDWR)
    try:
        write_all(fd, memoryview(encode_user_block(said, size)), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """`os.pwrite` until everything is written."""
    while data:
        for observer in checkpoint_observers:
            observer.checkpoint_write(fd, offset, len(data))
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Start the write-back of these bytes, so that a later `fsync` has little left to write.

    On Linux POSIX_FADV_DONTNEED starts the write-back of dirty pages, and these stay in the page
    cache until they are written.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def digested_pieces(slab: Mapping[str, Any]) -> Iterator[DigestedRange]:
    """The pieces of a slab, each with its digest."""
    at = slab["offset"]
    for nbytes, crc in slab["crcs"]:
        yield DigestedRange(at, nbytes, crc)
        at += nbytes


def drop_page_cache(path: Path) -> None:
    """Drop a durable file from the page cache, so that the next read comes from the disk."""
    if hasattr(os, "posix_fadvise"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_all(fd: int, data: memoryview, offset: int, path: Path) -> None:
    """`os.preadv` until `data` is full."""
    while data:
        count = os.preadv(fd, [data], offset)
        if not count:
            raise CheckpointCorruptError(f"{path} is cut off after {offset:,} bytes", hint=_HINT)
        data, offset = data[count:], offset + count


def uncovered_pieces(
    path: Path, start: int, covered_ranges: Sequence[tuple[int, int]]
) -> list[DigestedRange]:
    """The bytes from `start` to the end outside `covered_ranges`, as pieces with CRC-32."""
    size = path.stat().st_size
    pieces: list[DigestedRange] = []
    buffer = memoryview(bytearray(PIECE_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        for low, high in [*sorted(covered_ranges), (size, size)]:
            while start < low:
                data = buffer[: min(PIECE_BYTES, low - start)]
                read_all(fd, data, start, path)
                pieces.append(DigestedRange(start, len(data), zlib.crc32(data)))
                start += len(data)
            start = max(start, high)
    finally:
        os.close(fd)
    return pieces


def damaged_pieces(path: Path, pieces: Sequence[DigestedRange]) -> Iterator[int]:
    """The indices of the pieces whose bytes do not match their digest."""
    largest = max((piece.nbytes for piece in pieces), default=0)
    buffer = memoryview(bytearray(min(CHECK_BYTES, largest)))
    with open_checkpoint_file(path) as fd:
        for i, (offset, nbytes, crc) in enumerate(pieces):
            crc_here = 0
            for at in range(0, nbytes, CHECK_BYTES):
                data = buffer[: min(CHECK_BYTES, nbytes - at)]
                read_all(fd, data, offset + at, path)
                crc_here = zlib.crc32(data, crc_here)
            if crc_here != crc:
                yield i


def foreign_file_error(path: Path, said: str) -> CheckpointCorruptError:
    """The error for a file that belongs to another checkpoint or place."""
    return CheckpointCorruptError(f"{path} does not belong to this checkpoint: {said}", hint=_HINT)
