"""Profiling of steps: profiler, Chrome trace, step stats, counters of variable traffic."""
