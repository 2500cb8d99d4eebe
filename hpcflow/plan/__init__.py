"""WHERE and WHEN: pure functions from the graph to what each task runs. No MPI, no GPU, no file."""
