"""Communication between ranks: MPI, NCCL, shared memory.

Imports only modules without communication: errors, settings, platform, `graph/dtypes.py` and
`monitoring/wait_ledger.py`.
"""
