"""Placement: which device or rank computes what, and how long a step then takes. NumPy only.

Four topics; each list is in reading order.

1. `placement=auto` places the operations of a step on the tasks of a replica. It reads a problem,
   which `plan/distribution/step_problem_builder.py` makes of a program. It returns a device for
   each group of operations.
     topology -> device_links -> step_problem -> chain_partition, heft -> start_placements
     group_levels -> placement_moves; segment_schedule (predicted time) -> placement_search
     measured_speeds: speeds of ranks of an earlier run; bucket_size: bytes of gradient buckets
2. `hpcflow predict` replays the steps of a job. `plan/cost/replay_of_plan.py` makes the template.
     durations -> step_template -> step_reduction -> network, network_routes (equal nodes) or
     topology, rank_mapping, topology_routes (unlike ones) -> step_copies -> replay
     -> noise_statistics -> job_replay
3. `pipeline_splits/`: splits of a graph into a pipeline of devices; no plan uses them.
4. Time of a transformer's step under data, tensor and pipeline parallelism; no plan uses it.
     parallel_strategy -> allreduce_tables, strategy_constants, strategy_costs -> least_squares,
     strategy_fit

The guide "Placement" describes 1, 3 and 4; the guide "Prediction" describes 2.
"""
