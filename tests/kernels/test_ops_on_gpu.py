"""Each case of the op table by its plain kernel on a GPU, beside the CPU and in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcflow.errors import DeviceError
from hpcflow.kernels.kernel_registry import find_plain_kernel
from hpcflow.runtime.device import device
from tests.kernels.test_uncaptured import refusal, registered_reason
from tests.ops.test_table import CASES, close


def has_kernel(type: str) -> bool:
    """Whether an op has a kernel for GPUs; those of strings, say, have none."""
    try:
        return bool(find_plain_kernel(type, "gpu"))
    except DeviceError:
        return False


OPS = {
    type: [c for c in CASES if c.type == type]
    for type in sorted({case.type for case in CASES})
    if has_kernel(type)
}


OF_ANY_SIGN = ("SelfAdjointEig", "Svd", "Qr")  # cuSOLVER's vectors may have the other direction


def up_to_sign(mine: np.ndarray, theirs: Any, dtype: np.dtype) -> None:
    close(np.abs(mine), np.abs(theirs), dtype)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return device.make_device("gpu:0").xp


@pytest.mark.gpu
@pytest.mark.parametrize("type", OPS)
def test_a_plain_kernel_computes_what_it_does_on_a_cpu(cupy: Any, type: str) -> None:
    """All its dtypes; a kernel that is not listed as never captured is captured in some case."""
    captured, wrong = set(), {}
    compare = up_to_sign if type in OF_ANY_SIGN else close
    for number, case in enumerate(OPS[type]):
        for dtype in case.dtypes:
            try:
                captured.add(refusal(case, cupy, dtype, not registered_reason(type), compare))
            except Exception as error:  # all cases are tried, for a GPU may be hard to come by
                told = " ".join(f"{error.__class__.__name__}: {error}".split())
                wrong[number, dtype.name] = told[:400]
    assert not wrong, "\n".join(f"{at}: {told}" for at, told in wrong.items())
    assert captured & {"", None}, captured
