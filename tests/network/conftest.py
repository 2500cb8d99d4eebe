"""These tests need root and make network namespaces: only `pytest tests/network` runs them."""

from __future__ import annotations

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    named = [pathlib.Path(word.split("::")[0]).resolve() for word in config.args]
    asked = any(HERE == path or HERE in path.parents for path in named)
    return None if asked else True
