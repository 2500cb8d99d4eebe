"""Costs of a plan: FLOPs, bytes and memory, seconds of operations, and the time of a step.

    facts        op_flops_and_bytes, operation_features   of one operation, by its row and shapes
                 step_features                            of a step: what the correction reads
                 memory_estimate, server_traffic          bytes of a rank; bytes of a server
    seconds      cost_model                               without measurements: a roofline
                 operation_costs, operation_time_models,  by the rows of a machine profile
                 thread_ratios
                 unfused_times, measured_rows             the same before fusion: placement=auto
                 profile_costs                            measured beside predicted: `hpcflow costs`
    a step       replay_of_plan                           plan -> StepTemplate of `placement/`
                 step_correction, corrected_times         regression on steps that ran here
                 step_prediction                          replays -> median, interval, limit

`hpcflow predict` runs them from `cli/job_predictor.py`: script -> Plan -> seconds of its operations
(operation_costs or cost_model, then corrected_times) -> StepTemplate -> replays -> StepPrediction.
"""
