"""Rank logging: one logger; rank 0 and the chief log from info on, other ranks from warning on.

Equal lines are folded into one with a count. If several ranks log the same warning, the first
prints it at once; later one line gives the count and the ranks. For this, ranks append to files
that all ranks of a node share (`share`), and one rank of each node to files in the run directory.
No message is sent.

Each rank keeps its last lines of all levels. If the rank fails, they are written to `rank-N.log` in
the run directory. With the setting `log_files` all lines are written there.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from hpcflow.errors import LaunchError
from hpcflow.platform.private_files import is_own_folder, make_folder

logger = logging.getLogger("hpcflow")
MAX_RECENT_LINES = 200  # last lines of a rank, written if it fails
FOLD_S = 10.0  # an equal line within this time is counted instead of printed
LET_NODES_TELL_S = 3.0  # time for the first rank of each node to report to the first of all
MOST_WARNINGS = 100  # distinct warnings that a rank keeps for the job's result
_said: set[str] = set()
_saying = threading.Lock()  # guards `_said`
_recent_lines: RecentLines | None = None
_rank_and_run_dir: tuple[int, str] = (0, "")  # rank and run directory
_prefix = ""  # of a rank's own output, if there are several ranks


class SharedLineBoard:
    """Deduplicates lines of the ranks of a node: one file per line in `folder`.

    The first rank that logs a line creates the file, the others append to it. With several nodes
    there is a board `above`, on which the first rank of each node reports for its node.

    File errors do not suppress output: a rank that cannot write prints the line itself, also if the
    folder is not this user's own.
    """

    def __init__(self, folder: str, rank: int, above: SharedLineBoard | None = None) -> None:
        self._folder, self._rank, self._above = folder, rank, above
        self._due: dict[str, float] = {}  # lines first logged by this rank -> time of the count

    def is_first(self, line: str, now: float) -> bool:
        """This rank logs `line`, for the first time in FOLD_S: whether it must print it."""
        for _ in range(2):  # the file may be removed in between
            if self.add_repetitions(line, 1):
                return False
            if self._claim(line, now + FOLD_S):
                self.add_repetitions(line, 1)
                above, late = self._above, now + FOLD_S + LET_NODES_TELL_S
                return above is None or above._claim(line, late)
        return True

    def add_repetitions(self, line: str, count: int) -> bool:
        """Add `count` repetitions by this rank; False if the line is no longer counted."""
        return self._add(line, f"{self._rank} {count}\n")

    def due_lines(self, now: float) -> Iterator[tuple[str, int, list[int]]]:
        """Lines that are due: (line, count, ranks)."""
        for line in [line for line, due in self._due.items() if due <= now]:
            del self._due[line]
            text = self._remove(line)
            if self._above is None or not self._above._add(line, text):
                rows = [tuple(map(int, row.split())) for row in text.splitlines()]
                count = sum(times for _, times in rows)
                if count > 1:
                    yield line, count, sorted({rank for rank, _ in rows})
        if self._above is not None:
            yield from self._above.due_lines(now)

    def _claim(self, line: str, due: float) -> bool:
        """Whether this rank is the first for this line."""
        try:
            make_folder(self._folder)
            os.close(os.open(self._path(line), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True
        self._due[line] = due
        return True

    def _path(self, line: str) -> str:
        data = line.encode()
        name = f".said-{len(data)}-{zlib.crc32(data):08x}{zlib.adler32(data):08x}"
        return os.path.join(self._folder, name)

    def _add(self, line: str, text: str) -> bool:
        """Append to an existing file in one write."""
        if not is_own_folder(self._folder):
            return False
        try:
            descriptor = os.open(self._path(line), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return os.write(descriptor, text.encode()) > 0 or not text
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _remove(self, line: str) -> str:
        """Remove a file and return its content; the next rank that logs the line is first again."""
        path = self._path(line)
        own_path = f"{path}.{self._rank}"
        try:
            os.replace(path, own_path)
            with open(own_path) as file:
                text = file.read()
            os.unlink(own_path)
        except OSError:
            return ""
        return text


class FoldingHandler(logging.StreamHandler):
    """Prints a line at once; its repetitions within `FOLD_S` follow as one line with their count.

    The count is printed by the next line after that time, by `fold`, or at the end. A warning on
    the `board` is printed by one rank, with the count of all ranks.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.board: SharedLineBoard | None = None
        self._folded: dict[str, tuple[float, int, str]] = {}  # line -> (printed at, repeats, words)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line or count it."""
        now, line = time.monotonic(), self.format(record)
        self._release_lines(now - FOLD_S)
        since, extra, words = self._folded.get(line, (now, -1, record.getMessage()))
        self._folded[line] = since, extra + 1, words
        if extra >= 0:
            return
        alone = self.board is None or record.levelno < logging.WARNING
        if alone or self.board.is_first(words, now):  # type: ignore[union-attr]
            super().emit(record)

    def print_due(self, at_once: bool = False, tells: bool = True) -> None:
        """Print the counts that are due, or all of them with `at_once`.

        Without `tells`, pass them to the board instead of printing.
        """
        self.acquire()
        try:
            self._release_lines(float("inf") if at_once else time.monotonic() - FOLD_S, tells)
        finally:
            self.release()

    def _release_lines(self, before: float, tells: bool = True) -> None:
        old = [line for line, (since, _, _) in self._folded.items() if since <= before]
        for line in old:
            _, extra, words = self._folded.pop(line)
            if extra and self.board is None:
                self._write(f"{line}  (x {extra + 1:,})")
            elif extra and self.board is not None and not self.board.add_repetitions(words, extra):
                self._write(f"{line}  (x {extra:,} more)")
        for words, count, ranks in (
            self.board.due_lines(before + FOLD_S) if self.board and tells else ()
        ):
            self._write(f"hpcflow {words}  (x {count:,}, {rank_spans(ranks)})")

    def _write(self, line: str) -> None:
        self.stream.write(f"{line}\n")
        self.stream.flush()

    def close(self) -> None:
        """Print all pending counts."""
        self.print_due(at_once=True)
        super().close()


class RecentLines(logging.Handler):
    """The last lines of a rank, and the count of each warning."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.deque[str] = collections.deque(maxlen=MAX_RECENT_LINES)
        self.warnings: collections.Counter[str] = collections.Counter()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line; of a warning, also count its message."""
        self.lines.append(self.format(record))
        words = record.getMessage()
        if record.levelno >= logging.WARNING and (
            words in self.warnings or len(self.warnings) < MOST_WARNINGS
        ):
            self.warnings[words] += 1


def set_up_logging(rank: int, size: int, run_dir: str = "", log_files: bool = False) -> None:
    """Log to stderr, with the rank as prefix if there are several; can be called again."""
    global _recent_lines, _rank_and_run_dir, _prefix
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    _recent_lines, _rank_and_run_dir = RecentLines(), (rank, run_dir)
    printed = FoldingHandler(sys.stderr)
    _prefix = prefix = f"[{rank}/{size}] " if size > 1 else ""
    printed.setFormatter(logging.Formatter(f"hpcflow {prefix}%(message)s"))
    printed.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logger.addHandler(printed)
    logger.addHandler(_recent_lines)
    if log_files:
        path = os.path.join(run_dir, f"rank-{rank}.log")
        try:
            os.makedirs(run_dir or ".", exist_ok=True)
            file = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise LaunchError(
                f"the log {path!r} cannot be written: {error.strerror or error}",
                hint="free it, or leave out the setting log_files",
            ) from error
        file.setFormatter(_recent_lines.formatter)
        logger.addHandler(file)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


def log_from_info() -> None:
    """This rank is the chief: print from level info on."""
    for handler in _folding():
        handler.setLevel(logging.INFO)


def share_warnings(folder: str | None, above: str | None = None) -> None:
    """Fold equal warnings of all ranks that share `folder`, which should be in memory.

    On several nodes, also of all ranks that share the folder `above`. None: each rank on its own.
    """
    rank, _ = _rank_and_run_dir
    board = None
    if folder is not None:
        board = SharedLineBoard(
            folder, rank, SharedLineBoard(above, rank) if above is not None else None
        )
    for handler in _folding():
        handler.print_due(at_once=True)
        handler.board = board


def _folding() -> list[FoldingHandler]:
    return [handler for handler in logger.handlers if isinstance(handler, FoldingHandler)]


def print_due() -> None:
    """Print the counts that are due; called periodically by a thread."""
    for handler in _folding():
        handler.print_due()


def hand_over_counts() -> None:
    """Pass this rank's counts to other ranks, before the last synchronization of the ranks."""
    for handler in _folding():
        handler.print_due(at_once=True, tells=False)


def say_once(line: str, level: int = logging.INFO) -> None:
    """Log a line the first time only; for choices made for the user."""
    with _saying:
        is_new = line not in _said
        _said.add(line)
    if is_new:
        logger.log(level, line)


def print_always(text: str) -> None:
    """Print `text` on stderr every time: output that the program requested."""
    sys.stderr.write(f"{_prefix}{text}\n")
    sys.stderr.flush()


def write_last_lines(text: str) -> None:
    """This rank fails with `text`: write its last lines to `rank-N.log`.

    Prints pending counts first. Without a run directory no file is written.
    """
    for handler in _folding():
        handler.close()
    rank, run_dir = _rank_and_run_dir
    if _recent_lines is None or not run_dir:
        return
    has_all = any(isinstance(handler, logging.FileHandler) for handler in logger.handlers)
    lines = [text] if has_all else [*_recent_lines.lines, text]
    try:
        os.makedirs(run_dir, exist_ok=True)
        with open(os.path.join(run_dir, f"rank-{rank}.log"), "a", encoding="utf-8") as file:
            file.write("\n".join(lines).rstrip("\n") + "\n")
    except OSError as error:  # the first failure is on stderr already
        sys.stderr.write(f"hpcflow: rank-{rank}.log cannot be written: {error.strerror or error}\n")


def warning_counts() -> dict[str, int]:
    """This rank's warnings and their counts."""
    return dict(_recent_lines.warnings) if _recent_lines is not None else {}


def merge_warnings(warnings_by_rank: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The warnings of all ranks, rank 0 first: each with its count, `x 1,022, ranks 0-3, 17`."""
    ranks: dict[str, list[int]] = {}
    counts: collections.Counter[str] = collections.Counter()
    for rank, warnings in enumerate(warnings_by_rank):
        for line, count in warnings.items():
            ranks.setdefault(line, []).append(rank)
            counts[line] += count
    return {line: f"x {counts[line]:,}, {rank_spans(sources)}" for line, sources in ranks.items()}


def rank_spans(ranks: Iterable[int]) -> str:
    """Text `rank 3` or `ranks 0-3, 17` of increasing numbers."""
    words = number_spans(ranks)
    return f"rank {words}" if words.isdigit() else f"ranks {words}"


def number_spans(rising: Iterable[int]) -> str:
    """Text `0-3, 17` of increasing numbers."""
    runs: list[list[int]] = []
    for number in rising:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
