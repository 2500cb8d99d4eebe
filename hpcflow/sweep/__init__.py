"""Sweeps: many runs of one script, kept in a ledger folder, here or as SLURM job arrays."""
