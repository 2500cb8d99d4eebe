#!/usr/bin/env bash
# The null step at the paper's size: 16 servers, 1 to 100 workers, a node for each rank.
#   sbatch benchmarks/paper/slurm/null_step.sh
#SBATCH --job-name=null-step --output=%x-%j.out
#SBATCH --nodes=116 --ntasks-per-node=1 --cpus-per-task=4 --mem=0 --time=01:00:00
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
servers=16
for workers in 1 2 5 10 25 50 100; do
  ranks=$((workers + servers))
  srun --nodes="$ranks" --ntasks="$ranks" --kill-on-bad-exit=1 \
    --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    hpcflow run --ps "$servers" --run-dir "$run/$workers" --set sync=all \
    benchmarks/paper/null_step.py --rank --out "$run/$workers" --seconds 30 \
    --dense 100e6 1e9 --tables 1e9 16e9
done
python benchmarks/paper/null_step.py --tell "$run"/*/
