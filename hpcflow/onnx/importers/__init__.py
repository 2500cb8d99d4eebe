"""The importer of each ONNX operator, by group; `importer_table` finds them."""
