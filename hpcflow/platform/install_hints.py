"""Install hints: the distribution name of hpcflow, and pip commands for its extras.

`hpcflow` on the package index is another project. The module and the command are named `hpcflow` in
both, so only one of them can be installed in an environment.
"""

from __future__ import annotations

DISTRIBUTION = "hpcflow-mpi"  # the name in pyproject.toml
OTHER = "hpcflow"  # the distribution of the other project, which would overwrite our files


def install_hint(extra: str, *others: str) -> str:
    """The command that installs an extra of pyproject.toml; `others` are alternative extras."""
    either = "".join(f" or [{alternative}]" for alternative in others)
    return f"pip install '{DISTRIBUTION}[{extra}]'{either}"
