"""Planner: pure functions that turn a graph into one partition per task. No MPI, no GPU.

The only file access is in `serialization.plan_cache_key.sources`.
"""
