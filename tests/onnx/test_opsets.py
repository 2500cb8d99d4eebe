"""Every operator at every opset at which its definition changed, from 6 on, beside onnxruntime.

The models are the standard's own tests of the newest definition, written down as the older ones
say it: what is an input now may have been an attribute.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import hpcflow as hf
from hpcflow.onnx import prepare
from hpcflow.onnx.unsupported_operators import OPS, is_unsupported_model, why_not

OLDEST = 6
MOST = 3  # models of one operator at one opset
OLD_NAMES = {"K": "k", "constant_value": "value"}  # of inputs that were attributes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the suite's own data overflow
    from onnx.backend.test.loader import load_model_tests

    TESTS: dict[str, list[Any]] = {}
    for _test in load_model_tests(kind="node"):
        if len(_test.model.graph.node) == 1 and not is_unsupported_model(_test.model):
            _op = _test.model.graph.node[0].op_type
            if not why_not(_op, _test.name):
                TESTS.setdefault(_op, []).append(_test)


def history() -> dict[str, list[Any]]:
    """The definitions of each operator of the standard, the newest last."""
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            found.setdefault(schema.name, []).append(schema)
    return {name: sorted(all, key=lambda s: s.since_version) for name, all in found.items()}


HISTORY = history()


def versions(name: str) -> dict[int, Any]:
    """The definition by the opset, from the oldest on, with which it came."""
    found: dict[int, Any] = {}
    for schema in HISTORY[name]:
        found[max(OLDEST, schema.since_version)] = schema
    return found


def _plain(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


class NotThere(Exception):
    """An older opset cannot say what a model does."""


def older(test: Any, schema: Any, version: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """The model as an older definition says it, and what it is fed."""
    proto = test.model.graph.node[0]
    written = test.model.opset_import[0].version
    newest = onnx.defs.get_schema(proto.op_type, written)
    names = (v.name for v in test.model.graph.input)
    arrays = dict(zip(names, map(_plain, test.data_sets[0][0]), strict=True))
    node = onnx.NodeProto(op_type=proto.op_type, output=proto.output)
    for attribute in proto.attribute:
        default = newest.attributes[attribute.name].default_value
        if attribute.name in schema.attributes:
            node.attribute.append(attribute)
        elif helper.get_attribute_value(attribute) != _default(default):
            raise NotThere(attribute.name)
    for told, name in _inputs(proto, newest, schema, node):
        old = OLD_NAMES.get(told, told)
        if old not in schema.attributes:
            raise NotThere(told)
        value, kind = arrays.pop(name), int(schema.attributes[old].type)
        plain = (
            value.item() if kind in (AttributeProto.INT, AttributeProto.FLOAT) else value.tolist()
        )
        node.attribute.append(helper.make_attribute(old, plain, attr_type=kind))
    graph = onnx.GraphProto(name=test.name, node=[node], output=test.model.graph.output)
    graph.input.extend(v for v in test.model.graph.input if v.name in node.input)
    fed = [arrays[v.name] for v in graph.input]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = 8
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise NotThere(str(error)) from error
    return model, fed


def _inputs(
    proto: onnx.NodeProto, newest: Any, schema: Any, node: onnx.NodeProto
) -> list[tuple[str, str]]:
    """Give a node the inputs that an older definition has; the others by what they are called."""
    formal = [one.name for one in schema.inputs]
    last = newest.inputs[-1] if newest.inputs else None
    if last is None or last.option == last.option.Variadic:
        node.input.extend(proto.input)
        return []
    given = {newest.inputs[i].name: name for i, name in enumerate(proto.input)}
    for i, one in enumerate(formal):
        there = newest.inputs[i].name if i < len(newest.inputs) else ""
        free = there not in formal and there not in schema.attributes
        node.input.append(given.pop(one if one in given else there if free else "", ""))
    while node.input and not node.input[-1]:
        node.input.pop()
    return [(told, name) for told, name in given.items() if name]


def _default(attribute: Any) -> Any:
    return helper.get_attribute_value(attribute) if attribute.name else None


def by_onnxruntime(model: onnx.ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, fed)


def by_standard(model: onnx.ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, fed)


def expected(model: onnx.ModelProto, fed: list[np.ndarray]) -> list[list[np.ndarray]]:
    """What onnxruntime computes and what the standard's own evaluator does, where they can."""
    given = {v.name: a for v, a in zip(model.graph.input, fed, strict=True)}
    found = []
    for compute in (by_onnxruntime, by_standard):
        with contextlib.suppress(Exception):  # their errors have no common class
            found.append(compute(model, given))
    return found


def models(name: str, version: int) -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray], Any]]:
    """Some models of an operator at an opset, with what they give."""
    found = 0
    for test in TESTS.get(name, ()):
        try:
            model, fed = older(test, versions(name)[version], version)
        except NotThere:
            continue
        if wanted := expected(model, fed):
            yield test.name, model, fed, wanted
            found += 1
        if found == MOST:
            return


DRAWN = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
# Operators and opsets that neither of the two others has, or that no test of the suite is of.
UNTRIED = {
    *((name, version) for name in DRAWN for version in (6, 15, 22)),
    *(("Loop", version) for version in (6, 13, 16, 19, 21, 23, 24, 25)),
    *(("BatchNormalization", 6), ("Dropout", 6), ("RNN", 6), ("Upsample", 6), ("Resize", 11)),
    *(("AveragePool", 6), ("PRelu", 6), ("MeanVarianceNormalization", 13)),
    *(("GlobalLpPool", 6), ("GlobalLpPool", 22)),
    *(("MaxRoiPool", 6), ("MaxRoiPool", 22), ("Multinomial", 7), ("Multinomial", 22)),
}
CASES = {
    name: [v for v in versions(name) if (name, v) not in UNTRIED]
    for name in sorted(HISTORY)
    if name not in OPS
}


def same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-3, atol=2e-5, equal_nan=True)
        for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the suite's own data overflow
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]])
def test_an_operator_at_every_opset_that_changed_it(name: str) -> None:
    for version in CASES[name]:
        tried = 0
        for test, model, fed, wanted in models(name, version):
            tried += 1
            with hf.Graph().as_default():
                got = list(prepare(model).run(fed))
            assert any(same(got, theirs) for theirs in wanted), f"{test} at opset {version}"
        assert tried, f"no model of {name} at opset {version}"


# -- opset 6, which few others compute


def at_6(text: str, *fed: np.ndarray) -> np.ndarray:
    model = onnx.parser.parse_model('<ir_version: 3, opset_import: ["" : 6]>' + text)
    with hf.Graph().as_default():
        return np.asarray(prepare(model).run(list(fed))[0])


@pytest.mark.parametrize(
    "name, f", [("Add", np.add), ("Div", np.divide), ("Pow", np.power), ("Less", np.less)]
)
def test_an_axis_says_where_the_second_operand_stands(name: str, f: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = (1 + rng.random(shape, np.float32) for shape in [(2, 3, 4, 5), (3, 4)])
    kind = "bool" if name == "Less" else "float"
    text = f"m (float[2,3,4,5] x, float[3,4] y) => ({kind}[2,3,4,5] z) "
    for axis in (1, -3):
        z = at_6(text + f"{{ z = {name} <broadcast = 1, axis = {axis}> (x, y) }}", x, y)
        np.testing.assert_allclose(z, f(x, y[..., None]), rtol=1e-5)
    last = y.T[0, 0] * np.ones(5, np.float32)
    text = f"m (float[2,3,4,5] x, float[5] y) => ({kind}[2,3,4,5] z) "
    z = at_6(text + f"{{ z = {name} <broadcast = 1> (x, y) }}", x, last)
    np.testing.assert_allclose(z, f(x, last), rtol=1e-5)


def test_a_slope_for_each_channel() -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 3)).astype("f4")
    slope = np.array([0.1, 0.2, 0.3], "f4")
    text = "m (float[2,3,4,3] x, float[3] s) => (float[2,3,4,3] y) { y = PRelu(x, s) }"
    factors = np.where(x < 0, slope[:, None, None], 1)
    np.testing.assert_allclose(at_6(text, x, slope), x * factors, rtol=1e-6)


def test_what_is_of_training_and_of_inference() -> None:
    x = 3 + np.random.default_rng(2).normal(size=(6, 2, 5)).astype("f4")
    ones, zeros = np.ones(2, "f4"), np.zeros(2, "f4")
    for test, expected in (
        (1, x / np.sqrt(1 + 1e-5)),
        (0, (x - x.mean((0, 2))[:, None]) / np.sqrt(x.var((0, 2))[:, None] + 1e-5)),
    ):
        norm = f"y = BatchNormalization <is_test = {test}> (x, a, b, b, a)"
        text = f"m (float[6,2,5] x, float[2] a, float[2] b) => (float[6,2,5] y) {{ {norm} }}"
        np.testing.assert_allclose(at_6(text, x, ones, zeros), expected, rtol=1e-4, atol=1e-5)
        drop = f"y = Dropout <is_test = {test}, ratio = 0.5> (x)"
        y = at_6(f"m (float[6,2,5] x) => (float[6,2,5] y) {{ {drop} }}", x)
        np.testing.assert_allclose(y, x if test else np.where(y == 0, 0, 2 * x), rtol=1e-6)
        assert (y == 0).any() != bool(test)


def test_scales_of_height_and_width() -> None:
    x = np.arange(6, dtype="f4").reshape(1, 1, 2, 3)
    up = "y = Upsample <height_scale = 2.0, width_scale = 3.0> (x)"
    y = at_6(f"m (float[1,1,2,3] x) => (float[1,1,4,9] y) {{ {up} }}", x)
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(3, 3))
