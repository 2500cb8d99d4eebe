"""Metric and summary ops: `hf.metrics` accumulated over batches, `hf.summary` for TensorBoard."""
