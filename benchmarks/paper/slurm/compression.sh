#!/usr/bin/env bash
# Convergence with compressed gradients, on 50 asynchronous workers and 4 servers, three seeds.
#   sbatch benchmarks/paper/slurm/compression.sh
#SBATCH --job-name=compression --output=%x-%j.out
#SBATCH --nodes=54 --ntasks-per-node=1 --cpus-per-task=4 --mem=0 --time=01:00:00
#
# ---- your site: remove one '#' where there are two
##SBATCH --account=PROJECT --partition=NAME
# module load python openmpi
export PATH=$SLURM_SUBMIT_DIR/.venv/bin:$PATH # the environment that has hpcflow
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix} # Open MPI: pmix; MPICH: pmi2 (srun --mpi=list)
# ----
set -euo pipefail
export PYTHONUNBUFFERED=1
run=runs/$SLURM_JOB_ID
servers=4
for seed in 0 1 2; do
  for kind in none bfloat16 top-k; do
    srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
      hpcflow run --ps "$servers" --run-dir "$run/$kind-$seed" \
      benchmarks/paper/compression.py --rank --out "$run/$kind-$seed" --kind "$kind" \
      --seed "$seed" --epochs 40
  done
done
python benchmarks/paper/compression.py --tell "$run"/*/
