"""Data flow ops: queues, file readers, iterators and conditional accumulators."""
