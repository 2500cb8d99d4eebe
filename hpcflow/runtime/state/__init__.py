"""State between steps: variables, queues, readers, accumulators."""
