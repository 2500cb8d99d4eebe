"""Export functions: each op as ONNX operators."""
