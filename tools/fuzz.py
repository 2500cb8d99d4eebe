"""Give a parser inputs that coverage leads to, and stop at one that ends in an error not ours.

    pip install atheris
    python tools/fuzz.py plan                    # what one rank sends another: five minutes
    python tools/fuzz.py checkpoint -max_total_time=3600   # any option of libFuzzer

Parsers: checkpoint, graph, onnx, plan. The tests do the same by hypothesis, for seconds.
"""

from __future__ import annotations

import importlib
import json
import logging
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import atheris

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
with atheris.instrument_imports(include=["hpcflow"]):
    import onnx.helper

    import hpcflow as hf
    from hpcflow.checkpoint import checkpoint_directory, header_digests, header_validation
    from hpcflow.errors import HpcflowError
    from hpcflow.onnx import import_model
    from hpcflow.plan.serialization import partition_codec

Parser = Callable[[bytes], Any]


def main() -> None:
    """Fuzz the parser that the command line names."""
    name, *options = sys.argv[1:]
    seed, parse = PARSERS[name]()
    with tempfile.TemporaryDirectory() as corpus:
        pathlib.Path(corpus, "seed").write_bytes(seed)
        warnings.simplefilter("ignore")
        logging.disable()
        atheris.Setup([name, corpus, "-max_total_time=300", *options], lambda d: refused(parse, d))
        atheris.Fuzz()


def refused(parse: Parser, data: bytes) -> None:
    """Parse it, or have it refused by an error of ours."""
    try:
        parse(data)
    except (HpcflowError, header_validation.InvalidHeader):
        pass


def words(data: bytes, then: Callable[[Any], Any]) -> None:
    """What is no JSON, Python refuses."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    then(value)


def of_plans() -> tuple[bytes, Parser]:
    """A part of a plan, as ranks send it."""
    return importlib.import_module("tests.plan.test_codec").GOOD, partition_codec.decode_partition


def of_checkpoints() -> tuple[bytes, Parser]:
    """The words of a checkpoint that two ranks wrote."""
    jobs = importlib.import_module("tests.checkpoint.jobs")
    with tempfile.TemporaryDirectory() as where:
        jobs.save_some(pathlib.Path(where), 1, ranks=2, rows=20)
        (found,) = checkpoint_directory.find_checkpoints(pathlib.Path(where))
        said = header_digests.read_user_block(checkpoint_directory.index_file(found.path))
    return json.dumps(said).encode(), lambda data: words(
        data, lambda v: header_validation.check_header(v, 4096)
    )


def of_graphs() -> tuple[bytes, Parser]:
    """A graph as plain data, with a loop."""

    def read(value: Any) -> None:
        with hf.Graph().as_default():
            hf.import_graph_def(value)

    with hf.Graph().as_default() as graph:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        hf.nn.relu(hf.matmul(x, hf.Variable(hf.ones([3, 2]))))
        hf.while_loop(lambda i: i < 3, lambda i: i + 1, [hf.constant(0)])
    return json.dumps(graph.as_graph_def()).encode(), lambda data: words(data, read)


def of_models() -> tuple[bytes, Parser]:
    """An ONNX model."""

    def read(data: bytes) -> None:
        with hf.Graph().as_default():
            import_model(bytes(data))

    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [make.make_tensor_value_info(name, kind, [1, 2, 4, 4]) for name in "xwy"]
    nodes = [make.make_node("Conv", ["x", "w"], ["c"]), make.make_node("Relu", ["c"], ["y"])]
    model = make.make_model(make.make_graph(nodes, "g", values[:2], values[2:]))
    return model.SerializeToString(), read


PARSERS = {
    "checkpoint": of_checkpoints,
    "graph": of_graphs,
    "onnx": of_models,
    "plan": of_plans,
}

if __name__ == "__main__":
    main()
