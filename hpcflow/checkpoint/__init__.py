"""Checkpoints: the state of a job as HDF5, written and read by all ranks."""
