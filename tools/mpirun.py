"""Start any program on n ranks as `hpcflow run` would: python tools/mpirun.py N PROGRAM ARGS..."""

from __future__ import annotations

import sys

from hpcflow.launch import launcher_detection


def main(n: int, program: list[str]) -> None:
    """Become the launcher."""
    start = launcher_detection.start_command(n, program)
    print(f"$ {' '.join(start.argv)}", file=sys.stderr, flush=True)
    start.become()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
