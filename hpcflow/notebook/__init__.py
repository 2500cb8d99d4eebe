"""Notebooks: `run` starts a function of a cell on several ranks and returns its results."""

from hpcflow.platform.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {"hpcflow.notebook.run_function": "run"})
