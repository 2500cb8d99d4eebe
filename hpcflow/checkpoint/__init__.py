"""Checkpoints: all ranks write and read the state of a job as HDF5."""
