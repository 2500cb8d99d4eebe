"""Unsupported ONNX operators and the reasons."""

from __future__ import annotations

import re

import onnx

_STRINGS = "strings are not tensors of a graph"
_SEQUENCES = "sequences and optional values are not tensors"
_QUANTIZED = "quantized arithmetic is for deployment; import the model before it is quantized"

OPS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
            *("TfIdfVectorizer", "LabelEncoder", "CategoryMapper"),
        ),
        _STRINGS,
    ),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
            *("SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap"),
            *("SplitToSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
        ),
        _SEQUENCES,
    ),
    **dict.fromkeys(
        (
            *("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear", "ConvInteger"),
            *("MatMulInteger", "QLinearConv", "QLinearMatMul"),
        ),
        _QUANTIZED,
    ),
}

_IMAGES = "files of images are decoded before they are fed"
_TREES = "trees are not graphs of tensors"
_DRAWS = "draws are hpcflow's own, not those of NumPy's generator"

OPS["ImageDecoder"] = _IMAGES
OPS.update(
    dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _TREES)
)

# Tests of the standard suite that cannot pass: pattern of names -> reason.
TESTS: dict[str, str] = {
    r"^test_bernoulli": _DRAWS,
    r"^test_training_dropout(_default)?(_mask)?$": _DRAWS,
    r"^test_attention_4d_causal_fp16(_expanded)?$": "float16 is computed with as float32, more "
    "exactly than the reference",
    r"^test_squeezenet$": "its logits are equal numbers so large that the last bit decides",
    r"^test_cast_e8m0_": "numbers that are powers of two alone are scales of quantized tensors",
}

_OUTSIDE = {_STRINGS, _SEQUENCES, _QUANTIZED}


def why_not(op: str, test: str) -> str:
    """The reason why a test of the standard suite is not supported; "" if it is."""
    if op in OPS:
        return OPS[op]
    return next((why for pattern, why in TESTS.items() if re.search(pattern, test)), "")


def is_unsupported_model(model: onnx.ModelProto) -> bool:
    """Whether a model uses strings, sequences, optional values or quantized operators."""
    graph = model.graph
    if any(OPS.get(node.op_type) in _OUTSIDE for node in graph.node):
        return True
    kinds = [v.type for v in [*graph.input, *graph.output]]
    return any(
        kind.WhichOneof("value") != "tensor_type"
        or kind.tensor_type.elem_type == onnx.TensorProto.STRING
        for kind in kinds
    )
