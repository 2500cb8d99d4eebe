"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.notebook.run_function import run as run
