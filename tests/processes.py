"""Processes as tests look at them from outside."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process. A zombie is not: its new parent may be slow to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def without_summary(output: str) -> str:
    """What a job printed before the summary of its failure, the last lines of `hpcflow run -n`."""
    return output.partition("\nhpcflow: the job ")[0]
