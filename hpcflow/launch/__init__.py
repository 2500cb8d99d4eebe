"""Launch of ranks: launcher detection, mpirun and its hosts, SLURM, time limits."""
