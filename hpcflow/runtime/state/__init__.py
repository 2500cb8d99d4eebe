"""State that persists between steps: variables, queues, readers, accumulators."""
