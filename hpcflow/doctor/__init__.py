"""Diagnosis of an installation: all ranks collect facts, rank 0 checks them.

`rank_inspection` collects the facts of one rank and `network_benchmark` times the network.
`check_table` lists the checks, which run on the facts of all ranks without MPI. `findings_report`
prints the findings.
"""
