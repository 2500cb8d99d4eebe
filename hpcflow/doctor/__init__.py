"""Diagnosis of an installation, and measurement of a job's network: `hpcflow doctor`.

    facts        rank_inspection        packages, MPI, cores, BLAS, speed, GPUs, folders of a rank
                 gpu_kernel_agreement   kernels of NVIDIA's libraries beside plain kernels
    timings      network_benchmark      pairs of nodes, allreduces, clocks; gathers all on rank 0
                 wait_benchmark         how late a waiting rank receives a message
                 uplink_benchmark       rates between racks; rack_flows: who sends to whom
    data         rank_facts             JobFacts: all facts and timings, as plain data
    checks       check_table            the list of checks, in startup_checks and node_checks
    output       findings_report        text, JSON and the exit code
                 measured_links         rows for the machine profile (`hpcflow costs`)

`cli/measured_topology.py` writes the file of `--topology` from the same JobFacts.
"""
