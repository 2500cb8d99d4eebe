"""The name under which a package index has hpcflow, and the lines that install parts of it.

`hpcflow` on the package index is another project. The module and the command are named `hpcflow` in
both, so an environment holds one of the two.
"""

from __future__ import annotations

DISTRIBUTION = "hpcflow-mpi"  # the name in pyproject.toml
OTHER = "hpcflow"  # the distribution of the other project, which would overwrite our files


def install_hint(extra: str, *others: str) -> str:
    """The command that installs an extra of pyproject.toml; `others` do on other machines."""
    either = "".join(f" or [{other}]" for other in others)
    return f"pip install '{DISTRIBUTION}[{extra}]'{either}"
