"""Headers: what ranks tell each other is told apart."""

from __future__ import annotations

from hpcflow.runtime.job import message_headers

NO_KINDS = {"WORDS", "HEADER_BYTES"}


def test_no_two_kinds_and_no_two_tags_have_one_number() -> None:
    named = {k: v for k, v in vars(message_headers).items() if k.isupper() and k not in NO_KINDS}
    tags = {name: value for name, value in named.items() if name.endswith("_TAG")}
    kinds = {name: value for name, value in named.items() if name not in tags}
    assert len(kinds) > 10
    for numbers in (kinds, tags):
        assert len(set(numbers.values())) == len(numbers), numbers
