"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.strings.string_ops import as_string as as_string
from hpcflow.ops.strings.string_ops import reduce_join as reduce_join
from hpcflow.ops.strings.string_ops import regex_full_match as regex_full_match
from hpcflow.ops.strings.string_ops import regex_replace as regex_replace
from hpcflow.ops.strings.string_ops import string_join as join
from hpcflow.ops.strings.string_ops import string_length as length
from hpcflow.ops.strings.string_ops import string_lower as lower
from hpcflow.ops.strings.string_ops import string_strip as strip
from hpcflow.ops.strings.string_ops import string_to_hash_bucket as to_hash_bucket
from hpcflow.ops.strings.string_ops import string_to_hash_bucket_fast as to_hash_bucket_fast
from hpcflow.ops.strings.string_ops import string_to_hash_bucket_strong as to_hash_bucket_strong
from hpcflow.ops.strings.string_ops import string_to_number as to_number
from hpcflow.ops.strings.string_ops import string_upper as upper
from hpcflow.ops.strings.string_ops import substr as substr
