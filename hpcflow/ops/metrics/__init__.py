"""`hf.metrics` and `hf.summary`: values accumulated over batches, and TensorBoard summaries."""
