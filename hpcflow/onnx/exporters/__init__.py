"""How each op is written as ONNX operators."""
