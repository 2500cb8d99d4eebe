"""scikit-learn's digits without the rest of it, whose import costs each rank a second and more.

The file is scikit-learn's own; jobs of one rank import the package itself.
"""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import numpy as np


def load_digits(*, return_X_y: bool = False) -> Any:
    file = importlib.metadata.distribution("scikit-learn").locate_file(
        "sklearn/datasets/data/digits.csv.gz"
    )
    rows = np.loadtxt(str(file), delimiter=",")
    data, target = rows[:, :-1], rows[:, -1].astype(int)
    if return_X_y:
        return data, target
    return SimpleNamespace(data=data, target=target, images=data.reshape(-1, 8, 8))
