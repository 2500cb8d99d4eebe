"""Summaries `hf.summary`: names of TensorFlow 1's `tf.summary`; re-exports only.

The message classes (`Summary`, `Event`, `SessionLog`) are those of the package tensorboardX.
"""

from __future__ import annotations

from typing import Any

from hpcflow.ops.metrics.summary_kernels import messages
from hpcflow.ops.metrics.summary_ops import (
    audio,
    histogram,
    image,
    merge,
    merge_all,
    scalar,
    tensor_summary,
    text,
)
from hpcflow.platform.exception_translation import translate_module
from hpcflow.train.tensorboard_writer import FileWriter, FileWriterCache

_MESSAGES = {"Event": "event", "SessionLog": "event", "Summary": "summary"}
__all__ = [  # and the message classes
    "FileWriter",
    "FileWriterCache",
    "audio",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "tensor_summary",
    "text",
]


def __getattr__(name: str) -> Any:
    if name in _MESSAGES:
        return getattr(getattr(messages(), _MESSAGES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


translate_module(globals(), __all__)
