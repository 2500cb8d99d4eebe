"""Where the time of a step goes: profiler, trace, counters."""
