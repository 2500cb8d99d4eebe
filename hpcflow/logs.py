"""One logger: rank 0 speaks at info, every rank at warning and above, equal lines folded.

Each rank keeps its last lines of any level; they are written to `rank-N.log` in the run directory
if it fails, and all of them if the setting `log_files` asks for it.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

logger = logging.getLogger("hpcflow")
KEPT = 200  # lines of a rank that are written if it fails
FOLD_S = 10.0  # an equal line within this time is counted instead of printed
MOST_WARNINGS = 100  # different ones that a rank remembers for the job's result
_said: set[str] = set()
_kept: Kept | None = None
_where: tuple[int, str] = (0, "")  # rank and run directory
_prefix = ""  # of what a rank says for itself, where there are several


class Folding(logging.StreamHandler):
    """Prints a line at once; its repetitions within `FOLD_S` follow as one line with their count.

    They are printed when the next line comes after that time, or at the end.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._held: dict[str, tuple[float, int]] = {}  # line: when it was printed, how often since

    def emit(self, record: logging.LogRecord) -> None:
        """Print or count."""
        now, line = time.monotonic(), self.format(record)
        self._let_go(now - FOLD_S)
        since, more = self._held.get(line, (now, -1))
        self._held[line] = since, more + 1
        if more < 0:
            super().emit(record)

    def _let_go(self, before: float) -> None:
        old = [line for line, (since, _) in self._held.items() if since <= before]
        for line in old:
            _, more = self._held.pop(line)
            if more:
                self.stream.write(f"{line}  (x {more + 1:,})\n")
                self.stream.flush()

    def close(self) -> None:
        """Print the counts that are held back."""
        self.acquire()
        try:
            self._let_go(float("inf"))
        finally:
            self.release()
        super().close()


class Kept(logging.Handler):
    """The last lines of a rank, and how often it said each warning."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.deque[str] = collections.deque(maxlen=KEPT)
        self.warnings: collections.Counter[str] = collections.Counter()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line; of warnings the words too, without the time."""
        self.lines.append(self.format(record))
        words = record.getMessage()
        if record.levelno >= logging.WARNING and (
            words in self.warnings or len(self.warnings) < MOST_WARNINGS
        ):
            self.warnings[words] += 1


def set_up(rank: int, size: int, run_dir: str = "", log_files: bool = False) -> None:
    """Print to stderr with the rank in front where there are several; safe to call twice."""
    global _kept, _where, _prefix
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    _kept, _where = Kept(), (rank, run_dir)
    printed = Folding(sys.stderr)
    _prefix = where = f"[{rank}/{size}] " if size > 1 else ""
    printed.setFormatter(logging.Formatter(f"hpcflow {where}%(message)s"))
    printed.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logger.addHandler(printed)
    logger.addHandler(_kept)
    if log_files:
        os.makedirs(run_dir or ".", exist_ok=True)
        file = logging.FileHandler(os.path.join(run_dir, f"rank-{rank}.log"), encoding="utf-8")
        file.setFormatter(_kept.formatter)
        logger.addHandler(file)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


def say_once(line: str, level: int = logging.INFO) -> None:
    """Log a line the first time it is said: a choice made for the user is told, once."""
    if line not in _said:
        _said.add(line)
        logger.log(level, line)


def show(text: str) -> None:
    """Print on stderr what the program itself asked this rank to print, each time."""
    sys.stderr.write(f"{_prefix}{text}\n")
    sys.stderr.flush()


def on_failure(text: str) -> None:
    """This rank ends by `text`: write its last lines to `rank-N.log` of a named run directory."""
    for handler in logger.handlers:
        if isinstance(handler, Folding):
            handler.close()
    rank, run_dir = _where
    if _kept is None or not run_dir:
        return
    has_all = any(isinstance(handler, logging.FileHandler) for handler in logger.handlers)
    lines = [text] if has_all else [*_kept.lines, text]
    try:
        os.makedirs(run_dir, exist_ok=True)
        with open(os.path.join(run_dir, f"rank-{rank}.log"), "a", encoding="utf-8") as file:
            file.write("\n".join(lines).rstrip("\n") + "\n")
    except OSError as error:  # what failed first is on stderr already
        sys.stderr.write(f"hpcflow: rank-{rank}.log cannot be written: {error}\n")


def warned() -> dict[str, int]:
    """This rank's warnings and how often it said each."""
    return dict(_kept.warnings) if _kept is not None else {}


def together(told: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The warnings of all ranks, rank 0 first: each once, with `x 1,022, ranks 0-3, 17`."""
    ranks: dict[str, list[int]] = {}
    counts: collections.Counter[str] = collections.Counter()
    for rank, warnings in enumerate(told):
        for line, count in warnings.items():
            ranks.setdefault(line, []).append(rank)
            counts[line] += count
    return {line: f"x {counts[line]:,}, {spans(who)}" for line, who in ranks.items()}


def spans(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-3, 17` of rising numbers."""
    words = numbers(ranks)
    return f"rank {words}" if words.isdigit() else f"ranks {words}"


def numbers(rising: Iterable[int]) -> str:
    """`0-3, 17` of rising numbers."""
    runs: list[list[int]] = []
    for number in rising:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
