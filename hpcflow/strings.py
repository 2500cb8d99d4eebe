"""String functions `hf.strings`: names of TensorFlow 1's `tf.strings`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.strings.string_ops import (
    as_string,
    reduce_join,
    regex_full_match,
    regex_replace,
    substr,
)
from hpcflow.ops.strings.string_ops import string_join as join
from hpcflow.ops.strings.string_ops import string_length as length
from hpcflow.ops.strings.string_ops import string_lower as lower
from hpcflow.ops.strings.string_ops import string_strip as strip
from hpcflow.ops.strings.string_ops import string_to_hash_bucket as to_hash_bucket
from hpcflow.ops.strings.string_ops import string_to_hash_bucket_fast as to_hash_bucket_fast
from hpcflow.ops.strings.string_ops import string_to_hash_bucket_strong as to_hash_bucket_strong
from hpcflow.ops.strings.string_ops import string_to_number as to_number
from hpcflow.ops.strings.string_ops import string_upper as upper
from hpcflow.platform.exception_translation import guard_module

__all__ = [
    "as_string",
    "join",
    "length",
    "lower",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "strip",
    "substr",
    "to_hash_bucket",
    "to_hash_bucket_fast",
    "to_hash_bucket_strong",
    "to_number",
    "upper",
]

guard_module(globals(), __all__)
