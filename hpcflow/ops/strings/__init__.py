"""Ops on strings and on files of records, with their kernels. They run on CPUs."""
