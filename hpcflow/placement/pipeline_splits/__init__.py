"""Splits of a graph into a pipeline of devices, for published benchmarks; no plan uses them.

Reading order: split_problem -> reduced_problem, order_cycles, dominated_blocks -> closed_sets,
pair_loads, contiguous_split (exact) -> split_search, split_latency (simulated annealing).
"""
