"""String ops, and ops for files of records, with kernels; they run on CPUs."""
