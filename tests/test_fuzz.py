"""Texts of users and launchers, and records of data, of any content: our errors, or a value."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.flags import _boolean
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import as_dtype
from hpcflow.launch import launcher_detection
from hpcflow.platform import fault_specification
from hpcflow.ps.sync_rules import rule
from hpcflow.settings import Settings
from hpcflow.train.every_n_steps_or_secs import parse_interval
from hpcflow.train.saver import retention_policy

FUZZ = settings(max_examples=200)
NUMBERS = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "4",
        "²",
        "٣",
        "1e9",
        "9" * 5000,
        "",
        " 2 ",
        "0x4",
        "nan",
        "inf",
        "1_0",
        "2(x3),1",
    ]
)
TEXT = st.text(max_size=12) | NUMBERS
NAMES = sorted(
    {
        *("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PTY_PORT"),
        *("FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "PMI_RANK", "PMI_SIZE"),
        *(row.rank for row in launcher_detection.LAUNCHERS),
        *(name for row in launcher_detection.LAUNCHERS for name in row.size),
        *(name for row in launcher_detection.LAUNCHERS for name in (row.local_rank, row.local_size)
          if isinstance(name, str)),
    }
)  # fmt: skip
FIELDS = sorted(Settings.__dataclass_fields__)


def refused(call: Any, *given: Any) -> Any:
    """What it makes, or None after an error of hpcflow with a message."""
    try:
        return call(*given)
    except HpcflowError as error:
        assert error.message
        return None


@pytest.mark.slow
@FUZZ
@given(st.dictionaries(st.sampled_from(NAMES), TEXT, min_size=1))
def test_what_launchers_say(environ):
    found = refused(launcher_detection.detect_launcher, environ)
    assert found is None or 0 <= found.rank < found.size


def test_a_list_of_tasks_that_would_fill_memory():
    environ = {"SLURM_STEP_TASKS_PER_NODE": "2(x99999999999999)", "SLURM_STEP_ID": "0"}
    environ |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert refused(launcher_detection.detect_launcher, environ).local_size is None


@FUZZ
@given(st.dictionaries(st.sampled_from(FIELDS), TEXT, min_size=1, max_size=4))
def test_settings(given_):
    environ = {f"HPCFLOW_{name.upper()}": text for name, text in given_.items()}
    refused(Settings.from_environ, environ)


@FUZZ
@given(TEXT | st.sampled_from(["a", "a8", "backup:²", "stale:" + "9" * 5000, "stale:-1"]))
def test_words_of_the_command_line(text):
    for parser in (rule, fault_specification.parse_faults, parse_device, parse_interval):
        refused(parser, text)
    refused(as_dtype, text)
    refused(retention_policy, (text, text, 1))
    try:
        _boolean(text)
    except argparse.ArgumentTypeError:
        pass


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | TEXT, inner),
    max_leaves=6,
)


@pytest.mark.slow
@FUZZ
@given(PLAIN | st.dictionaries(TEXT, PLAIN, max_size=3))
def test_clusters(given_):
    found = refused(hf.train.ClusterSpec, given_)
    if found is not None:
        for job in found.jobs:
            refused(found.job_tasks, job)


def test_a_cluster_whose_task_has_a_huge_number():
    spec = refused(hf.train.ClusterSpec, {"worker": {2**60: "host:1"}})
    assert spec is None or refused(spec.job_tasks, "worker") is None


# -- records


@pytest.fixture(scope="module")
def readers() -> dict[str, Any]:
    """Name -> what decodes one string, by a session."""
    graph = hf.Graph()
    with graph.as_default():
        text = hf.placeholder(hf.string, [])
        made = {
            "csv": hf.decode_csv(text, [[1.0], [2], [""]]),
            "csv of one": hf.decode_csv(text, [np.zeros([], np.int64)]),
            "raw": hf.decode_raw(text, hf.float32),
            "raw of complex": hf.decode_raw(text, hf.complex64),
            "number": hf.string_to_number(text, hf.float32),
            "whole": hf.string_to_number(text, hf.int32),
        }
        session = hf.Session(graph=graph)

    def decoder(fetches: Any) -> Any:
        return lambda data: session.run(fetches, {text: data})

    return {name: decoder(tensors) for name, tensors in made.items()}


ODD = [
    b'"',
    b'a,"b',
    b"1,2,x",
    b",,",
    b"1e999,1,x",
    b"\0",
    b"1,99999999999999999999,x",
    b"9" * 5000,
]
ODD += [b"\xff,\xfe,\xfd", b'"""', b"1\n2", b"0x1p3,1,a", b"1_0,1_0,a"]


@pytest.mark.parametrize("name", ["csv", "csv of one", "raw", "raw of complex", "number", "whole"])
@FUZZ
@given(st.binary(max_size=40) | st.sampled_from(ODD))
def test_records(readers, name, data):
    refused(readers[name], data)
