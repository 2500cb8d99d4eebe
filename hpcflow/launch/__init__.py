"""How ranks start: launcher detection, mpirun and its hosts, SLURM, time limits."""
