"""Compared objects: `a == b` of tensors in a script is False, though their values may be equal.

As in TensorFlow 1, tensors are compared as objects, so that they can be keys and members. Imported
when a tensor is compared with something else.
"""

from __future__ import annotations

import opcode
import sys
from types import FrameType

from hpcflow.platform.exception_translation import is_package_file, value_text
from hpcflow.platform.rank_logging import logger

_COMPARES = opcode.opmap["COMPARE_OP"]
_warned: set[str] = set()  # lines of scripts


def warn_of_comparison(a: object, b: object) -> None:
    """Warn once for a line of a script that compares by `==` or `!=`.

    `a in list` and `list.index` are not comparisons of the script, nor is code of hpcflow.
    """
    frame = sys._getframe(2)  # above OverloadedOperand.__eq__
    if not _compares(frame) or is_package_file(frame.f_code.co_filename):
        return
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if line not in _warned:
        _warned.add(line)
        logger.warning(
            "%s: == of %s and %s compares objects, not values, and is False\n"
            "  next  hf.equal(a, b) or hf.not_equal(a, b) compares values; `a is b` objects",
            *(line, value_text(a), value_text(b)),
        )


def _compares(frame: FrameType) -> bool:
    """Whether the frame is at a comparison operator."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _COMPARES
