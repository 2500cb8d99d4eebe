"""What an installation would use and what is wrong with it: ranks look, rank 0 judges.

`look` gathers the facts of one rank, `links` times the network, `checks` judges the facts of all
ranks without MPI, `page` prints the findings.
"""
