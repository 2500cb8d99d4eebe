"""Queues, readers, iterators and conditional accumulators as ops of the graph."""
