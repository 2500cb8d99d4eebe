"""ONNX importers: one function per operator, in groups; `importer_table` registers them."""
